// -- the text, its pairs as arcs and shared colours, and the tables beside it -------------------------------------------
const text = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MOST_ARCS = 250;
  const MOST_ROWS = 200;
  let about = null;
  const spans = [];
  let all = false; // every row of the table was asked for
  let every = []; // the head's high pairs
  let pairs = []; // those of them that are shown

  function start(data) {
    about = data;
    const box = document.getElementById("text");
    about.pieces.forEach(([gap, shown], i) => {
      if (gap) box.append(gap);
      const made = base.element("bdi", shown, box);
      made.className = about.special[i] ? "tok special" : "tok";
      made.dataset.i = i;
      made.tabIndex = -1;
      spans.push(made);
    });
    const at = (event) => event.target.closest("[data-i]");
    box.addEventListener("click", (event) => { if (at(event)) pick(Number(at(event).dataset.i)); });
    box.addEventListener("pointerover", (event) => { if (at(event)) hint(Number(at(event).dataset.i)); });
    box.addEventListener("pointerleave", () => hint(-1));
    box.addEventListener("keydown", (event) => {
      if ((event.key === "Enter" || event.key === " ") && at(event)) { event.preventDefault(); pick(Number(at(event).dataset.i)); }
    });
    spans[0].tabIndex = 0;
    document.getElementById("all-pairs").addEventListener("click", () => { all = true; table(); });
    const rows = document.getElementById("pairs").tBodies[0];
    rows.addEventListener("pointerover", (event) => { const row = event.target.closest("tr[data-k]"); if (row) { const pair = pairs[row.dataset.k]; maps.point([pair.a, pair.b]); } });
    rows.addEventListener("pointerleave", () => maps.point(null));
    rows.addEventListener("click", (event) => { const row = event.target.closest("tr[data-k]"); if (row) pick(pairs[row.dataset.k].index_i); });
    new ResizeObserver(arcs).observe(document.getElementById("textbox"));
    maps.listen((at) => {
      const on = maps.axis();
      for (const span of document.querySelectorAll(".tok.pointed")) span.classList.remove("pointed");
      if (at) for (const unit of at) for (const i of on.units[unit].members) spans[i].classList.add("pointed");
    });
  }

  const pick = (i) => view.change({ token: view.now.token === i ? -1 : i });

  // -- colours: one for each token value that takes part in a pair, as in the paper's Fig. 9 ----------------------------
  function draw() {
    const { layer, head, theta, token, words, hide } = view.now;
    if (!reading.held(layer)) return;
    const on = reading.axis(words, hide);
    every = reading.pairs(layer, head, theta, on);
    pairs = every.filter((pair) => relations.shown(pair.relation));
    const inPair = new Set();
    for (const pair of pairs) { inPair.add(pair.a); inPair.add(pair.b); }
    // Equal tokens, or words, share a colour: eight hues, then the same ones darker, then darker again.
    const hues = new Map();
    const value = (unit) => (on.words ? unit.label : about.kind[unit.first]);
    on.units.forEach((unit, k) => { if (inPair.has(k) && !hues.has(value(unit))) hues.set(value(unit), hues.size); });
    const chosen = token < 0 ? -1 : on.of[token];
    const near = new Map(); // unit → its pair with the chosen one
    if (chosen >= 0) for (const pair of pairs) { if (pair.a === chosen) near.set(pair.b, pair); else if (pair.b === chosen) near.set(pair.a, pair); }
    let before = 0; // the segment of the last token that is in one
    spans.forEach((span, i) => {
      const unit = on.of[i];
      const segment = view.now.segments && about.segment.length ? about.segment[i] : -1;
      span.classList.toggle("cut", segment > before);
      before = Math.max(before, segment);
      span.classList.toggle("hidden", unit < 0);
      span.classList.toggle("chosen", chosen >= 0 && unit === chosen);
      const partner = near.has(unit);
      span.classList.toggle("partner", partner);
      span.classList.toggle("noise", partner && relations.noise(near.get(unit).relation));
      span.classList.toggle("in", token < 0 && inPair.has(unit));
      if (token < 0 && inPair.has(unit)) {
        const number = hues.get(value(on.units[unit]));
        span.style.setProperty("--hue", (20 + 135 * (number % 8)) % 360);
        span.style.setProperty("--tier", Math.floor(number / 8) % 3);
      }
      if (partner) span.style.setProperty("--share", `${Math.round(20 + 70 * near.get(unit).relative)}%`);
      span.tabIndex = (token >= 0 ? i === token : i === 0) ? 0 : -1;
    });
    all = all && pairs.length <= 20000;
    table();
    blocks();
    arcs();
    card(on, chosen);
    const drawn = Math.min(pairs.length, MOST_ARCS);
    document.getElementById("text-note").textContent = token >= 0 ? "" : pairs.length > drawn ? `the ${drawn} strongest of ${base.count(pairs.length)} ${relations.adjective()}pairs as arcs; click a token` : `${relations.adjective()}pairs as arcs, equal tokens in one colour; click a token`;
  }

  function arcs() {
    const svg = document.getElementById("arcs");
    const box = document.getElementById("textbox");
    // A folded notebook cell or a tab not yet opened gives the text no place on the page; it is drawn when it has one.
    if (!about || !reading.held(view.now.layer) || !box.getClientRects().length) return;
    svg.setAttribute("width", box.clientWidth);
    svg.setAttribute("height", 0); // else the box never becomes lower than it was
    svg.setAttribute("height", box.scrollHeight);
    const { token } = view.now;
    const on = maps.axis();
    const chosen = token < 0 ? -1 : on.of[token];
    const wanted = token < 0 ? strongest() : pairs.filter((pair) => pair.a === chosen || pair.b === chosen); // a hidden one has none
    const from = box.getBoundingClientRect();
    const places = new Map();
    const place = (unit) => {
      if (!places.has(unit)) {
        const span = spans[on.units[unit].first];
        const [first] = span.getClientRects(); // a word may be broken over two lines
        places.set(unit, [first.left + first.width / 2 - from.left, first.top - from.top + 1]);
      }
      return places.get(unit);
    };
    svg.replaceChildren(...wanted.map((pair) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", arc(place(pair.a), place(pair.b)));
      path.setAttribute("class", `arc${chosen >= 0 ? " strong" : ""}${relations.noise(pair.relation) ? " noise" : ""}`);
      path.style.setProperty("--strength", pair.relative.toFixed(3));
      return path;
    }));
  }

  const strongest = () => (pairs.length <= MOST_ARCS ? pairs : [...pairs].sort((p, q) => q.code - p.code || p.index_i - q.index_i || p.index_j - q.index_j).slice(0, MOST_ARCS));

  // Above the words within a line, a slanting curve between lines.
  function arc([x0, y0], [x1, y1]) {
    if (Math.abs(y1 - y0) < 4) {
      const high = Math.min(15, 5 + Math.abs(x1 - x0) * 0.06);
      return `M${x0} ${y0}C${x0} ${y0 - high} ${x1} ${y1 - high} ${x1} ${y1}`;
    }
    return `M${x0} ${y0}C${x0} ${y0 - 16} ${x1} ${y1 - 16 - (y1 - y0) * 0.15} ${x1} ${y1}`;
  }

  // -- tables -----------------------------------------------------------------------------------------------------------
  function table() {
    const body = document.getElementById("pairs").tBodies[0];
    const { raw } = view.now;
    const shown = all ? pairs : pairs.slice(0, MOST_ROWS);
    relations.tell(every);
    document.getElementById("value-column").textContent = raw ? "C" : "C / max";
    body.replaceChildren(...shown.map((pair, k) => {
      const row = document.createElement("tr");
      row.dataset.k = k;
      row.className = relations.noise(pair.relation) ? "noise" : "";
      for (const label of [pair.token_i, pair.token_j]) base.element("bdi", drawing.short(label, 24), base.element("td", "", row)).title = label;
      for (const number of [pair.index_i, pair.index_j, raw ? drawing.number(pair.value) : pair.relative.toFixed(about.digits)]) base.element("td", number, row);
      if (about.relations.length) base.element("td", relations.words(pair.relation), row);
      return row;
    }));
    const button = document.getElementById("all-pairs");
    button.hidden = shown.length === pairs.length;
    button.textContent = `Show all ${base.count(pairs.length)}`;
  }

  function blocks() {
    const held = document.getElementById("blocks");
    if (!held) return;
    const { layer, head, tau } = view.now;
    const cut = reading.blocks(layer, head, tau);
    const means = reading.regions(layer, head, tau);
    const lines = new Map(reading.lines(layer, head, tau).map((line) => [line.index, line]));
    document.getElementById("blocks-title").textContent = `${base.count(lines.size)} line${lines.size === 1 ? "" : "s"}, ${base.count(cut.length)} block${cut.length === 1 ? "" : "s"}`;
    held.tBodies[0].replaceChildren(...cut.map((block, k) => {
      const row = document.createElement("tr");
      base.element("td", k, row);
      base.element("td", block.stop - block.start === 1 ? block.start : `${block.start}–${block.stop - 1}`, row);
      const line = lines.get(block.stop - 1);
      base.element("bdi", line ? drawing.short(line.token, 16) : "–", base.element("td", "", row)).title = line ? `draws ${line.received.toFixed(about.digits)} of the strongest` : "the text ends";
      base.element("td", means[k][k] === null ? "–" : means[k][k].toFixed(about.digits).replace("-", "−"), row);
      return row;
    }));
  }

  // -- the chosen token -------------------------------------------------------------------------------------------------
  function card(on, chosen) {
    const box = document.getElementById("token-card");
    const { token, layer, head, theta } = view.now;
    box.hidden = token < 0;
    if (token < 0) { overview.mark([]); return; }
    box.replaceChildren();
    const title = base.element("h3", "", box);
    base.element("bdi", on.words && chosen >= 0 ? on.units[chosen].label : about.tokens[token], title);
    base.element("span", ` token ${token}, sentence ${about.sentence[token]}`, title).className = "about";
    const close = base.element("button", "Close", title);
    close.type = "button";
    close.addEventListener("click", () => view.change({ token: -1 }));
    const partners = pairs.filter((pair) => pair.a === chosen || pair.b === chosen).sort((p, q) => q.code - p.code);
    const first = base.element("p", chosen < 0 ? "This token is hidden." : found_(partners), box);
    for (const pair of partners.slice(0, 40)) {
      const other = on.units[pair.a === chosen ? pair.b : pair.a];
      const made = chip(first, drawing.short(other.label, 20), `${other.first}`, pair.relative.toFixed(2), () => view.change({ token: other.first }));
      made.classList.toggle("noise", relations.noise(pair.relation));
      if (about.relations.length) made.title = relations.words(pair.relation);
    }
    if (partners.length > 40) first.append(` and ${base.count(partners.length - 40)} more`);
    const here = reading.dominant(layer, head, theta);
    base.element("p", here ? `Most pairs of ${view.name()} include ${drawing.quoted(here.token)}: ${base.count(here.count)} of ${base.count(here.pairs)}.` : `${view.name()} has no pairs.`, box).className = "dominant-here";
    const list = base.element("p", "", box);
    list.id = "dominant-list";
    const found = dominated(about.kind[token], theta);
    if (!found) { list.textContent = "Unpacking the other layers …"; return; }
    list.append(found.length ? `${drawing.quoted(about.tokens[token])} is the dominant token of ${base.count(found.length)} head${found.length === 1 ? "" : "s"}: ` : `${drawing.quoted(about.tokens[token])} is the dominant token of no head.`);
    for (const [l, h, share] of found) chip(list, view.name(l, h), "", `${Math.round(100 * share)} %`, () => view.change({ layer: l, head: h }));
    overview.mark(found);
  }

  function found_(partners) {
    const kind = relations.adjective(), muted = partners.filter((pair) => relations.noise(pair.relation)).length;
    if (!partners.length) return `No ${kind}partner in ${view.name()} above θ.`;
    return `${base.count(partners.length)} ${kind}partner${partners.length === 1 ? "" : "s"} in ${view.name()}${muted && !kind ? `, ${base.count(muted)} noise` : ""}: `;
  }

  function chip(parent, label, small, value, act) {
    const made = base.element("button", "", parent);
    made.type = "button";
    made.className = "chip";
    base.element("bdi", label, made);
    if (small) base.element("sub", small, made);
    base.element("span", value, made);
    made.addEventListener("click", act);
    parent.append(" ");
    return made;
  }

  let known = { theta: -1, list: [] };
  function dominated(kind, theta) {
    if (about.layers.some((_, l) => !reading.held(l))) return null;
    if (known.theta !== theta) {
      known = { theta, list: [] };
      for (let l = 0; l < about.layers.length; l++) for (let h = 0; h < about.sum; h++) known.list.push([l, h, reading.dominant(l, h, theta)]);
    }
    return known.list.filter(([, , found]) => found && found.kind === kind).map(([l, h, found]) => [l, h, found.count / found.pairs]);
  }

  function hint(i) {
    const on = maps.axis();
    const unit = i < 0 ? -1 : on.of[i];
    const { token } = view.now;
    if (unit < 0) return maps.point(null);
    const other = token >= 0 && on.of[token] >= 0 ? on.of[token] : unit;
    maps.point([other, unit]);
  }

  return { start, draw, spans, pairs: () => pairs };
})();
