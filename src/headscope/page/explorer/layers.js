// -- one token from layer to layer --------------------------------------------------------------------------------------
const through = (() => {
  const PAUSE = 900;
  const BEST = 4;
  let about = null;
  let timer = null;
  const rows = [];

  function start(data) {
    about = data;
    const box = document.getElementById("strips");
    about.layers.forEach((layer, l) => {
      const row = base.element("div", "", box);
      row.className = "strip";
      row.setAttribute("role", "listitem");
      const button = base.element("button", `L${layer}`, row);
      button.type = "button";
      button.addEventListener("click", () => view.change({ layer: l }));
      row.append(document.createElement("canvas"));
      base.element("span", "", row).className = "partners";
      row.querySelector("canvas").addEventListener("pointermove", (event) => {
        const box_ = event.target.getBoundingClientRect();
        const on = maps.axis();
        const b = Math.min(on.units.length - 1, Math.max(0, Math.floor(((event.clientX - box_.left) / box_.width) * on.units.length)));
        if (view.now.token >= 0 && on.of[view.now.token] >= 0) maps.point([on.of[view.now.token], b]);
      });
      row.querySelector("canvas").addEventListener("pointerleave", () => maps.point(null));
      row.querySelector("canvas").addEventListener("click", () => view.change({ layer: l }));
      rows.push(row);
    });
    document.getElementById("play").addEventListener("click", toggle);
  }

  // The chosen token's row of C in a layer, over the largest of that matrix.
  function row(l) {
    const { head, token, words, hide, diagonal } = view.now;
    const on = reading.axis(words, hide);
    const a = on.of[token];
    if (a < 0 || !about.present[l][head]) return null;
    const values = new Float32Array(on.units.length);
    on.units.forEach((unit, b) => {
      if (a === b) { values[b] = diagonal ? reading.diagonal(l, head, unit) : 0; return; }
      let highest = -32768;
      for (const i of on.units[a].members) for (const j of unit.members) highest = Math.max(highest, reading.code(l, head, i, j));
      values[b] = reading.value(highest);
    });
    return { on, a, values };
  }

  function draw() {
    const { token, head, theta } = view.now;
    const note = document.getElementById("through-note");
    document.getElementById("strips").classList.toggle("empty", token < 0);
    for (const button of document.querySelectorAll("[data-save=layers]")) button.disabled = token < 0;
    if (token < 0) {
      note.textContent = "Click a token to follow what is similar to it; Play follows the dominant one.";
      return;
    }
    const which = head === about.sum ? "the sum of each layer’s heads" : `head ${about.heads[head]} of each layer, which share only their number`;
    note.textContent = `Similarity to ${drawing.quoted(about.tokens[token])} (${token}) in ${which}.`;
    rows.forEach((element, l) => {
      element.classList.toggle("current", l === view.now.layer);
      if (!reading.held(l)) return;
      const found = row(l);
      const partners = element.querySelector(".partners");
      partners.replaceChildren();
      element.classList.toggle("absent", !about.present[l][head]);
      if (!about.present[l][head]) partners.textContent = "no such head";
      if (!found) return;
      drawing.paint(element.querySelector("canvas"), found.values, 1, found.values.length, drawing.scale("similarity", 1, base.theme()));
      const related = (b) => relations.of(found.on.units[found.a], found.on.units[b]);
      const best = [...found.values.keys()].filter((b) => b !== found.a && found.values[b] > theta && relations.shown(related(b))).sort((p, q) => found.values[q] - found.values[p]).slice(0, BEST);
      for (const b of best) {
        const each = base.element("bdi", drawing.short(found.on.units[b].label, 12), partners);
        base.element("sub", found.on.units[b].first, each);
        if (relations.noise(related(b))) { each.className = "noise"; each.title = "noise"; }
        partners.append(" ");
      }
      if (!best.length) partners.textContent = "no partner";
    });
  }

  function toggle() {
    if (timer) return stop();
    if (view.now.token < 0) {
      const found = reading.held(view.now.layer) && reading.dominant(view.now.layer, view.now.head, view.now.theta);
      view.change({ token: found ? about.kind.indexOf(found.kind) : 0 });
    }
    timer = setInterval(() => view.change({ layer: (view.now.layer + 1) % about.layers.length }), PAUSE);
    label();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    label();
  }

  function label() {
    const button = document.getElementById("play");
    button.textContent = timer ? "Pause" : "Play";
    button.setAttribute("aria-pressed", String(timer !== null));
  }

  return { start, draw, row, toggle, stop };
})();
