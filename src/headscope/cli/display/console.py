"""Terminal output: tables of results on stdout; progress, notes and errors on stderr.

Terminal table of heads: one line per head, with what it attends to and what its outputs are similar for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headscope.model.model_files import INSTALL_HINTS, AvailableModel
from headscope.readings.reading import SUM, Head, Reading
from headscope.settings import describe_unverified
from headscope.studies.attention_types import DECIDING_SCORES, DISTANCE, ENTROPY, OTHER_SPECIAL
from headscope.studies.findings import Finding
from headscope.studies.head_types import PARTS, TypePart, count_heads
from headscope.studies.output_types import DECIDING_RATES
from headscope.studies.result import Study
from headscope.studies.sample_size import RASTER_NOTE, count_texts, describe_errors

if TYPE_CHECKING:
    from headscope.run.run import Progress as StudyProgress


VERDICT_STYLE = {
    "consistent": "bold green",
    "not consistent": "bold",
    "undecided": "yellow",
    "too few texts": "dim",
    "not measurable": "dim",
}
LOG_INTERVAL = 30
"""seconds between two lines about the progress of a study or a step, where stderr is no terminal"""
STATUS_INTERVAL = 30
"""seconds between two lines about a step whose progress is not known, where stderr is no terminal"""


def to_printable(text: object) -> str:
    """Return text that a terminal can show: nothing in it can move the cursor or change colors."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
        for character in str(text)
    )


def print_error(message: object) -> None:
    """Print an error message."""
    with suppress(OSError):  # stderr may be full or closed: that must not end a study
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("headscope: ", "bold red"), to_printable(message)))


def format_unverified_line(manifest: Mapping[str, Any]) -> str:
    """Return a further line of a table's caption for an unverified capture; empty if it is verified."""
    mark = describe_unverified(manifest)
    return mark and f"\n{to_printable(mark.capitalize())}"


def print_unverified(manifest: Mapping[str, Any]) -> None:
    """Print a note beside results of an unverified capture."""
    if mark := describe_unverified(manifest):
        print_note(mark)


def print_note(message: object) -> None:
    """Print a message beside the result."""
    with suppress(OSError):
        Console(stderr=True, soft_wrap=True).print(Text(to_printable(message)))


def show_findings(study: Study, findings: Sequence[Finding]) -> None:
    """Print the table of findings."""
    manifest = study.manifest
    table = Table(
        title=Text(to_printable(f"{manifest['model']} on {manifest['corpus']}: {count_texts(study)}, {study.size}")),
        caption="± is one standard error; the null is the number without the structure claimed. "
        "How each number was measured: findings.md, report.html"
        + f"\n{RASTER_NOTE}" * study.has_images
        + f"\n{describe_errors(study)}".rstrip()
        + format_unverified_line(manifest),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", justify="right")
    table.add_column("the paper's claim", ratio=1)
    table.add_column("measured here", justify="right", no_wrap=True)
    table.add_column("null", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for finding in findings:
        table.add_row(
            str(finding.number),
            Text(finding.title),
            Text(finding.number_text),
            Text(finding.null_text),
            Text(finding.verdict, style=VERDICT_STYLE[finding.verdict]),
        )
    Console().print(table)


def show_pairs(reading: Reading, layer: int, head: Head) -> None:
    """Print a head's high pairs as in the paper."""
    name = f"L{layer}{SUM if head == SUM else f'H{head}'}"
    pairs, dominant = reading.pairs(layer, head), reading.dominant(layer, head).iloc[0]
    title = f"{name} of {reading.manifest['model']}: {len(pairs):,} high pairs, θ = {reading.theta:g}"
    if len(pairs):
        title += f"; {dominant['share']:.0%} of them include {dominant['token']!r}"
    table = Table(title=Text(to_printable(title)), title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("token i", "token j"):
        table.add_column(column, overflow="fold")
    for column in ("i", "j", "C", "C / max"):
        table.add_column(column, justify="right", no_wrap=True)
    for pair in pairs.itertuples():
        table.add_row(
            Text(to_printable(pair.token_i)),
            Text(to_printable(pair.token_j)),
            str(pair.index_i),
            str(pair.index_j),
            f"{pair.value:.4g}",
            f"{pair.relative:.3f}",
        )
    Console().print(table)


def show_models(models: Sequence[AvailableModel]) -> None:
    """Print the models that can be loaded, and how to get more."""
    table = Table(title="Models that can be used right now", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("name", "from", "ready", "note"):
        table.add_column(column, overflow="fold")
    for model in models:
        table.add_row(
            Text(to_printable(model.name)), model.source, "yes" if model.ready else "no", Text(to_printable(model.note))
        )
    console = Console()
    console.print(table)
    console.print("More:", *INSTALL_HINTS, sep="\n  ", soft_wrap=True, markup=False, highlight=False)


class _Speed(ProgressColumn):
    """Number of texts finished, and per second."""

    def render(self, task: Task) -> Text:
        texts, started = task.fields.get("texts", 0), task.fields["started"]
        rate = (texts - task.fields["before"]) / max(time.monotonic() - started, 1e-9)
        return Text(f"{texts:,} {task.fields['unit']}, {rate:,.1f}/s")


class _Remaining(ProgressColumn):
    """Time left, where the number of documents is known."""

    def render(self, task: Task) -> Text:
        counted = task.completed - task.fields["documents_before"]
        if task.total is None or not counted:
            return Text("")
        seconds = int((time.monotonic() - task.fields["started"]) * (task.total - task.completed) / counted)
        return Text(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left")


class StudyMeter:
    """Callback that shows the progress of a study."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task(
            "studying", total=None, texts=0, before=0, documents_before=0, unit="texts", started=time.monotonic()
        )

    def __call__(self, progress: StudyProgress) -> None:
        self._progress.update(
            self._task,
            total=progress.expected,
            completed=progress.documents,
            texts=progress.texts,
            before=progress.texts_before,
            documents_before=progress.documents_before,
            unit=progress.unit,
        )


class StudyLog:
    """Callback that prints the progress of a study as lines, where no terminal shows it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._printed = clock()

    def __call__(self, progress: StudyProgress) -> None:
        now = self._clock()
        if now - self._printed < LOG_INTERVAL:
            return
        self._printed = now
        rate = (progress.texts - progress.texts_before) / (now - self._started)
        total = f" of {progress.expected:,}" if progress.expected is not None else ""
        print_note(
            f"studying: {progress.texts:,} {progress.unit}, {progress.documents:,}{total} documents, "
            f"{rate:,.1f} {progress.unit}/s"
        )


@contextmanager
def show_study_progress(*, quiet: bool) -> Iterator[StudyMeter | StudyLog | None]:
    """Show a progress line on stderr while a study runs; without a terminal, print one at times."""
    if quiet:
        yield None
        return
    console = _open_console()
    if not console.is_terminal:
        yield StudyLog()
        return
    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), _Speed(), TimeElapsedColumn(), _Remaining()
    with Progress(*columns, console=console, transient=True) as progress:
        yield StudyMeter(progress)


def _open_console() -> Console:
    console = Console(stderr=True)
    if console.is_jupyter:  # rich would need ipywidgets: a notebook shows one line that is rewritten as a terminal does
        return Console(stderr=True, force_jupyter=False, force_terminal=True)
    return console


@contextmanager
def show_status(message: str, *, quiet: bool) -> Iterator[None]:
    """Show on stderr that a step is running; without a terminal, print a line at times."""
    if quiet:
        yield
        return
    console = _open_console()
    with console.status(message) if console.is_terminal else _repeat_note(message):
        yield


@contextmanager
def _repeat_note(message: str) -> Iterator[None]:
    """Print every half minute that a step is still running, and for how long."""
    ended, started = threading.Event(), time.monotonic()

    def repeat() -> None:
        while not ended.wait(STATUS_INTERVAL):
            print_note(f"{message}: {time.monotonic() - started:,.0f} s so far")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class StepLog:
    """Callback that prints the progress of a step as lines, where no terminal shows it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._printed = clock()

    def __call__(self, step: str, done: int, total: int) -> None:
        now = self._clock()
        if now - self._printed >= LOG_INTERVAL:
            self._printed = now
            print_note(_format_step(step, done, total))


def _format_step(step: str, done: int, total: int) -> str:
    return f"{step}: {done:,}" + (f" of {total:,}" if total else "")


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show progress on stderr; without a terminal, print a line at times.

    Yields:
        Callback with the name of the step, the number of parts done, and their total (0 if unknown).
    """
    if quiet:
        yield None
        return
    console = _open_console()
    if not console.is_terminal:
        yield StepLog()
        return
    with console.status("starting") as status:
        yield lambda step, done, total: status.update(_format_step(step, done, total))


DECIDING = {"attends": DECIDING_SCORES, "writes": DECIDING_RATES}
"""the column that each type of a part is based on"""
WIDE = 95
"""Terminal width from which the other types that fit are shown too."""


def show_heads(study: Study, heads: pd.DataFrame, all_heads: pd.DataFrame, sort: str | None = None) -> None:
    """Print a table of heads, and how many of all heads are of each type.

    Args:
        study: Where the heads come from.
        heads: Their rows, in the order in which they are shown.
        all_heads: The rows that are counted.
        sort: The column they are sorted by, which is shown too if it is a number.
    """
    manifest = study.manifest
    console = Console()
    table = Table(
        title=Text(to_printable(f"{manifest['model']} on {manifest['corpus']}: {count_texts(study)}, {study.size}")),
        caption="Shares and entropies in percent, distances in tokens. All numbers and types that fit: --csv, --json"
        + f"\n{describe_errors(study)}".rstrip()
        + format_unverified_line(manifest),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("head", no_wrap=True)
    for part in PARTS.values():
        table.add_column(part.label, no_wrap=True)
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("chance", justify="right", no_wrap=True)
    sort_column = sort if sort is not None and pd.api.types.is_float_dtype(heads[sort]) else ""
    if sort_column:
        table.add_column(Text(sort_column), justify="right")
    if console.width >= WIDE:
        table.add_column("also")
    for _, head in heads.iterrows():
        cells = [Text(str(head["head"]))]
        for part in PARTS.values():
            cells += _format_part(head, part)
        if sort_column:
            cells.append(Text(f"{head[sort_column]:.4g}"))
        if console.width >= WIDE:
            cells.append(Text(_list_others(head)))
        table.add_row(*cells)
    console.print(table)
    console.print(Text(f"\n{len(all_heads):,} heads"))
    for part in PARTS.values():
        totals = ", ".join(f"{count:,} {name}" for name, count in count_heads(all_heads, part.name).items() if count)
        console.print(Text(f"{part.label}: {totals}"))


def _format_part(head: pd.Series, part: TypePart) -> list[Text]:
    """Return the type of a head, the number it is based on, and what chance gives."""
    name = str(head[part.column])
    column = DECIDING[part.name].get(name)
    if column is None:
        return [Text(name, style="dim"), Text(""), Text("")]
    if column == OTHER_SPECIAL:
        values = [head["attends_special"], head["attends_special_chance"]]
    else:
        values = [head[column], head[f"{column}_chance"]]
    factor = 1 if column in (DISTANCE, "mean_distance") else 100
    return [
        Text(name, style="dim" if column == ENTROPY else "bold"),
        *(Text(_format_number(value * factor)) for value in values),
    ]


def _list_others(head: pd.Series) -> str:
    """Return the other types that fit, by part."""
    return "; ".join(
        f"{part.name} {', '.join(head[part.also_column])}" for part in PARTS.values() if head[part.also_column]
    )


def _format_number(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"
