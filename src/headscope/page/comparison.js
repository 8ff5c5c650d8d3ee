// The page reads well without this script: it adds hints, unfolding, tabs, sorting, filtering and saving.
// Data reach the document as text nodes and attributes only, never as markup.
(() => {
  const { themes, element, count, download } = base;

  // -- findings -------------------------------------------------------------------------------------------------------
  function findings(tip) {
    const names = [...document.querySelectorAll(".matrix thead th bdi")].map((name) => name.textContent);
    for (const cell of document.querySelectorAll("td.verdict")) {
      const place = cell.cellIndex - 1;
      const hint = () => tip.show([names[place], cell.dataset.words], cell.getBoundingClientRect());
      cell.addEventListener("mouseenter", hint);
      cell.addEventListener("mouseleave", tip.hide);
      cell.addEventListener("focus", hint);
      cell.addEventListener("blur", tip.hide);
      const unfold = () => {
        const part = cell.closest("tbody").querySelector("details");
        const words = part.querySelectorAll("dl > div");
        const again = part.open && words[place].classList.contains("chosen");
        part.open = !again;
        words.forEach((each, k) => each.classList.toggle("chosen", k === place && !again));
      };
      cell.addEventListener("click", unfold);
      cell.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); unfold(); }
      });
    }
  }

  // -- curves ---------------------------------------------------------------------------------------------------------
  function curves(data, tip) {
    for (const drawing of document.querySelectorAll("svg.curve")) {
      const points = data.curves[Number(drawing.dataset.panel)];
      const ring = drawing.querySelector(".ring");
      if (!points.length) continue;
      drawing.addEventListener("pointermove", (event) => {
        const box = drawing.getBoundingClientRect();
        const scale = drawing.viewBox.baseVal.width / box.width;
        const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
        const far = ([px, py]) => (px - x) ** 2 + (py - y) ** 2;
        const near = points.reduce((best, point) => (far(point) < far(best) ? point : best));
        // Models that meet in one place are told together.
        const there = points.filter(([px, py]) => (px - near[0]) ** 2 + (py - near[1]) ** 2 < 9);
        ring.setAttribute("cx", near[0]);
        ring.setAttribute("cy", near[1]);
        ring.setAttribute("visibility", "visible");
        const at = { left: box.left + near[0] / scale, top: box.top + near[1] / scale - 6, width: 0, bottom: box.top + near[1] / scale + 6 };
        tip.show(["", ...there.map((point) => point[3])], at);
        document.getElementById("tip").firstChild.remove();
      });
      drawing.addEventListener("pointerleave", () => { ring.setAttribute("visibility", "hidden"); tip.hide(); });
    }
  }

  // -- head by head ---------------------------------------------------------------------------------------------------
  function heads(data, tip) {
    const table = document.getElementById("table");
    if (!table) return;
    const body = table.tBodies[0];
    const panels = [...document.querySelectorAll(".panel")];
    const changes = [...document.querySelectorAll(".changed")];
    const pairTabs = [...document.querySelectorAll(".choose button")];
    const rateTabs = [...document.querySelectorAll("[role=tab]")];
    const input = document.getElementById("filter");
    const only = document.getElementById("only");
    const output = document.getElementById("filtered");
    const state = { pair: 0, rate: 0, column: "head", order: "ascending", chosen: -1 };

    const text = (number, digits) => number === null ? "–"
      : number.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
    const signed = (number, digits) => (number > 0 ? "+" : "") + text(number, digits);
    const chance = (p) => p === null ? "–" : p < 0.0001 ? "< 0.0001" : text(p, 4);

    function numbers() {
      const pair = data.pairs[state.pair], rate = data.rates[state.rate];
      return { pair, rate, of: pair.rates[rate.name] };
    }

    function written(i) {
      const { rate, of } = numbers();
      const shown = (value, digits = 2) => value === null ? "–" : text(value * rate.factor, digits);
      const error = of.error[i] === null ? "" : ` ± ${shown(of.error[i])}`;
      const difference = of.difference[i] === null ? "–" : signed(of.difference[i] * rate.factor, 2);
      const t = of.t[i] !== null ? text(of.t[i], 2) : "–";
      return [shown(of.one[i]), shown(of.other[i]), difference + error, t, chance(of.p[i]), chance(of.p_corrected[i])];
    }

    function fill() {
      const { pair, rate, of } = numbers();
      const titles = table.tHead.rows[0].cells;
      titles[1].querySelector("bdi").textContent = pair.baseline;
      titles[2].querySelector("bdi").textContent = pair.model;
      document.getElementById("table-title").textContent = `${rate.label}, ${rate.unit}`;
      const values = state.column === "head" ? pair.heads.map((_, i) => i) : of[state.column];
      const sign = state.order === "ascending" ? 1 : -1;
      const order = pair.heads.map((_, i) => i).sort((a, b) => {
        const x = values[a], y = values[b];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return sign * (x - y) || a - b;
      });
      body.replaceChildren(...order.map((i) => {
        const row = document.createElement("tr");
        row.dataset.i = i;
        row.classList.toggle("found", of.significant[i]);
        row.classList.toggle("chosen", i === state.chosen);
        const name = element("th", pair.heads[i], row);
        name.scope = "row";
        written(i).forEach((words, k) => { if (k === 2) element("td", words, row).className = "difference"; else element("td", words, row); });
        return row;
      }));
      filter();
    }

    // L3 is layer 3 and not 30; H7 a head of every layer; anything else is looked for in the name. Several add up.
    function wanted(word) {
      const { pair } = numbers();
      const parts = /^(?:l(\d+))?(?:h(\d+))?$/.exec(word);
      if (!parts) return (i) => pair.heads[i].toLowerCase().includes(word);
      const fits = (part, number) => part === undefined || Number(part) === number;
      return (i) => fits(parts[1], pair.layer[i]) && fits(parts[2], pair.head_number[i]);
    }

    function filter() {
      const { of } = numbers();
      const tests = input.value.toLowerCase().split(/[\s,;]+/).filter(Boolean).map(wanted);
      let left = 0;
      for (const row of body.rows) {
        const i = Number(row.dataset.i);
        row.hidden = (tests.length > 0 && !tests.some((test) => test(i))) || (only.checked && !of.significant[i]);
        left += Number(!row.hidden);
      }
      output.textContent = left < body.rows.length ? `${count(left)} of ${count(body.rows.length)} heads` : `${count(left)} heads`;
    }

    function show() {
      for (const panel of panels) panel.classList.toggle("shown", Number(panel.dataset.pair) === state.pair && Number(panel.dataset.rate) === state.rate);
      for (const change of changes) change.classList.toggle("shown", Number(change.dataset.pair) === state.pair);
      pairTabs.forEach((tab, k) => tab.setAttribute("aria-selected", String(k === state.pair)));
      pairTabs.forEach((tab, k) => tab.setAttribute("aria-pressed", String(k === state.pair)));
      rateTabs.forEach((tab, k) => {
        tab.setAttribute("aria-selected", String(k === state.rate));
        tab.tabIndex = k === state.rate ? 0 : -1;
      });
      mark();
      fill();
    }

    function mark() {
      for (const panel of panels) for (const cell of panel.querySelectorAll("td[data-i]")) cell.classList.toggle("chosen", Number(cell.dataset.i) === state.chosen);
    }

    function choose(i) {
      state.chosen = i;
      mark();
      let chosen = null;
      for (const row of body.rows) {
        const it = Number(row.dataset.i) === i;
        row.classList.toggle("chosen", it);
        if (it) chosen = row;
      }
      if (chosen.hidden) { input.value = ""; only.checked = false; filter(); }
      const box = table.parentElement;
      box.scrollTop = chosen.offsetTop - (box.clientHeight - chosen.offsetHeight) / 2;
    }

    for (const header of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const column = header.dataset.column;
        const first = ["head", "p", "p_corrected"].includes(column) ? "ascending" : "descending";
        const other = first === "ascending" ? "descending" : "ascending";
        state.order = state.column === column && state.order === first ? other : first;
        state.column = column;
        for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
        header.setAttribute("aria-sort", state.order);
        fill();
      });
    }

    for (const panel of panels) {
      const cells = [...panel.querySelectorAll("td[data-i]")];
      const hint = (cell) => {
        const i = Number(cell.dataset.i), { pair, rate } = numbers();
        const [one, other, difference, t, p, corrected] = written(i);
        tip.show([pair.heads[i], `${pair.baseline}: ${one} ${rate.unit}`, `${pair.model}: ${other} ${rate.unit}`,
          `difference ${difference}`, `t ${t}, p ${p}, corrected ${corrected}`], cell.getBoundingClientRect());
      };
      cells.forEach((cell, i) => { cell.tabIndex = i ? -1 : 0; });
      const table = panel.querySelector("tbody");
      const under = (event) => event.target.closest("td[data-i]");
      table.addEventListener("mouseover", (event) => { if (under(event)) hint(under(event)); });
      table.addEventListener("mouseleave", tip.hide);
      table.addEventListener("focusin", (event) => { if (under(event)) hint(under(event)); });
      table.addEventListener("focusout", tip.hide);
      table.addEventListener("click", (event) => { if (under(event)) choose(Number(under(event).dataset.i)); });
      table.addEventListener("keydown", (event) => {
        const cell = under(event), i = Number(cell.dataset.i), columns = numbers().pair.columns;
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(i); return; }
        const step = { ArrowLeft: i % columns ? -1 : 0, ArrowRight: (i + 1) % columns ? 1 : 0, ArrowUp: -columns, ArrowDown: columns }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        const to = cells[i + step];
        if (!to) return;
        cell.tabIndex = -1;
        to.tabIndex = 0;
        to.focus();
      });
    }
    pairTabs.forEach((tab, k) => tab.addEventListener("click", () => { state.pair = k; state.chosen = -1; show(); }));
    rateTabs.forEach((tab, k) => {
      tab.addEventListener("click", () => { state.rate = k; show(); });
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: rateTabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        state.rate = (to + rateTabs.length) % rateTabs.length;
        show();
        rateTabs[state.rate].focus();
      });
    });
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-i]");
      if (row) choose(Number(row.dataset.i));
    });
    input.addEventListener("input", filter);
    only.addEventListener("change", filter);
    document.getElementById("csv").addEventListener("click", () => download(data.file, comma(data), "text/csv"));
    show();
  }

  // All pairs and rates, as in differences.csv.
  function comma(data) {
    const quoted = (value) => {
      // As `format_csv` in Python: no text is taken for a formula.
      const words = typeof value === "string" && /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(value) ? `'${value}` : String(value ?? "");
      return /[",\n\r]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
    };
    const columns = ["one", "other", "difference", "error", "t", "p", "p_corrected", "significant"];
    const text = [["baseline", "model", "head", "layer", "head_number", "rate", ...columns, "paired"].join(",")];
    const truth = (value) => value === true ? "True" : value === false ? "False" : value;
    for (const pair of data.pairs) {
      for (const rate of data.rates) {
        const of = pair.rates[rate.name];
        pair.heads.forEach((name, i) => text.push([pair.baseline, pair.model, name, pair.layer[i], pair.head_number[i], rate.name,
          ...columns.map((column) => truth(of[column][i])), truth(pair.paired)].map(quoted).join(",")));
      }
    }
    return `${text.join("\n")}\n`;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const data = JSON.parse(document.getElementById("data").textContent);
    const tip = base.hints();
    themes();
    findings(tip);
    curves(data, tip);
    heads(data, tip);
    base.printing();
  });
})();
