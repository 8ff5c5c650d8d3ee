// -- small maps of all heads --------------------------------------------------------------------------------------------
const overview = (() => {
  const LARGEST = 64;
  let about = null;
  const thumbs = []; // by layer and head
  let drawn = [];

  function start(data) {
    about = data;
    const grid = document.getElementById("thumbs");
    grid.style.setProperty("--columns", about.matrices);
    grid.style.setProperty("--rows", about.layers.length);
    base.element("span", "", grid).className = "corner";
    [...about.heads.map((head) => `H${head}`), "sum"].forEach((name) => { base.element("span", name, grid).className = "column"; });
    about.layers.forEach((layer, l) => {
      base.element("span", `L${layer}`, grid).className = "row";
      thumbs.push([]);
      for (let h = 0; h < about.matrices; h++) {
        if (!about.present[l][h]) {
          base.element("span", "", grid).className = "absent";
          thumbs[l].push(null);
          continue;
        }
        const button = base.element("button", "", grid);
        button.type = "button";
        button.className = "thumb";
        button.tabIndex = -1;
        button.setAttribute("aria-label", view.name(l, h));
        button.title = view.name(l, h);
        button.append(document.createElement("canvas"));
        button.addEventListener("click", () => view.change({ layer: l, head: h }));
        thumbs[l].push(button);
      }
    });
  }

  // Of every square of tokens that becomes one dot, the strongest value: single high elements stay visible.
  function pooled(layer, head) {
    const { n, upper } = about;
    const by = Math.ceil(n / LARGEST), size = Math.ceil(n / by);
    const held = reading.held(layer);
    if (view.now.kind === "attention") {
      if (head === about.sum) return pool(reading.attention(layer, head, reading.axis(false, false)), by, size);
      const squares = new Float32Array(size * size);
      const from = head * n * n;
      for (let i = 0, k = from; i < n; i++) {
        const row = Math.floor(i / by) * size;
        for (let j = 0; j < n; j++, k++) {
          const at = row + Math.floor(j / by), v = held.maps[k];
          if (v > squares[at]) squares[at] = v;
        }
      }
      return { values: squares.map((c) => (c / about.levels) ** 2), size };
    }
    const values = new Float32Array(size * size).fill(-Infinity);
    for (let i = 0, k = head * upper; i < n; i++) {
      for (let j = i + 1; j < n; j++, k++) {
        const at = Math.floor(i / by) * size + Math.floor(j / by), v = held.similarity[k];
        if (v > values[at]) values[at] = v;
      }
    }
    for (let a = 0; a < size; a++) {
      for (let b = a; b < size; b++) {
        const at = a * size + b;
        values[at] = values[at] === -Infinity ? 0 : reading.value(values[at]);
        values[b * size + a] = values[at];
      }
    }
    return { values, size };
  }

  function pool(whole, by, size) {
    const values = new Float32Array(size * size);
    for (let i = 0; i < about.n; i++) for (let j = 0; j < about.n; j++) {
      const at = Math.floor(i / by) * size + Math.floor(j / by), v = whole[i * about.n + j];
      if (v > values[at]) values[at] = v;
    }
    return { values, size };
  }

  function layer(l) {
    const key = [view.now.kind, view.now.raw, base.theme()].join();
    if (drawn[l] === key || !reading.held(l)) return;
    drawn[l] = key;
    for (let h = 0; h < about.matrices; h++) if (thumbs[l][h]) paint(thumbs[l][h].firstChild, l, h, base.theme());
  }

  function paint(canvas, l, h, theme) {
    const { values, size } = pooled(l, h);
    const { kind, raw } = view.now;
    let top = 1;
    if (kind === "attention") top = raw ? (h === about.sum ? about.present[l].filter(Boolean).length - 1 : 1) : Math.max(...values) || 1;
    else if (raw && h !== about.sum) top = Math.max(...about.scales[l].slice(0, -1)) / about.scales[l][h];
    drawing.paint(canvas, values, size, size, drawing.scale(kind, top, theme));
  }

  let marked = [];
  function mark(list) {
    for (const button of marked) button.classList.remove("dominant");
    marked = list.map(([l, h]) => thumbs[l][h]);
    for (const button of marked) button.classList.add("dominant");
  }

  let current = null;
  function draw() {
    about.layers.forEach((_, l) => layer(l));
    if (current) { current.classList.remove("current"); current.removeAttribute("aria-current"); current.tabIndex = -1; }
    current = thumbs[view.now.layer][view.now.head];
    current.classList.add("current");
    current.setAttribute("aria-current", "true");
    current.tabIndex = 0;
    const words = view.now.kind === "attention" ? "Attention of each head, row looks at column." : "Similarity of each head’s outputs: red alike, blue opposed.";
    const by = Math.ceil(about.n / LARGEST);
    document.getElementById("overview-note").textContent = `${words}${by > 1 ? ` Each dot is the strongest of ${by} × ${by} elements.` : ""}`;
  }

  return { start, draw, layer, mark, paint };
})();
