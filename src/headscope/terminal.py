"""What people see in a terminal: findings as a table, progress, errors. Results go to stdout, the rest to stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headscope.model.available import MORE, Available
from headscope.readings.reading import SUM, Head, Reading
from headscope.studies.findings import Finding
from headscope.studies.result import Study
from headscope.studies.speaking import RASTER, spoken

if TYPE_CHECKING:  # it brings torch along, which takes seconds
    from headscope.run.run import Progress as Done

VERDICT_STYLE = {"holds": "bold green", "does not hold": "bold red", "cannot be measured": "dim"}


def printable(text: object) -> str:
    """Text as a terminal may show it: nothing in it can move the cursor or change colours."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
        for character in str(text)
    )


def complain(message: object) -> None:
    """An error, for people."""
    with suppress(OSError):  # stderr may be full or closed: that must not end a study
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("headscope: ", "bold red"), printable(message)))


def note(message: object) -> None:
    """A word beside the result."""
    with suppress(OSError):
        Console(stderr=True, soft_wrap=True).print(Text(printable(message)))


def show_findings(study: Study, found: Sequence[Finding]) -> None:
    """The findings table."""
    about = study.manifest
    table = Table(
        title=Text(
            printable(f"{about['model']} on {about['corpus']}: {study.texts:,} {spoken(study, 'texts')}, {study.size}")
        ),
        caption="± is one standard error. What each number rests on: findings.md, report.html"
        + f"\n{RASTER}" * study.of_images,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", justify="right")
    table.add_column("the paper's claim", ratio=1)
    table.add_column("measured here", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for finding in found:
        table.add_row(
            str(finding.number),
            Text(finding.claim),
            Text(finding.number_text),
            Text(finding.verdict, style=VERDICT_STYLE[finding.verdict]),
        )
    Console().print(table)


def show_pairs(reading: Reading, layer: int, head: Head) -> None:
    """A head's high pairs in the paper's form."""
    name = f"L{layer}{SUM if head == SUM else f'H{head}'}"
    found, most = reading.pairs(layer, head), reading.dominant(layer, head).iloc[0]
    about = f"{name} of {reading.manifest['model']}: {len(found):,} high pairs, θ = {reading.theta:g}"
    if len(found):
        about += f"; {most['share']:.0%} of them include {most['token']!r}"
    table = Table(title=Text(printable(about)), title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("token i", "token j"):
        table.add_column(column, overflow="fold")
    for column in ("i", "j", "C", "C / max"):
        table.add_column(column, justify="right", no_wrap=True)
    for pair in found.itertuples():
        table.add_row(
            Text(printable(pair.token_i)),
            Text(printable(pair.token_j)),
            str(pair.index_i),
            str(pair.index_j),
            f"{pair.value:.4g}",
            f"{pair.relative:.3f}",
        )
    Console().print(table)


def show_models(models: Sequence[Available]) -> None:
    """What can be loaded, and how to get more."""
    table = Table(title="Models that can be used right now", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("name", "from", "ready", "note"):
        table.add_column(column, overflow="fold")
    for model in models:
        table.add_row(
            Text(printable(model.name)), model.source, "yes" if model.ready else "no", Text(printable(model.note))
        )
    console = Console()
    console.print(table)
    console.print("More:", *MORE, sep="\n  ", soft_wrap=True, markup=False, highlight=False)


class _Speed(ProgressColumn):
    """Texts finished, and how many a second."""

    def render(self, task: Task) -> Text:
        texts, started = task.fields.get("texts", 0), task.fields["started"]
        rate = (texts - task.fields["before"]) / max(time.monotonic() - started, 1e-9)
        return Text(f"{texts:,} {task.fields['unit']}, {rate:,.1f}/s")


class _Remaining(ProgressColumn):
    """Time left, where the number of documents is known."""

    def render(self, task: Task) -> Text:
        now = task.completed - task.fields["documents_before"]
        if task.total is None or not now:
            return Text("")
        seconds = int((time.monotonic() - task.fields["started"]) * (task.total - task.completed) / now)
        return Text(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left")


class Meter:
    """Shows how far a study is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task(
            "studying", total=None, texts=0, before=0, documents_before=0, unit="texts", started=time.monotonic()
        )

    def __call__(self, done: Done) -> None:
        self._progress.update(
            self._task,
            total=done.expected,
            completed=done.documents,
            texts=done.texts,
            before=done.texts_before,
            documents_before=done.documents_before,
            unit=done.unit,
        )


@contextmanager
def metering(*, quiet: bool) -> Iterator[Meter | None]:
    """A progress line on stderr while a study runs."""
    if quiet:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), _Speed(), TimeElapsedColumn(), _Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Meter(progress)


@contextmanager
def working(message: str, *, quiet: bool) -> Iterator[None]:
    """A sign on stderr that something goes on, where there is a terminal to show it."""
    if quiet:
        yield
        return
    with Console(stderr=True).status(message):
        yield


@contextmanager
def telling(*, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """What to tell of work whose parts are counted, shown on stderr; of an unknown whole only how far it is."""
    if quiet:
        yield None
        return
    with Console(stderr=True).status("starting") as status:

        def tell(what: str, done: int, whole: int) -> None:
            status.update(f"{what}: {done:,}" + (f" of {whole:,}" if whole else ""))

        yield tell
