// -- files: what is on the screen as SVG, PNG and CSV, always on white --------------------------------------------------
const saving = (() => {
  const INK = "#1d1f24";
  let about = null;

  const caption = (more = "") => {
    const { theta, tau } = view.now;
    return `${about.model} ${view.name()}, θ = ${theta}${about.attention ? `, τ = ${tau}` : ""}${more}`;
  };

  function mapsPicture() {
    const on = maps.axis();
    const size = on.units.length;
    const span = maps.window();
    const [r0, r1, c0, c1] = span;
    const side = 380, left = 62, top = 34, below = 96;
    const kinds = about.attention ? ["attention", "similarity"] : ["similarity"];
    const body = kinds.map((kind, k) => {
      const x = k * (side + left + 24) + left;
      const shown = kind === "attention" ? maps.attention() : maps.similarity("light");
      const w = side / (c1 - c0), h = side / (r1 - r0);
      const title = kind === "attention" ? "attention: row looks at column" : `similarity: ${document.getElementById("similarity-words").textContent}`;
      const parts = [
        drawing.cells(maps.crop(shown.values, size, span), r1 - r0, c1 - c0, shown.with_, x, top, side, side),
        shown.high ? drawing.dotted(maps.crop(shown.high, size, span), r1 - r0, c1 - c0, x, top, side, side) : "",
        `<rect x="${x}" y="${top}" width="${side}" height="${side}" fill="none" stroke="${INK}" stroke-width=".5"/>`,
        ...drawing.ticks(r0, r1, side, 7).map((a) => drawing.label(x - 3, top + (a - r0 + 0.5) * h + 2, drawing.short(on.units[a].label, 12), { size: 6.5, anchor: "end" })),
        ...drawing.ticks(c0, c1, side, 7).map((b) => drawing.label(x + (b - c0 + 0.5) * w + 2, top + side + 3, drawing.short(on.units[b].label, 12), { size: 6.5, anchor: "end", turn: -90 })),
        drawing.bar(shown.with_, x, top + side + 62, side, title),
      ];
      if (about.attention) {
        const { edges, lines } = maps.marks();
        if (kind === "attention" || view.now.view !== "values") for (const b of lines) if (b >= c0 && b < c1) parts.push(`<path d="M${x + (b - c0 + 0.5) * w - 3} ${top - 6}h6l-3 5z" fill="#c2562d"/>`);
        if (kind === "similarity" && view.now.view !== "values") {
          for (const b of edges) if (b > c0 && b < c1) parts.push(`<path d="M${x + (b - c0) * w} ${top}v${side}" stroke="${INK}" stroke-width=".4"/>`);
          for (const a of edges) if (a > r0 && a < r1) parts.push(`<path d="M${x} ${top + (a - r0) * h}h${side}" stroke="${INK}" stroke-width=".4"/>`);
        }
      }
      return parts.join("");
    }).join("");
    return drawing.document(kinds.length * (side + left + 24), top + side + below, drawing.label(left, 16, caption(), { size: 11, fill: INK }) + body);
  }

  function textPicture() {
    const box = document.getElementById("textbox");
    const from = box.getBoundingClientRect();
    const kind = relations.adjective(), muted = document.querySelector("#arcs .noise");
    const body = [drawing.label(12, 18, caption(kind ? `, ${kind}pairs only` : muted ? ", noise dashed" : ""), { size: 11 })];
    const down = 34;
    const was = base.root.dataset.theme;
    base.root.dataset.theme = "light"; // colours are read off the page, and a picture is on white
    for (const path of document.querySelectorAll("#arcs path")) {
      const style = getComputedStyle(path);
      body.push(`<path transform="translate(0 ${down})" d="${path.getAttribute("d")}" fill="none" stroke="${colour(style.stroke)}" stroke-width="${parseFloat(style.strokeWidth)}" stroke-opacity="${style.strokeOpacity}"${style.strokeDasharray === "none" ? "" : ` stroke-dasharray="${style.strokeDasharray.replaceAll("px", "")}"`}/>`);
    }
    text.spans.forEach((span) => {
      const style = getComputedStyle(span);
      if (style.visibility === "hidden") return;
      const [rect] = span.getClientRects(); // a word broken over two lines is written where it begins
      const x = rect.left - from.left, y = rect.top - from.top + down;
      const back = colour(style.backgroundColor);
      if (back) body.push(`<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${rect.width.toFixed(1)}" height="${rect.height.toFixed(1)}" rx="3" fill="${back}"/>`);
      body.push(drawing.label(x, y + rect.height * 0.77, span.textContent, { size: parseFloat(style.fontSize), fill: colour(style.color), family: style.fontFamily, width: span.getClientRects().length === 1 ? rect.width : 0 }));
    });
    if (was === undefined) delete base.root.dataset.theme; else base.root.dataset.theme = was;
    return drawing.document(box.clientWidth + 8, box.scrollHeight + down + 10, body.join(""));
  }

  // Any CSS colour as #rrggbb on white, which every program that opens SVG understands.
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  function colour(css) {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = css;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return a === 0 ? "" : drawing.hex([r, g, b].map((c) => Math.round((c * a + 255 * (255 - a)) / 255)));
  }

  function overviewPicture() {
    const cell = 40, left = 36, top = 50;
    const body = [drawing.label(left, 18, `${about.model}, ${view.now.kind} of all heads`, { size: 11 })];
    const canvas = document.createElement("canvas");
    for (let h = 0; h < about.matrices; h++) body.push(drawing.label(left + (h + 0.5) * cell, top - 6, h === about.sum ? "sum" : `H${about.heads[h]}`, { anchor: "middle", size: 9 }));
    about.layers.forEach((layer, l) => {
      body.push(drawing.label(left - 6, top + (l + 0.5) * cell + 3, `L${layer}`, { anchor: "end", size: 9 }));
      if (!reading.held(l)) return;
      for (let h = 0; h < about.matrices; h++) {
        if (!about.present[l][h]) continue;
        overview.paint(canvas, l, h, "light");
        body.push(`<image x="${left + h * cell}" y="${top + l * cell}" width="${cell - 2}" height="${cell - 2}" style="image-rendering:pixelated" href="${canvas.toDataURL("image/png")}"/>`);
      }
    });
    return drawing.document(left + about.matrices * cell + 8, top + about.layers.length * cell + 8, body.join(""));
  }

  function layersPicture() {
    const { token } = view.now;
    if (token < 0) return null;
    const width = 640, high = 12, left = 36, top = 30;
    const scale = drawing.scale("similarity", 1, "light");
    const body = [drawing.label(left, 16, `${about.model}: similarity to ${drawing.quoted(about.tokens[token])} (${token}), ${view.now.head === about.sum ? "sum of the heads" : `head ${about.heads[view.now.head]}`} of each layer`, { size: 10 })];
    about.layers.forEach((layer, l) => {
      const found = reading.held(l) && through.row(l);
      if (!found) return;
      const y = top + l * (high + 3);
      body.push(drawing.label(left - 5, y + 9, `L${layer}`, { anchor: "end" }), drawing.cells(found.values, 1, found.values.length, scale, left, y, width, high));
    });
    const end = top + about.layers.length * (high + 3);
    const { units } = maps.axis();
    for (const b of drawing.ticks(0, units.length, width, 8)) body.push(drawing.label(left + ((b + 0.5) * width) / units.length + 2, end + 2, drawing.short(units[b].label, 12), { size: 6.5, anchor: "end", turn: -90 }));
    return drawing.document(left + width + 10, end + 90, body.join("") + drawing.bar(scale, left, end + 68, 160, "C / max"));
  }

  function pairsTable() {
    // As `format_csv` in Python: no text is taken for a formula.
    const harmless = (text) => (/^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(text) ? `'${text}` : text);
    const quoted = (value) => (typeof value === "string" ? `"${harmless(value).replaceAll('"', '""')}"` : value);
    const columns = ["token_i", "token_j", "index_i", "index_j", "value", "relative", ...(about.relations.length ? ["relation"] : []), ...(about.verified ? [] : ["capture"])];
    const rows = text.pairs().map((pair) => ({ ...pair, capture: "unverified" }));
    return `${[columns.join(","), ...rows.map((row) => columns.map((name) => quoted(row[name])).join(","))].join("\n")}\n`;
  }

  const PICTURES = { maps: mapsPicture, text: textPicture, overview: overviewPicture, layers: layersPicture };

  async function save(what, as) {
    await reading.unpack(view.now.layer);
    const name = what === "overview" ? `${about.file}-${view.now.kind}` : `${about.file}-${view.name()}-${what}`;
    if (as === "csv") return base.download(`${name}${view.now.pairs === "all" ? "" : `-${view.now.pairs}`}.csv`, pairsTable(), "text/csv");
    const picture = PICTURES[what]();
    if (!picture) return undefined;
    if (as === "svg") return base.download(`${name}.svg`, picture, "image/svg+xml");
    return base.download(`${name}.png`, await drawing.png(picture), "image/png");
  }

  function start(data) {
    about = data;
    for (const button of document.querySelectorAll("[data-save]")) button.addEventListener("click", () => save(button.dataset.save, button.dataset.as));
  }

  return { start };
})();
