// The page reads well without this script: it adds tabs, hints, sorting, filtering, saving and the choice of colours.
// Data reach the document as text nodes and attributes only, never as markup.
(() => {
  const { root, themes, element, count, download } = base;

  // -- numbers as text ------------------------------------------------------------------------------------------------
  function shown(rate, number, digits = rate.decimals) {
    const text = (number * rate.factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return text.replace("-", "−");
  }

  function lines(data, rate, i) {
    const value = rate.values[i];
    const error = rate.errors[i];
    const pairs = `${count(data.pairs[i])} pairs counted`;
    const chance = rate.chance[i] === null ? "chance unknown" : `chance ${shown(rate, rate.chance[i])} ${rate.unit}`;
    if (value === null) return ["nothing counted", chance, pairs];
    if (error === null) return [`${shown(rate, value)} ${rate.unit}`, chance, pairs];
    // More decimals where the error would otherwise be written as 0.
    const vanishes = error > 0 && Number((error * rate.factor).toFixed(rate.decimals)) === 0;
    const digits = vanishes ? Math.min(Math.ceil(-Math.log10(error * rate.factor)), 4) : rate.decimals;
    return [`${shown(rate, value, digits)} ± ${shown(rate, error, digits)} ${rate.unit}`, chance, pairs];
  }

  // What can be shown of the heads: their types, then each rate.
  function viewsOf(data) {
    const describe = (i) => [...data.about[i].split("; "), `${count(data.pairs[i])} pairs counted`];
    const types = data.parts.map((part) => ({ label: part.label, lines: describe }));
    return [...types, ...data.rates.map((rate) => ({ label: rate.label, rate, lines: (i) => lines(data, rate, i) }))];
  }

  // -- heat maps ------------------------------------------------------------------------------------------------------
  function heatMaps(data, table) {
    const tip = document.getElementById("tip");
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const panels = [...document.querySelectorAll(".panel")];
    const views = viewsOf(data);
    const cells = panels.map((panel) => [...panel.querySelectorAll("td[data-i]")]);
    let active = 0;
    let current = 0; // the head that Tab leads to

    function show(k, focus) {
      active = k;
      panels.forEach((panel, j) => panel.classList.toggle("shown", j === k));
      tabs.forEach((tab, j) => {
        tab.setAttribute("aria-selected", String(j === k));
        tab.tabIndex = j === k ? 0 : -1;
      });
      if (focus) tabs[k].focus();
      hide();
    }

    function mark(i, on, name) {
      for (const map of cells) if (map[i]) map[i].classList.toggle(name, on);
    }

    function hint(cell) {
      const i = Number(cell.dataset.i);
      const { rate, lines: told } = views[active];
      tip.replaceChildren();
      element("strong", data.heads[i], tip);
      for (const line of told(i)) element("span", line, tip);
      tip.hidden = false;
      const box = cell.getBoundingClientRect();
      const left = Math.min(Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8), root.clientWidth - tip.offsetWidth - 8);
      const above = box.top - tip.offsetHeight - 8;
      tip.style.left = `${left}px`;
      tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
      if (rate) place(rate, rate.values[i]);
      table.point(i);
    }

    // Where the head is on the colour scale.
    function place(rate, value) {
      const marker = panels[active].querySelector(".marker");
      marker.classList.toggle("on", value !== null);
      if (value !== null) marker.style.left = `${(100 * (value * rate.factor - rate.low)) / (rate.high - rate.low)}%`;
    }

    function hide() {
      tip.hidden = true;
      table.point(-1);
      for (const marker of document.querySelectorAll(".marker.on")) marker.classList.remove("on");
    }

    function go(i) {
      for (const map of cells) {
        map[current].tabIndex = -1;
        map[i].tabIndex = 0;
      }
      current = i;
    }

    function move(event) {
      const columns = data.columns;
      const last = data.heads.length - 1;
      const column = current % columns;
      const to = {
        ArrowLeft: column > 0 ? current - 1 : current,
        ArrowRight: column < columns - 1 ? current + 1 : current,
        ArrowUp: current - columns,
        ArrowDown: current + columns,
        Home: event.ctrlKey ? 0 : current - column,
        End: event.ctrlKey ? last : current - column + columns - 1,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      if (to < 0 || to > last) return;
      go(to);
      cells[active][to].focus();
    }

    function choose(cell) {
      const i = Number(cell.dataset.i);
      go(i);
      table.choose(i);
    }

    panels.forEach((panel, k) => {
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", `tab-${k}`);
      const grid = panel.querySelector("table");
      grid.setAttribute("role", "grid");
      grid.setAttribute("aria-label", `${views[k].label} by layer and head`);
      cells[k].forEach((cell, i) => {
        cell.setAttribute("role", "gridcell");
        cell.setAttribute("aria-label", [data.heads[i], ...views[k].lines(i)].join(", "));
        cell.tabIndex = i === 0 ? 0 : -1;
      });
      const body = grid.tBodies[0];
      const under = (event) => event.target.closest("td[data-i]");
      body.addEventListener("mouseover", (event) => { if (under(event)) hint(under(event)); });
      body.addEventListener("mouseleave", hide);
      body.addEventListener("focusin", (event) => { if (under(event)) { go(Number(under(event).dataset.i)); hint(under(event)); } });
      body.addEventListener("focusout", hide);
      body.addEventListener("click", (event) => { if (under(event)) choose(under(event)); });
      body.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(under(event)); } else if (event.key === "Escape") hide();
        else move(event);
      });
    });
    tabs.forEach((tab, k) => {
      tab.addEventListener("click", () => show(k, false));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        show((to + tabs.length) % tabs.length, true);
      });
    });
    addEventListener("scroll", () => { if (!tip.hidden && !document.activeElement.closest(".heat")) hide(); }, { passive: true });
    show(0, false);
    return { outline: (i, on) => mark(i, on, "pointed"), chosen: (i, on) => mark(i, on, "chosen") };
  }

  // -- head table -----------------------------------------------------------------------------------------------------
  function headTable(data) {
    const table = document.getElementById("table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const columns = { head: data.heads.map((_, i) => i), pairs: data.pairs };
    for (const part of data.parts) columns[part.column] = part.types;
    for (const rate of data.rates) columns[rate.name] = rate.values;
    let maps = null;
    let pointed = -1;
    let chosen = -1;

    function sort(header) {
      const values = columns[header.dataset.column];
      // Names read from the front, numbers from the largest.
      const first = header.dataset.column === "head" || header.classList.contains("word") ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = header.getAttribute("aria-sort") === first ? other : first;
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => values[Number(row.dataset.i)];
      const sorted = [...rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === null || y === null) return (x === null) - (y === null) || a.dataset.i - b.dataset.i;
        return sign * (x - y) || a.dataset.i - b.dataset.i;
      });
      body.append(...sorted);
    }

    for (const header of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(header));
    }

    // L3 is layer 3 and not 30; H7 a head of every layer; anything else is a part of a head type's name. Several add up.
    function wanted(word) {
      const parts = /^(?:l(\d+))?(?:h(\d+))?$/.exec(word);
      if (!parts) return (i) => data.parts.some((part) => part.names[part.types[i]].includes(word));
      const fits = (part, number) => part === undefined || Number(part) === number;
      return (i) => fits(parts[1], data.layer[i]) && fits(parts[2], data.head_number[i]);
    }

    const input = document.getElementById("filter");
    const output = document.getElementById("filtered");
    function filter() {
      const tests = input.value.toLowerCase().split(/[\s,;]+/).filter(Boolean).map(wanted);
      let left = 0;
      for (const row of rows) {
        row.hidden = tests.length > 0 && !tests.some((test) => test(Number(row.dataset.i)));
        left += Number(!row.hidden);
      }
      output.textContent = tests.length ? `${count(left)} of ${count(rows.length)} heads` : `${count(rows.length)} heads`;
    }
    input.addEventListener("input", filter);
    filter();

    function point(i) {
      if (pointed >= 0) rows[pointed].classList.remove("pointed");
      pointed = i;
      if (i >= 0) rows[i].classList.add("pointed");
    }

    function choose(i, scroll = true) {
      if (chosen >= 0) {
        rows[chosen].classList.remove("chosen");
        rows[chosen].removeAttribute("aria-current");
        maps.chosen(chosen, false);
      }
      chosen = i;
      const row = rows[i];
      row.classList.add("chosen");
      row.setAttribute("aria-current", "true");
      maps.chosen(i, true);
      if (!scroll) return;
      if (row.hidden) {
        input.value = "";
        filter();
      }
      const box = table.parentElement;
      box.scrollTop = row.offsetTop - (box.clientHeight - row.offsetHeight) / 2;
      row.scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    function outline(event, on) {
      const row = event.target.closest("tr[data-i]");
      if (row) maps.outline(Number(row.dataset.i), on);
    }
    body.addEventListener("mouseover", (event) => outline(event, true));
    body.addEventListener("mouseout", (event) => outline(event, false));
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-i]");
      if (row) choose(Number(row.dataset.i), false);
    });
    return { point, choose, link: (linked) => { maps = linked; } };
  }

  // -- files ----------------------------------------------------------------------------------------------------------
  function files(data) {
    document.getElementById("csv").addEventListener("click", () => download(data.file, data.csv, "text/csv"));
    // A figure is in the page once, as its image; the link takes it from there.
    for (const link of document.querySelectorAll("a.save")) {
      link.href = link.closest("figure").querySelector("img").src;
      link.hidden = false;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const data = JSON.parse(document.getElementById("data").textContent);
    themes();
    const table = headTable(data);
    table.link(heatMaps(data, table));
    files(data);
    base.printing();
  });
})();
