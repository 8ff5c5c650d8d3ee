// -- drawing: colours, maps with token axes, and the same as SVG --------------------------------------------------------
const drawing = (() => {
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  const SIGNED = {
    light: ["#2166ac", "#67a9cf", "#d1e5f0", "#fbfaf8", "#fddbc7", "#ef8a62", "#b2182b"],
    dark: ["#7fbdf0", "#3f78ad", "#23405c", "#1b1e24", "#63372a", "#c0603f", "#ff9d73"],
  };
  const LEAST = 1.6; // pixels of a dot
  const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));

  function table(stops) {
    const made = [];
    for (let k = 0; k < 256; k++) {
      const at = (k / 255) * (stops.length - 1);
      const below = Math.min(Math.floor(at), stops.length - 2);
      const low = channels(stops[below]), high = channels(stops[below + 1]);
      made.push(low.map((c, x) => Math.round(c + (high[x] - c) * (at - below))));
    }
    return made;
  }
  const tables = { attention: table(VIRIDIS), light: table(SIGNED.light), dark: table(SIGNED.dark) };
  const hex = (rgb) => `#${rgb.map((c) => c.toString(16).padStart(2, "0")).join("")}`;

  // A scale turns a number into one of 256 colours: attention from 0 to top by its square root, as a few elements have
  // nearly all of it; similarity from −top to top.
  function scale(kind, top, theme) {
    const colours = kind === "attention" ? tables.attention : tables[theme];
    const index = kind === "attention"
      ? (v) => Math.max(0, Math.min(255, Math.round(Math.sqrt(v / top) * 255)))
      : (v) => Math.max(0, Math.min(255, Math.round((v / top) * 127.5 + 127.5)));
    const stops = kind === "attention" ? VIRIDIS : SIGNED[theme];
    return { kind, top, colours, index, stops };
  }

  // Values are rows × columns; NaN stays blank.
  function paint(canvas, values, rows, columns, with_) {
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    for (let k = 0; k < rows * columns; k++) {
      const v = values[k];
      if (Number.isNaN(v)) continue;
      const [r, g, b] = with_.colours[with_.index(v)];
      image.data.set([r, g, b, 255], k * 4);
    }
    context.putImageData(image, 0, 0);
  }

  // Where a dot stands in each cell that is marked as noise: half as wide and high as the cell, but still to be seen.
  function spots(marks, rows, columns, x, y, width, height) {
    const w = width / columns, h = height / rows;
    const wide = Math.max(w / 2, Math.min(w, LEAST)), high = Math.max(h / 2, Math.min(h, LEAST));
    const made = [];
    for (let k = 0; k < rows * columns; k++) {
      if (marks[k] === relations.DOT) made.push([x + ((k % columns) + 0.5) * w - wide / 2, y + (Math.floor(k / columns) + 0.5) * h - high / 2, wide, high]);
    }
    return made;
  }

  function dots(canvas, marks, rows, columns, side) {
    canvas.width = canvas.height = Math.round(side * devicePixelRatio);
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(canvas).color;
    for (const spot of spots(marks, rows, columns, 0, 0, canvas.width, canvas.height)) context.fillRect(...spot);
  }

  // Isolated, so that a token which turns the direction of writing turns nothing but itself.
  const quoted = (token) => `“\u2068${token}\u2069”`;
  const short = (label, most = 14) => ([...label].length > most ? `${[...label].slice(0, most - 1).join("")}…` : label);

  // Where labels stand along an axis of so many cells: as many as fit, evenly.
  function ticks(from, to, pixels, each = 9) {
    const every = Math.max(1, Math.ceil(((to - from) * each) / pixels));
    const made = [];
    for (let k = from; k < to; k += every) made.push(k);
    return made;
  }

  // -- SVG as text ------------------------------------------------------------------------------------------------------
  // What XML cannot hold (control characters, halves of surrogate pairs) is shown as the replacement character.
  const plain = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").toWellFormed();
  const xml = (text) => plain(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const round = (x) => Math.round(x * 100) / 100;

  function label(x, y, text, { size = 8, anchor = "start", turn = 0, fill = "#1d1f24", weight = "", family = "", width = 0 } = {}) {
    const turned = turn ? ` transform="rotate(${turn} ${round(x)} ${round(y)})"` : "";
    const styled = `${weight ? ` font-weight="${weight}"` : ""}${family ? ` font-family="${xml(family)}"` : ""}`;
    // Where the reader's font is another one, words still end where the next begins.
    const fitted = width ? ` textLength="${round(width)}" lengthAdjust="spacingAndGlyphs"` : "";
    return `<text x="${round(x)}" y="${round(y)}" font-size="${size}" text-anchor="${anchor}" fill="${fill}"${styled}${fitted}${turned}>${xml(text)}</text>`;
  }

  // Cells of one colour become one path, runs of a row one rectangle: vectors, and not many bytes.
  function cells(values, rows, columns, with_, x, y, width, height) {
    const paths = new Map();
    const w = width / columns, h = height / rows;
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns;) {
        const v = values[r * columns + c];
        let end = c + 1;
        if (Number.isNaN(v)) { c = end; continue; }
        const index = with_.index(v);
        while (end < columns && !Number.isNaN(values[r * columns + end]) && with_.index(values[r * columns + end]) === index) end++;
        const run = `M${round(x + c * w)} ${round(y + r * h)}h${round((end - c) * w)}v${round(h)}h${round((c - end) * w)}z`;
        paths.set(index, (paths.get(index) || "") + run);
        c = end;
      }
    }
    return [...paths].map(([index, d]) => `<path fill="${hex(with_.colours[index])}" shape-rendering="crispEdges" d="${d}"/>`).join("");
  }

  function dotted(marks, rows, columns, x, y, width, height) {
    const d = spots(marks, rows, columns, x, y, width, height).map(([left, top, w, h]) => `M${round(left)} ${round(top)}h${round(w)}v${round(h)}h${round(-w)}z`).join("");
    return d ? `<path fill="#6b707a" d="${d}"/>` : "";
  }

  function bar(with_, x, y, width, words) {
    const step = width / 64;
    let made = "";
    for (let k = 0; k < 64; k++) made += `<rect x="${round(x + k * step)}" y="${y}" width="${round(step + 0.3)}" height="6" fill="${hex(with_.colours[Math.round((k / 63) * 255)])}"/>`;
    const [low, middle, high] = ends(with_);
    return `${made}${label(x, y + 15, low)}${label(x + width / 2, y + 15, middle, { anchor: "middle" })}${label(x + width, y + 15, high, { anchor: "end" })}${label(x, y - 5, words, { weight: "600" })}`;
  }

  // What stands at the left, in the middle and at the right of a scale.
  const ends = (with_) => (with_.kind === "attention" ? [0, with_.top / 4, with_.top] : [-with_.top, 0, with_.top]).map(number);

  const number = (v) => {
    const size = Math.abs(v);
    const text = size === 0 ? "0" : size >= 100000 || size < 0.0001 ? v.toExponential(2) : size >= 100 ? v.toFixed(0) : size >= 10 ? v.toFixed(1) : String(Number(v.toFixed(size < 0.01 ? 5 : size < 0.1 ? 4 : 3)));
    return text.replace("-", "−");
  };

  function document_(width, height, body) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${round(width)}" height="${round(height)}" viewBox="0 0 ${round(width)} ${round(height)}" font-family="system-ui, 'Liberation Sans', Arial, sans-serif"><rect width="100%" height="100%" fill="#ffffff"/>${body}</svg>`;
  }

  async function png(svg, times = 3) {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width * times;
    canvas.height = image.height * times;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => { canvas.toBlob(done, "image/png"); });
  }

  return { scale, paint, dots, short, quoted, ticks, label, cells, dotted, bar, ends, number, document: document_, png, hex };
})();
