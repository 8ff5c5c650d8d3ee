// The text reads well without this script: it draws the map, and adds hints, jumps and saving.
// Data reach the document as text nodes and attributes only, never as markup.
(() => {
  const { themes, count, download } = base;
  const SEPARATOR = "==========";
  // What Python's strip() takes for white space, which is not what JavaScript's trim() does.
  const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
  const ENDS = new RegExp(`^${SPACE}|${SPACE}$`, "g");
  const FLASH = 2400;
  const EYES = .3; // of the window's height

  const around = (x, y) => ({ left: x, width: 0, top: y - 6, bottom: y + 10 });
  const fixed = (number, digits) => number === null ? "–"
    : number.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");

  // -- the text, as it stands in the page -----------------------------------------------------------------------------
  function reader(data) {
    const { edges, pieces } = data.saved;
    const starts = [0, ...data.boundaries, pieces];
    const parts = [...document.querySelectorAll(".segment")];
    const said = parts.map((part) => part.querySelector(".said"));
    said.forEach((each) => each.normalize()); // a parser splits very long runs of text

    function segmentOf(piece) {
      let low = 0, high = parts.length - 1;
      while (low < high) {
        const middle = Math.ceil((low + high) / 2);
        if (starts[middle] <= piece) low = middle; else high = middle - 1;
      }
      return low;
    }

    // Edges count code points, strings here UTF-16 units.
    function units(text, points) {
      let at = 0;
      for (let k = 0; k < points; k++) at += text.codePointAt(at) > 0xffff ? 2 : 1;
      return at;
    }

    function extent(piece) {
      const k = segmentOf(piece), text = said[k].textContent, first = edges[starts[k]];
      const from = units(text, edges[piece] - first);
      return { k, text, from, to: from + units(text.slice(from), edges[piece + 1] - edges[piece]) };
    }

    function words(piece) {
      const { text, from, to } = extent(piece);
      const all = [...text.slice(from, Math.min(to, from + 400)).trim().replace(/\s+/g, " ")];
      return all.length > 60 ? `${all.slice(0, 60).join("")}…` : all.join("");
    }

    let flashed = [], timer = 0;
    function calm() {
      clearTimeout(timer);
      for (const each of flashed) {
        each.classList.remove("flash");
        if (each.localName !== "mark") continue;
        const holder = each.parentNode;
        each.replaceWith(...each.childNodes);
        holder.normalize();
      }
      flashed = [];
    }

    // The element that holds a piece, made for the moment where a segment is one run of text.
    function holder(piece) {
      const { k, from, to } = extent(piece);
      if (data.spans) return said[k].children[piece - starts[k]];
      const node = said[k].firstChild;
      if (!node || node.nodeType !== Node.TEXT_NODE || from >= node.length) return parts[k];
      const range = document.createRange(), mark = document.createElement("mark");
      range.setStart(node, from);
      range.setEnd(node, Math.min(to, node.length));
      range.surroundContents(mark);
      return mark;
    }

    function flash(elements) {
      flashed = elements;
      for (const each of flashed) each.classList.add("flash");
      timer = setTimeout(calm, FLASH);
    }

    // Go to the first of some pieces, and flash all of them. Later ones first: that leaves places before them valid.
    function go(...wanted) {
      calm();
      const found = new Map([...new Set(wanted)].sort((a, b) => b - a).map((piece) => [piece, holder(piece)]));
      const top = found.get(wanted[0]).getBoundingClientRect().top;
      scrollTo({ top: scrollY + top - innerHeight * EYES, behavior: "instant" });
      flash([...found.values()]);
    }

    const text = (k) => said[k].textContent;
    return { parts, starts, text, words, go, flash: (element) => { calm(); flash([element]); } };
  }

  // -- from segment to segment ----------------------------------------------------------------------------------------
  function steps(book) {
    const { parts } = book, last = parts.length - 1;
    const links = [...document.querySelectorAll(".outline a")];
    const outline = document.querySelector(".outline");
    const output = document.getElementById("where");
    let jumped = null, told = -1;

    // The last segment that begins above the line where eyes are; −1 above the first.
    function seen() {
      if (jumped && Math.abs(scrollY - jumped.y) < 2) return jumped.k;
      let low = -1, high = last;
      while (low < high) {
        const middle = Math.ceil((low + high) / 2);
        if (parts[middle].getBoundingClientRect().top < innerHeight * EYES + 1) low = middle; else high = middle - 1;
      }
      return low;
    }

    function tell() {
      const k = Math.max(seen(), 0);
      if (k === told) return;
      links[told]?.removeAttribute("aria-current");
      links[k].setAttribute("aria-current", "true");
      output.textContent = `${count(k + 1)} / ${count(last + 1)}`;
      told = k;
      const top = links[k].offsetTop, below = top + links[k].offsetHeight;
      if (top < outline.scrollTop || below > outline.scrollTop + outline.clientHeight) outline.scrollTop = top - outline.clientHeight / 3;
    }

    function jump(k) {
      const to = Math.min(Math.max(k, 0), last);
      parts[to].scrollIntoView({ behavior: "instant", block: "start" });
      parts[to].focus({ preventScroll: true });
      jumped = { k: to, y: scrollY };
      book.flash(parts[to]);
      tell();
    }

    const next = () => jump(seen() + 1), previous = () => jump(seen() - 1);
    document.getElementById("next").addEventListener("click", next);
    document.getElementById("previous").addEventListener("click", previous);
    links.forEach((link, k) => link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      jump(k);
    }));
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, .scroll")) return;
      const step = { n: next, ArrowRight: next, p: previous, ArrowLeft: previous }[event.key];
      if (!step) return;
      event.preventDefault();
      step();
    });
    let waiting = false;
    addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; tell(); });
    }, { passive: true });
    tell();
  }

  // -- strengths of boundaries ----------------------------------------------------------------------------------------
  function chart(data, book, tip) {
    const plot = document.getElementById("chart");
    if (!plot) return;
    const { strengths, pieces } = data.saved;
    const chosen = new Set(data.boundaries.map((piece) => piece - 1));
    const pointer = plot.querySelector(".pointer");
    const high = (gap) => strengths[gap] ?? -Infinity;

    // The gap under the pointer. Where several are, a boundary near by, or else the highest of the pixel.
    function under(event) {
      const box = plot.getBoundingClientRect();
      const place = (x) => Math.min(Math.max(Math.round(x / box.width * pieces) - 1, 0), strengths.length - 1);
      const x = event.clientX - box.left, at = place(x);
      const most = (reach, fits) => {
        let best = -1;
        for (let gap = place(x - reach); gap <= place(x + reach); gap++) {
          if (fits(gap) && (best < 0 || high(gap) > high(best))) best = gap;
        }
        return best;
      };
      if (pieces <= box.width / 4) return at;
      const boundary = most(3, (gap) => chosen.has(gap));
      return boundary < 0 ? most(.5, () => true) : boundary;
    }

    plot.addEventListener("pointermove", (event) => {
      const gap = under(event), box = plot.getBoundingClientRect(), x = (gap + 1) / pieces * box.width;
      pointer.style.left = `${x}px`;
      pointer.hidden = false;
      const value = strengths[gap] === null ? "not considered" : `strength ${fixed(strengths[gap], 2)}`;
      tip.show([`${chosen.has(gap) ? "Boundary" : "Gap"} between ${data.piece}s ${count(gap + 1)} and ${count(gap + 2)}`,
        value, book.words(gap), book.words(gap + 1)], around(box.left + x, box.top + 4));
    });
    plot.addEventListener("pointerleave", () => { pointer.hidden = true; tip.hide(); });
    plot.addEventListener("click", (event) => { const gap = under(event); tip.hide(); book.go(gap + 1); });
  }

  // -- similarities ---------------------------------------------------------------------------------------------------
  function map(data, book, tip) {
    const box = document.getElementById("similarity");
    const canvas = box.querySelector("canvas"), at = box.querySelector(".at");
    const size = data.cells.length - 1;
    const bytes = Uint8Array.from(atob(data.codes), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const value = (row, column) => {
      const code = view.getInt16(2 * (row * size + column), true);
      return code < -32767 ? null : code * data.step;
    };
    const colours = data.colours.map((code) => [1, 3, 5].map((k) => parseInt(code.slice(k, k + 2), 16)));
    const half = (colours.length - 1) / 2;
    const image = new ImageData(size, size);
    for (let row = 0; row < size; row++) {
      for (let column = 0; column < size; column++) {
        const here = value(row, column);
        if (here === null) continue;
        const place = Math.round(half + half * Math.min(Math.max(here / data.reach, -1), 1));
        image.data.set([...colours[place], 255], 4 * (row * size + column));
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);

    function under(event) {
      const { left, top, width, height } = canvas.getBoundingClientRect();
      const cell = (place) => Math.min(Math.max(Math.floor(place * size), 0), size - 1);
      return [cell((event.clientY - top) / height), cell((event.clientX - left) / width)];
    }
    function name(cell) {
      const first = data.cells[cell], end = data.cells[cell + 1];
      const numbers = end - first > 1 ? `s ${count(first + 1)}–${count(end)}` : ` ${count(first + 1)}`;
      return `${data.piece}${numbers}: ${book.words(first)}`;
    }
    box.addEventListener("pointermove", (event) => {
      const [row, column] = under(event), here = value(row, column);
      at.setAttribute("x", column);
      at.setAttribute("y", row);
      at.setAttribute("visibility", "visible");
      const others = row === column ? [] : [name(column)];
      tip.show([here === null ? "not measured" : `similarity ${fixed(here, 3)}`, name(row), ...others], around(event.clientX, event.clientY));
    });
    box.addEventListener("pointerleave", () => { at.setAttribute("visibility", "hidden"); tip.hide(); });
    box.addEventListener("click", (event) => {
      const [row, column] = under(event);
      tip.hide();
      book.go(data.cells[row], data.cells[column]);
    });
  }

  // -- saving ---------------------------------------------------------------------------------------------------------
  function saving(data, book) {
    const output = document.getElementById("saved");
    const { parts, starts } = book;
    const plain = () => `${parts.map((_, k) => book.text(k).replace(ENDS, "")).join(`\n${SEPARATOR}\n`)}\n`;
    function json() {
      const { edges, strengths } = data.saved;
      const segments = parts.map((_, k) => ({
        number: k, start: edges[starts[k]], end: edges[starts[k + 1]], first_piece: starts[k],
        pieces: starts[k + 1] - starts[k], strength: k ? strengths[starts[k] - 1] : null, text: book.text(k),
      }));
      return `${JSON.stringify({ ...data.saved, segments }, null, 2)}\n`;
    }
    // As if the reader copied: a page in a notebook's frame may not use the clipboard itself.
    async function copy() {
      let done = false;
      const give = (event) => {
        event.clipboardData.setData("text/plain", plain());
        event.preventDefault();
        done = true;
      };
      document.addEventListener("copy", give);
      document.execCommand("copy");
      document.removeEventListener("copy", give);
      if (done) return true;
      try { await navigator.clipboard.writeText(plain()); return true; } catch { return false; }
    }
    document.getElementById("plain").addEventListener("click", () => download(`${data.file}-segments.txt`, plain(), "text/plain"));
    document.getElementById("json").addEventListener("click", () => download(`${data.file}-segments.json`, json(), "application/json"));
    document.getElementById("copy").addEventListener("click", async () => {
      output.textContent = await copy() ? "Copied" : "Cannot copy here: download it";
      setTimeout(() => { output.textContent = ""; }, FLASH);
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    const data = JSON.parse(document.getElementById("data").textContent);
    const tip = base.hints(), book = reader(data);
    themes();
    steps(book);
    chart(data, book, tip);
    map(data, book, tip);
    saving(data, book);
    base.printing();
  });
})();
