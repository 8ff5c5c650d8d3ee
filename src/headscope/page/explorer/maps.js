// -- the two maps of a head, and the small maps of all ------------------------------------------------------------------
const maps = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  let about = null;
  let hover = null; // [a, b] in units of the axis
  let drag = null;
  let pressed = null; // where a click is under way
  let before = -1; // the token chosen before the first of several clicks in a row
  const plots = [];
  let listeners = [];

  function start(data) {
    about = data;
    for (const kind of ["attention", "similarity"]) {
      const figure = document.getElementById(kind);
      if (figure) plots.push(plot(kind, figure));
    }
    document.getElementById("unzoom").addEventListener("click", () => view.change({ zoom: null }));
    new ResizeObserver(() => { for (const each of plots) each.draw(); }).observe(document.querySelector(".maps"));
  }

  const axis = () => reading.axis(view.now.words, view.now.hide);
  const window_ = () => {
    const size = axis().units.length;
    if (!view.now.zoom) return [0, size, 0, size];
    const [r0, r1, c0, c1] = view.now.zoom;
    return r1 <= size && c1 <= size ? view.now.zoom : [0, size, 0, size];
  };

  // -- what a map shows: values over the whole axis, and how they are coloured ------------------------------------------
  let kept = { key: "" };
  function matrices() {
    const { layer, head, words, hide } = view.now;
    const key = [layer, head, words, hide].join();
    if (kept.key !== key) {
      const on = axis();
      kept = { key, codes: reading.codes(layer, head, on), attention: about.attention ? reading.attention(layer, head, on) : null };
    }
    return kept;
  }

  function similarity(theme = base.theme()) {
    const { layer, head, theta, tau, diagonal, raw } = view.now;
    const on = axis();
    const size = on.units.length;
    const { codes } = matrices();
    const factor = raw ? about.scales[layer][head] : 1;
    const top = raw && head !== about.sum ? Math.max(...about.scales[layer].slice(0, -1)) : factor;
    const values = new Float32Array(size * size);
    const limit = reading.above(theta);
    const mode = view.now.view;
    if (mode === "regions") {
      const cut = reading.blocks(layer, head, tau);
      const means = reading.regions(layer, head, tau);
      const of = blockOf(on, cut);
      for (let a = 0; a < size; a++) for (let b = 0; b < size; b++) values[a * size + b] = (means[of[a]][of[b]] ?? NaN) * factor;
      let strongest = 0;
      for (const row of means) for (const mean of row) strongest = Math.max(strongest, Math.abs(mean ?? 0));
      return { values, with_: drawing.scale("similarity", raw ? top : strongest || 1, theme) };
    }
    const high = mode === "high" ? relations.marks(codes, on, limit) : null;
    for (let k = 0; k < size * size; k++) values[k] = high && high[k] !== relations.FULL ? 0 : reading.value(codes[k]) * factor;
    for (let a = 0; a < size; a++) values[a * size + a] = diagonal ? reading.diagonal(layer, head, on.units[a]) * factor : 0;
    if (mode === "lines") {
      for (const line of reading.lines(layer, head, tau)) {
        const k = on.of[line.index];
        if (k >= 0) for (let b = 0; b < size; b++) { values[k * size + b] = NaN; values[b * size + k] = NaN; }
      }
    }
    return { values, high, with_: drawing.scale("similarity", top, theme) };
  }

  function attention() {
    const { attention: values } = matrices();
    let largest = 0;
    for (const v of values) if (v > largest) largest = v;
    const whole = view.now.head === about.sum ? about.heads.length : 1;
    return { values, with_: drawing.scale("attention", view.now.raw ? whole : largest || 1) };
  }

  const blockOf = (on, cut) => on.units.map((unit) => cut.findIndex((block) => unit.first < block.stop));

  function crop(values, size, [r0, r1, c0, c1]) {
    if (r1 - r0 === size && c1 - c0 === size) return values;
    const made = new Float32Array((r1 - r0) * (c1 - c0));
    for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) made[(r - r0) * (c1 - c0) + c - c0] = values[r * size + c];
    return made;
  }

  // Where blocks begin along the axis, and which of its units are lines.
  function marks() {
    if (!about.attention) return { edges: [], lines: [] };
    const { layer, head, tau } = view.now;
    const on = axis();
    const lines = [...new Set(reading.lines(layer, head, tau).map((line) => on.of[line.index]).filter((k) => k >= 0))];
    const cut = reading.blocks(layer, head, tau);
    const edges = cut.slice(1).map((block) => on.units.findIndex((unit) => unit.first >= block.start)).filter((k) => k > 0);
    return { edges, lines };
  }

  // -- one map ----------------------------------------------------------------------------------------------------------
  function plot(kind, figure) {
    const [canvas, over] = figure.querySelectorAll("canvas");
    const svg = figure.querySelector("svg");
    const legend = figure.querySelector(".scale");
    let shape = null;

    function draw() {
      if (!reading.held(view.now.layer)) return;
      const on = axis();
      const size = on.units.length;
      const shown = kind === "attention" ? attention() : similarity();
      const span = window_();
      const [r0, r1, c0, c1] = span;
      const width = figure.querySelector(".plot").clientWidth;
      const left = Math.min(78, Math.max(48, width * 0.16)), below = left;
      const side = Math.max(width - left - 2, 60);
      shape = { left, top: 10, side, cw: side / (c1 - c0), ch: side / (r1 - r0), span, values: shown.values, size };
      drawing.paint(canvas, crop(shown.values, size, span), r1 - r0, c1 - c0, shown.with_);
      canvas.style.cssText = `left:${left}px;top:10px;width:${side}px;height:${side}px`;
      if (over) dots(over, shown.high, size, span);
      svg.setAttribute("width", width);
      svg.setAttribute("height", side + below + 10);
      svg.replaceChildren();
      axes(on, span);
      if (kind === "attention" || view.now.view !== "values") lines(span);
      frame();
      scale(shown.with_);
      pointer();
    }

    // Noise among the high pairs: small and grey, where an explained one fills its cell with colour.
    function dots(over, high, size, span) {
      over.hidden = !high;
      if (!high) return;
      over.style.cssText = canvas.style.cssText;
      drawing.dots(over, crop(high, size, span), span[1] - span[0], span[3] - span[2], shape.side);
    }

    function node(name, attributes, text) {
      const made = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      svg.append(made);
      return made;
    }

    function axes(on, [r0, r1, c0, c1]) {
      const { left, top, side, cw, ch } = shape;
      const roomy = Math.min(cw, ch) >= 16;
      svg.classList.toggle("roomy", roomy);
      const most = Math.floor(left / (roomy ? 7 : 6)); // letters that fit the margin
      for (const k of drawing.ticks(r0, r1, side)) node("text", { class: "tick", x: left - 4, y: top + (k - r0 + 0.5) * ch, "text-anchor": "end", "dominant-baseline": "central" }, drawing.short(on.units[k].label, most));
      for (const k of drawing.ticks(c0, c1, side)) {
        const x = left + (k - c0 + 0.5) * cw, y = top + side + 4;
        node("text", { class: "tick", x, y, "text-anchor": "end", "dominant-baseline": "central", transform: `rotate(-90 ${x} ${y})` }, drawing.short(on.units[k].label, most));
      }
    }

    function lines([r0, r1, c0, c1]) {
      const { left, top, side, cw, ch } = shape;
      const { edges, lines: marked } = marks();
      for (const k of marked) {
        if (k >= c0 && k < c1) { const x = left + (k - c0 + 0.5) * cw; node("path", { class: "mark", d: `M${x - 4} 1h8l-4 7z` }); }
      }
      if (kind !== "similarity") return;
      for (const k of edges) {
        if (k > c0 && k < c1) node("path", { class: "edge", d: `M${left + (k - c0) * cw} ${top}v${side}` });
        if (k > r0 && k < r1) node("path", { class: "edge", d: `M${left} ${top + (k - r0) * ch}h${side}` });
      }
    }

    const frame = () => node("rect", { class: "frame", x: shape.left, y: shape.top, width: shape.side, height: shape.side });

    function scale(with_) {
      legend.replaceChildren();
      base.element("i", "", legend).style.background = `linear-gradient(to right, ${with_.stops.join(", ")})`;
      for (const end of drawing.ends(with_)) base.element("span", end, legend);
    }

    // The crosshair of both maps follows the pointer in either.
    let cross = [];
    function pointer() {
      for (const each of cross) each.remove();
      cross = [];
      if (drag && drag.kind === kind && drag.moved) {
        const [x0, x1] = [drag.from[0], drag.to[0]].sort((p, q) => p - q), [y0, y1] = [drag.from[1], drag.to[1]].sort((p, q) => p - q);
        cross.push(node("rect", { class: "part", x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
      }
      if (!hover || !shape) return;
      const { left, top, side, cw, ch, span: [r0, r1, c0, c1] } = shape;
      const [a, b] = hover;
      const on = axis();
      if (a >= r0 && a < r1) {
        cross.push(node("rect", { class: "cross", x: left, y: top + (a - r0) * ch, width: side, height: Math.max(ch, 1) }));
        cross.push(...flag(on.units[a].label, left - 4, top + (a - r0 + 0.5) * ch, 0));
      }
      if (b >= c0 && b < c1) {
        cross.push(node("rect", { class: "cross", x: left + (b - c0) * cw, y: top, width: Math.max(cw, 1), height: side }));
        cross.push(...flag(on.units[b].label, left + (b - c0 + 0.5) * cw, top + side + 4, -90));
      }
    }

    function flag(text, x, y, turn) {
      const words = node("text", { class: "tick flag", x, y, "text-anchor": "end", "dominant-baseline": "central", transform: `rotate(${turn} ${x} ${y})` }, drawing.short(text, Math.floor(shape.left / 6.2)));
      const box = words.getBBox();
      const back = node("rect", { class: "flag-back", x: box.x - 2, y: box.y, width: box.width + 4, height: box.height, transform: `rotate(${turn} ${x} ${y})` });
      svg.append(words);
      return [back, words];
    }

    function under(event) {
      if (!shape) return null;
      const box = svg.getBoundingClientRect();
      const { left, top, side, cw, ch, span: [r0, , c0] } = shape;
      const x = event.clientX - box.left - left, y = event.clientY - box.top - top;
      if (x < 0 || y < 0 || x >= side || y >= side) return null;
      return [r0 + Math.floor(y / ch), c0 + Math.floor(x / cw)];
    }

    const spot = (event) => { const box = svg.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    svg.addEventListener("pointermove", (event) => {
      if (drag && drag.kind === kind) {
        drag.to = spot(event);
        drag.moved ||= Math.hypot(drag.to[0] - drag.from[0], drag.to[1] - drag.from[1]) > 6;
        drag.end = under(event) || drag.end;
      }
      point(under(event), event);
    });
    svg.addEventListener("pointerleave", () => { if (!drag) point(null); });
    svg.addEventListener("pointerdown", (event) => {
      const at = under(event);
      if (!at || event.button !== 0) return;
      drag = { kind, at, end: at, from: spot(event), to: spot(event), moved: false };
      if (event.pointerType === "mouse") svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", () => {
      if (!drag || drag.kind !== kind) return;
      const { at, end, moved } = drag;
      drag = null;
      pressed = moved ? null : at;
      if (!moved) return;
      const rows = [at[0], end[0]].sort((p, q) => p - q), columns = [at[1], end[1]].sort((p, q) => p - q);
      if (rows[1] > rows[0] && columns[1] > columns[0]) view.change({ zoom: [rows[0], rows[1] + 1, columns[0], columns[1] + 1] });
      else pointer();
    });
    svg.addEventListener("pointercancel", () => { drag = null; });
    // Which clicks are one double click the browser alone knows; they chose tokens: what was chosen before them stays.
    svg.addEventListener("click", (event) => {
      if (!pressed) return;
      if (event.detail <= 1) before = view.now.token;
      choose(pressed);
      pressed = null;
    });
    svg.addEventListener("dblclick", () => view.change({ zoom: null, token: before }));
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!event.shiftKey || !by) return;
      event.preventDefault();
      event.stopPropagation();
      const size = axis().units.length;
      const [r0, , c0] = window_();
      const [a, b] = hover || [r0, c0];
      point([Math.min(size - 1, Math.max(0, a + by[0])), Math.min(size - 1, Math.max(0, b + by[1]))]);
    });
    return { kind, draw, pointer };
  }

  function choose([a]) {
    const { first } = axis().units[a];
    view.change({ token: view.now.token === first ? -1 : first });
  }

  function point(at, event) {
    if (!reading.held(view.now.layer)) at = null; // a layer that is not unpacked yet has nothing to tell
    hover = at;
    for (const each of plots) each.pointer();
    for (const listener of listeners) listener(at, event);
  }

  // What stands at (a, b), in words.
  function words(a, b) {
    const { layer, head } = view.now;
    const on = axis();
    const size = on.units.length;
    const one = on.units[a], other = on.units[b];
    const { codes, attention: values } = matrices();
    const relative = a === b ? reading.diagonal(layer, head, one) : reading.value(codes[a * size + b]);
    const lines = [];
    if (values) lines.push(["attention", `${drawing.number(values[a * size + b])}`]);
    lines.push(["similarity", `${relative.toFixed(about.digits).replace("-", "−")} of the largest, ${drawing.number(relative * about.scales[layer][head])}`]);
    if (about.relations.length && a !== b && codes[a * size + b] > reading.above(view.now.theta)) lines.push(["high pair:", relations.words(relations.of(one, other))]);
    return { one, other, lines };
  }

  function draw() {
    document.getElementById("unzoom").hidden = !view.now.zoom;
    for (const each of plots) each.draw();
  }

  return { start, draw, similarity, attention, crop, window: window_, marks, axis, words, point, listen: (listener) => { listeners = [...listeners, listener]; } };
})();
