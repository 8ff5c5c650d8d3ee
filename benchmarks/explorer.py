"""What the explorer page costs beside BertViz, on the same text and model: measured in one run, in Chromium.

    python benchmarks/explorer.py [--model DIR] [--repeats N] [--chromium PROGRAM] [--markdown FILE]

Every opening is a fresh context that can reach nothing; the pages take turns, so that a machine's moods touch all
alike; medians are reported. Times are taken inside the pages. BertViz is no dependency: pip fetches it into a folder
that is thrown away, npm the three scripts that its pages load from elsewhere. What cannot be had is left out and said.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscope
from headscope.model.model import Model
from headscope.page.explorer import choose_precision

LENGTHS = (128, 256, 512)
BERTVIZ = "bertviz==1.4.1"
# The versions that its pages name, but for jquery: its 2.0.0 is not on npm, and 2.1.0 is the next.
SCRIPTS = {
    "require.min.js": ("requirejs@2.3.6", "package/require.js"),
    "d3.min.js": ("d3@5.7.0", "package/dist/d3.min.js"),
    "jquery.min.js": ("jquery@2.1.0", "package/dist/jquery.min.js"),
}
NAMES = ("chromium", "chromium-browser", "google-chrome")
# The last two are for the heap: its size exactly, and no garbage in it.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--no-first-run", "--enable-precise-memory-info", "--js-flags=--expose-gc")  # fmt: skip
NONE = "–"
MARK = "<!-- from here on written by benchmarks/explorer.py -->"
SLOW = 60.0  # seconds; what takes longer is done once
LIMIT = 600  # seconds until a page counts as not drawn

# Two frames after a mark, what was drawn has been handed to the screen. BertViz draws in one go, so that the first
# frame with a drawing has all of it: looking once a frame costs nothing, where hearing of every change would.
IN_PAGE = """
  const made = {}, by = (id) => document.getElementById(id), all = (path) => document.querySelectorAll(path);
  const frames = () => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
  const mark = async (name) => {
    made[name] = [performance.now()];
    await frames();
    made[`${name}, on screen`] = [performance.now()];
  };
  const ready = new Promise((go, fail) => {
    setTimeout(fail, LIMIT * 1000, new Error("not drawn in time"));
    const look = () => all("#vis svg").length ? mark("first head").then(go) : requestAnimationFrame(look);
    if (BERTVIZ) return look();
    new MutationObserver(() => {
      if (document.documentElement.dataset.ready === "head") mark("first head");
      else mark("all heads").then(go);
    }).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-ready"] });
  });
  const say = (to, kind) => to.dispatchEvent(new MouseEvent(kind));
  const step = (id) => { by(id).selectedIndex = (by(id).selectedIndex + 1) % by(id).length; say(by(id), "change"); };
  const slide = (k) => { by("theta").value = 0.2 + 0.1 * (k % 3); say(by("theta"), "input"); };
  const acts = () => { // head_view has a square for each head, model_view a small map with a rectangle over it
    const heads = by("layer") ? all("#vis svg > g:last-child > rect") : all("#vis svg > g > rect:last-child");
    const alone = (k) => say(heads[k + 1], by("layer") ? "dblclick" : "click");
    const first = BERTVIZ ? { "next head": alone } : { "θ changed": slide, "next head": () => step("head") };
    return { "nothing to do": () => {}, ...first, ...(by("layer") && { "next layer": () => step("layer") }) };
  };
  globalThis.measured = async () => {
    await ready;
    gc();
    made["elements"] = [all("*").length];
    made["script's heap, MB"] = performance.memory ? [performance.memory.usedJSHeapSize / 1e6] : [];
    for (const [name, act] of Object.entries(acts())) {
      made[name] = [];
      for (let k = 0, until = performance.now() + 10000; k < 5 && performance.now() < until; k++) {
        await frames();
        const started = performance.now();
        act(k);
        await frames();
        made[name].push(performance.now() - started);
      }
    }
    return made;
  };
"""
LOADED = """new Promise((go) => { setTimeout(go, 1000); }).then(() => [
  performance.getEntriesByType("navigation")[0].loadEventStart, document.querySelectorAll("svg, canvas").length])"""

ROWS = {  # what is measured, and how it is written
    "text read, s": "{:.2f}", "page made, s": "{:.2f}", "file, MB": "{:.1f}", "numbers": "{}",
    "drawn, no network": "{}", "load event, no network": "{:,.0f}",
    "requests, no network": "{:.0f}", "requests, scripts served": "{:.0f}",
    "first head": "{:,.0f}", "first head, on screen": "{:,.0f}", "all heads": "{:,.0f}",
    "nothing to do": "{:,.0f}", "θ changed": "{:,.0f}", "next head": "{:,.0f}", "next layer": "{:,.0f}",
    "elements": "{:,.0f}", "script's heap, MB": "{:,.0f}", "page's process, MB": "{:,.0f}",
}  # fmt: skip
NOTES = (
    "Medians. Load event, first and all heads: ms since the navigation began. “Nothing to do” to “next layer”: ms from "
    "an act to two frames after it. Chromium draws without a graphics card, 1280 × 720.",
    "(repeated): the model's heads and layers repeated to this size; no such model was run.",
    "“Text read” is for BertViz the model's run alone. Its pages hold attention, as text; those of headscope attention "
    "and similarity, and the sums over heads.",
)
SERVED = (
    "BertViz from “first head” on: with the scripts that it loads from elsewhere served from disk (jquery 2.1.0 for "
    "2.0.0). head_view draws one layer, model_view all heads at once; its next head is that head alone, or enlarged."
)
NO_BERTVIZ = "BertViz could not be had: it is not installed, and pip could not fetch it."
NO_SCRIPTS = "The scripts that BertViz pages load could not be had from npm: those pages stayed empty."


@dataclass
class Subject:
    """A page, and what was measured of it."""

    name: str
    file: Path
    bertviz: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)

    def add(self, times: dict[str, list[float]]) -> None:
        for name, more in times.items():
            self.times.setdefault(name, []).extend(more)

    def cell(self, row: str) -> str:
        value = statistics.median(self.times[row]) if self.times.get(row) else self.found.get(row)
        return NONE if value is None else ROWS[row].format(value)


def seconds(run: Callable[[], Any], repeats: int) -> tuple[Any, list[float]]:
    """What a function gives, and how long it took each time."""
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) < SLOW):
        started = time.perf_counter()
        made = run()
        times.append(time.perf_counter() - started)
    return made, times


def ours(model: Model, text: str, folder: Path, repeats: int) -> list[Subject]:
    subjects: list[Subject] = []

    def page(reading: headscope.Reading, mark: str = "") -> Subject:
        name = f"headscope {len(reading.layers)}×{len(reading.head_numbers)}×{len(reading)}{mark}"
        subject = Subject(
            name, folder / f"page-{len(subjects)}.html", found={"numbers": choose_precision(reading, "auto").name}
        )
        subject.add({"page made, s": seconds(lambda: reading.to_html(subject.file), repeats)[1]})
        subjects.append(subject)
        return subject

    for length in LENGTHS:
        reading, taken = seconds(lambda n=length: headscope.read(model, text, length=n), repeats)
        page(reading).add({"text read, s": taken})
    held = {name: reading.data[name].values for name in ("token", "token_id", "special", "outputs", "attention")}
    layers, heads = np.arange(24) % len(reading.layers), np.arange(16) % len(reading.head_numbers)
    outputs, maps = held["outputs"][layers][:, :, heads], held["attention"][layers][:, heads]
    tokens, ids, special = held["token"].tolist(), held["token_id"], held["special"]
    page(headscope.Reading.from_arrays(tokens, outputs, maps, ids=ids, special=special), " (repeated)")
    return subjects


def get_bertviz(folder: Path) -> bool:
    """Whether BertViz is there, or can be fetched into the folder. Of what it asks for, its views use IPython alone."""
    sys.path.append(str(folder))  # last, so that nothing there stands before what is installed
    for module, wanted in (("IPython", ["ipython"]), ("bertviz", ["--no-deps", BERTVIZ])):
        if not find_spec(module):
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *wanted]
            subprocess.run(pip, capture_output=True, check=False)
            invalidate_caches()
    return bool(find_spec("IPython") and find_spec("bertviz"))


def theirs(model: Model, text: str, folder: Path, repeats: int) -> list[Subject]:
    from bertviz import head_view, model_view

    reading = headscope.read(model, text, length=LENGTHS[0])
    ids = torch.from_numpy(reading.data["token_id"].values)[None]
    model.network.set_attn_implementation("eager")  # the others give no maps
    with torch.inference_mode():
        maps, taken = seconds(lambda: model.network(input_ids=ids, output_attentions=True).attentions, repeats)
    subjects = []
    for view in (head_view, model_view):
        subject = Subject(f"BertViz {view.__name__}", folder / f"{view.__name__}.html", True, {"numbers": "as text"})

        def make(view: Any = view, file: Path = subject.file) -> None:
            file.write_text(view(maps, reading.tokens.values.tolist(), html_action="return").data, encoding="utf-8")

        subject.add({"text read, s": taken, "page made, s": seconds(make, repeats)[1]})
        subjects.append(subject)
    return subjects


def get_scripts(folder: Path) -> dict[str, bytes]:
    """What BertViz pages load from elsewhere, out of npm packages; nothing where these cannot be had."""
    made = {}
    for name, (package, member) in SCRIPTS.items():
        npm = ["npm", "pack", "--silent", package]
        try:
            said = subprocess.run(npm, cwd=folder, capture_output=True, check=True, text=True, timeout=120).stdout
            with tarfile.open(folder / said.split()[-1]) as packed:
                made[name] = packed.extractfile(member).read()
        except (OSError, subprocess.SubprocessError):
            return {}
    return made


def open_page(browser: Any, subject: Subject, scripts: dict[str, bytes]) -> None:
    """Open a page once and keep what is measured. There is no network; `scripts`, if any, are served in its place."""
    requests: list[str] = []
    script = IN_PAGE.replace("BERTVIZ", str(subject.bertviz).lower()).replace("LIMIT", str(LIMIT))

    def serve(route: Any) -> None:
        route.fulfill(body=scripts[Path(route.request.url).name], content_type="text/javascript")

    with browser.new_context(offline=not scripts) as context:
        page = context.new_page()
        page.set_default_timeout(LIMIT * 1000)
        page.on("request", lambda request: request.url.startswith("file:") or requests.append(request.url))
        page.add_init_script(f"{{{script}}}")
        if scripts:
            page.route("**/*.js", serve)
        page.goto(subject.file.as_uri())
        if scripts or not subject.bertviz:
            subject.add(page.evaluate("measured()"))
            subject.add({"page's process, MB": memory(browser)})
        if not scripts:
            loaded, drawings = page.evaluate(LOADED)
            subject.add({"load event, no network": [loaded]})
            subject.found["drawn, no network"] = "yes" if drawings else "nothing"
        subject.add({f"requests, {'scripts served' if scripts else 'no network'}": [len(requests)]})


def memory(browser: Any) -> list[float]:
    """Resident megabytes of the largest page process, where the system tells."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    files = [Path(f"/proc/{each['id']}/statm") for each in processes if each["type"] == "renderer"]
    pages = [int(file.read_text().split()[1]) for file in files if file.exists()]
    return [max(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6] if pages else []


def in_chromium(program: str, subjects: list[Subject], scripts: dict[str, bytes], repeats: int) -> list[str]:
    """Measure all pages in turns; what there is to say of it."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        said = [f"Chromium {browser.version}."]
        open_page(browser, Subject("for warming up", subjects[0].file), {})
        ways = [(each, {}) for each in subjects] + [(each, scripts) for each in subjects if each.bertviz and scripts]
        for round_ in range(repeats):
            for way in list(ways):
                name, started = way[0].name, time.perf_counter()
                try:
                    open_page(browser, *way)
                except Error as error:
                    print(f"{name}: {error.message}", file=sys.stderr)
                    said.append(f"{name}: not drawn in {LIMIT} s, or its process ended.")
                    ways.remove(way)
                else:
                    if time.perf_counter() - started > SLOW and round_ + 1 < repeats:
                        said.append(f"{name}: drawn {round_ + 1} × only, for it took longer than {SLOW:.0f} s.")
                        ways.remove(way)
        browser.close()
    return said


def table(subjects: list[Subject], markdown: bool) -> str:
    rows = [[row, *(each.cell(row) for each in subjects)] for row in ROWS]
    lines = [["", *(each.name for each in subjects)], *(row for row in rows if set(row[1:]) != {NONE})]
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[a.ljust(first), *(b.rjust(w) for b, w in zip(rest, others, strict=True))] for a, *rest in lines]
    if not markdown:
        return "\n".join("  ".join(line) for line in padded)
    rule = ["-" * first, *("-" * (width - 1) + ":" for width in others)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="minilm, a folder or a hub name")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chromium", default=os.environ.get("HEADSCOPE_CHROMIUM"), metavar="PROGRAM")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the same there, below its mark")
    options = parser.parse_args()
    wanted = [options.chromium] if options.chromium else NAMES
    program = next((found for found in map(shutil.which, wanted) if found), None)
    if program is None:
        sys.exit(f"no Chromium found: there is no {' or '.join(wanted)}; name one by --chromium or HEADSCOPE_CHROMIUM")

    load = os.getloadavg()[0]
    model = headscope.load(options.model, device="cpu")
    text = " ".join(document.text for document in headscope.documents(limit=8))
    headscope.read(model, text, length=16)  # warms up
    names, notes = ["headscope", "torch", "transformers"], list(NOTES)
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        subjects, scripts = ours(model, text, folder, options.repeats), {}
        if get_bertviz(folder):
            names.append("bertviz")
            subjects += theirs(model, text, folder, options.repeats)
            scripts = get_scripts(folder)
        notes.append(NO_BERTVIZ if "bertviz" not in names else SERVED if scripts else NO_SCRIPTS)
        for subject in subjects:
            subject.found["file, MB"] = subject.file.stat().st_size / 1e6
        notes += in_chromium(program, subjects, scripts, options.repeats)
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    about = (
        f"{Path(options.model).name}, {datetime.date.today()}, {os.cpu_count()} CPUs (load {load:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after), {options.repeats} repeats; Python {platform.python_version()}, {versions}"
    )
    print("\n".join([about, "", table(subjects, False), "", *notes]))
    if options.markdown:
        below = "\n".join(f"- {note}" for note in notes)
        there = options.markdown.read_text(encoding="utf-8") if options.markdown.exists() else ""
        above = there.partition(MARK)[0]
        made = f"{above}{MARK}\n{about}\n\n{table(subjects, True)}\n\n{below}\n"
        options.markdown.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
