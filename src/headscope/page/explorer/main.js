// -- controls, keys, and the order in which things are drawn ------------------------------------------------------------
(() => {
  const WORDS = { values: () => "scalar products of outputs", high: relations.high, lines: () => "lines masked", regions: () => "means between blocks" };
  const by = (id) => document.getElementById(id);
  let about = null;

  function controls() {
    for (const id of ["layer", "head"]) by(id).addEventListener("change", () => view.change({ [id]: Number(by(id).value) }));
    for (const id of ["diagonal", "raw", "words", "hide", "segments"]) by(id)?.addEventListener("change", () => view.change({ [id]: by(id).checked }));
    for (const name of ["view", "kind", "pairs"]) for (const radio of document.querySelectorAll(`[name=${name}]`)) radio.addEventListener("change", () => view.change({ [name]: radio.value }));
    for (const id of ["theta", "tau"]) {
      if (!by(id)) continue;
      by(id).addEventListener("input", () => view.change({ [id]: view.snap(Number(by(id).value)) }));
      by(`${id}-number`).addEventListener("change", () => {
        const typed = by(`${id}-number`).valueAsNumber; // of nothing, or nonsense, NaN
        view.change({ [id]: Number.isFinite(typed) && typed >= 0 ? view.snap(typed) : view.now[id] });
      });
    }
    by("help-button").addEventListener("click", () => by("help").showModal());
    by("help-close").addEventListener("click", () => by("help").close()); // a sandboxed frame submits no form
    // Not by the address, which holds the view, and which in a notebook's frame is the notebook's.
    document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); by("main").focus(); });
  }

  function show(now) {
    for (const option of by("head").options) option.disabled = !about.present[now.layer][option.value];
    by("layer").value = now.layer;
    by("head").value = now.head;
    for (const id of ["diagonal", "raw", "words", "hide", "segments"]) if (by(id)) by(id).checked = now[id];
    for (const name of ["view", "kind", "pairs"]) for (const radio of document.querySelectorAll(`[name=${name}]`)) radio.checked = radio.value === now[name];
    for (const id of ["theta", "tau"]) {
      if (!by(id)) continue;
      by(id).value = now[id];
      by(`${id}-number`).value = now[id];
    }
    by("head-title").textContent = view.name();
    by("similarity-words").textContent = `${WORDS[now.view]()}${now.raw ? ", one scale for the layer" : ""}`;
  }

  // -- keys -------------------------------------------------------------------------------------------------------------
  const step = (key, by_, size) => view.change({ [key]: Math.min(size - 1, Math.max(0, view.now[key] + by_)) });
  // To the next head that the layer has.
  function stepHead(by_) {
    const present = about.present[view.now.layer];
    let head = view.now.head + by_;
    while (head >= 0 && head < about.matrices && !present[head]) head += by_;
    if (present[head]) view.change({ head });
  }
  const flip = (key) => view.change({ [key]: !view.now[key] });
  const nudge = (key, by_) => by(key) && view.change({ [key]: view.snap(Math.max(0, view.now[key] + by_)) });
  const next = (key, values) => view.change({ [key]: values[(values.indexOf(view.now[key]) + 1) % values.length] });
  let before = 0; // the head shown before the sum
  const KEYS = {
    ArrowLeft: () => stepHead(-1), ArrowRight: () => stepHead(1),
    ArrowUp: () => step("layer", -1, about.layers.length), ArrowDown: () => step("layer", 1, about.layers.length),
    s: () => { if (view.now.head === about.sum) view.change({ head: before }); else { before = view.now.head; view.change({ head: about.sum }); } },
    d: () => flip("diagonal"), r: () => flip("raw"), w: () => flip("words"), x: () => flip("hide"),
    g: () => { if (by("segments")) flip("segments"); },
    v: () => next("view", about.attention ? ["values", "high", "lines", "regions"] : ["values", "high"]),
    n: () => next("pairs", relations.states()),
    a: () => about.attention && next("kind", ["similarity", "attention"]),
    "[": () => nudge("theta", -0.01), "]": () => nudge("theta", 0.01), ",": () => nudge("tau", -0.01), ".": () => nudge("tau", 0.01),
    p: () => through.toggle(), t: () => by("theme").click(), "?": () => by("help").showModal(),
    Escape: () => { through.stop(); view.change({ token: -1, zoom: null }); },
  };
  const TYPED = "input:not([type=checkbox], [type=radio]), select, textarea";

  function keys() {
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || by("help").open || event.target.closest?.(TYPED)) return;
      const act = KEYS[event.key] ?? KEYS[event.key.toLowerCase()]; // with Caps Lock too
      // Arrows with shift are a map's, those on one of several choices go to the next of them.
      if (!act || (event.key.startsWith("Arrow") && (event.shiftKey || event.target.closest?.("[type=radio]")))) return;
      event.preventDefault();
      act();
    });
  }

  // -- the word beside the pointer --------------------------------------------------------------------------------------
  function tips() {
    const tip = by("tip");
    maps.listen((at, event) => {
      tip.hidden = !at || !event;
      const readout = by("readout");
      readout.replaceChildren();
      if (!at) return;
      const { one, other, lines } = maps.words(...at);
      const say = (box) => {
        const title = base.element("strong", "", box);
        for (const [k, unit] of [one, other].entries()) {
          if (k) title.append(" · ");
          base.element("bdi", drawing.short(unit.label, 24), title);
          base.element("sub", unit.first, title);
        }
        for (const [label, value] of lines) base.element("span", ` ${label} ${value}`, box);
      };
      say(readout);
      if (!event) return;
      tip.replaceChildren();
      say(tip);
      const left = Math.min(event.clientX + 14, base.root.clientWidth - tip.offsetWidth - 8);
      const below = event.clientY + 18;
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 12 : below}px`;
    });
  }

  async function draw(now) {
    show(now);
    await reading.unpack(now.layer);
    maps.draw();
    text.draw();
    overview.draw();
    through.draw();
  }

  async function open() {
    const held = JSON.parse(by("data").textContent);
    about = reading.start(held);
    relations.start(about);
    base.themes();
    view.start(about);
    for (const each of [overview, maps, text, through, saving]) each.start(about);
    controls();
    keys();
    tips();
    view.listen(draw);
    const redraw = () => view.change({});
    new MutationObserver(redraw).observe(base.root, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    await draw(view.now);
    base.root.dataset.ready = "head";
    for (let layer = 0; layer < about.layers.length; layer++) {
      await reading.unpack(layer);
      overview.layer(layer);
      await new Promise((go) => { setTimeout(go); }); // the page stays answerable while the rest is unpacked
    }
    view.change({});
    base.root.dataset.ready = "all";
  }

  // For the console: the same tables as in Python, of what is shown.
  globalThis.headscope = {
    state: () => ({ ...view.now, name: view.name() }),
    show: (patch) => view.change(patch),
    pairs: () => text.pairs().map(({ token_i, token_j, index_i, index_j, value, relative, relation }) => ({ token_i, token_j, index_i, index_j, value, relative, relation })),
    lines: () => reading.lines(view.now.layer, view.now.head, view.now.tau),
    blocks: () => reading.blocks(view.now.layer, view.now.head, view.now.tau),
    regions: () => reading.regions(view.now.layer, view.now.head, view.now.tau),
    dominant: () => reading.dominant(view.now.layer, view.now.head, view.now.theta),
  };

  document.addEventListener("DOMContentLoaded", open);
})();
