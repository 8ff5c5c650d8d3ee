"""The paper's job: 20,000 windows through a 12×12×768 model, from texts on disk to study.nc, and where the seconds go.

    python benchmarks/job.py [--windows 20000] [--shape 12x12x768 | --model FOLDER] [--device cuda] [--json FILE]

In one process, as anybody would do it in Python: load, study, save. What is needed for it is made first, in a temporary
folder, always the same: a file of texts, each of sentences of the bundled texts (or of `--source`) in random order, a
WordPiece tokenizer of their words, and a model of random weights. `benchmarks/speed.py --docs` writes the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORDS_KEPT = 6000
TEXT_WORDS = 140
"""enough to fill a window of 128 tokens"""
BARE_TEXTS = 2048
"""on CUDA; on a CPU one batch"""
NO_NETCDF = "saving skipped: h5netcdf is not installed"


# -- what is needed for it ---------------------------------------------------------------------------------------------


def sentences_of(source: str | None, least: int = 4) -> list[str]:
    """The sentences of some documents, each with a few words at least."""
    import headscope

    documents = headscope.documents(source) if source else headscope.documents()
    text = " ".join(document.text for document in documents)
    return [each for each in re.findall(r"[^.!?]+[.!?]", text) if len(each.split()) >= least]


def common_words(sentences: list[str]) -> list[str]:
    counted = Counter(word for each in sentences for word in re.findall(r"[a-z]{2,}", each.lower()))
    return [word for word, _ in counted.most_common(WORDS_KEPT)]


def write_texts(path: Path, sentences: list[str], count: int, length: int) -> None:
    """One JSON object a line; every text long enough for a window, none like another."""
    import numpy as np

    random = np.random.default_rng(0)
    wanted = TEXT_WORDS * length // 128
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            text: list[str] = []
            while sum(len(each.split()) for each in text) < wanted:
                text.append(sentences[random.integers(len(sentences))].strip())
            file.write(json.dumps({"text": " ".join(text)}) + "\n")


def write_model(folder: Path, shape: str, words: list[str], length: int) -> None:
    from measuring import setup

    network = setup.random_network(*setup.sizes(shape), positions=max(512, length), words=len(words))
    network.save_pretrained(folder)
    setup.word_tokenizer(words).save_pretrained(folder)


# -- the job -----------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def parts_of(study: Any, whole: float) -> dict[str, float]:
    """Where the study's own seconds go, as far as its manifest tells."""
    told = study.data.attrs.get("timing")
    parts = {f"study: {name.replace('_', ' ')}": float(taken) for name, taken in json.loads(told or "{}").items()}
    return parts or {"study": whole}


def done(options: argparse.Namespace) -> dict[str, Any]:
    """In this process, in which nothing was imported yet: load, study, save."""
    clock, words, out = Clock(), [], Path(options.out)
    started = time.perf_counter()
    with clock.of("importing headscope and torch"):
        import torch

        import headscope
        import headscope.studies.study
    with clock.of("loading the model"):
        model = headscope.load(options.model, device=options.device, dtype=options.dtype)
    chosen: dict[str, Any] = {"kernel": options.kernel} if options.kernel else {}
    if options.tf32 is not None:
        chosen["tf32"] = options.tf32
    with clock.of("study"):
        study = headscope.study(model, options.inside, length=options.length, batch_size=options.batch, **chosen)
    whole = clock.seconds.pop("study")
    clock.seconds |= parts_of(study, whole)
    if importlib.util.find_spec("h5netcdf"):
        with clock.of("saving study.nc"):
            study.save(out)
        words.append(f"study.nc has {(out / 'study.nc').stat().st_size / 1e6:.1f} MB.")
    else:
        words.append(f"{NO_NETCDF}.")
    clock.seconds["all"] = time.perf_counter() - started
    words.insert(0, f"{study.texts / whole:,.0f} windows per second in the study of {whole:.1f} s.")
    kept = {name: study.manifest[name] for name in ("kernel", "batch_size", "sample")}
    rounded = bool(study.manifest["tf32"])
    torch.set_float32_matmul_precision("high" if rounded else "highest")  # the model alone, likewise
    words.append(alone(options, model, study.texts, int(kept["batch_size"])))
    return {"seconds": clock.seconds, "words": words, "windows": study.texts, "tf32": rounded, **kept}


def alone(options: argparse.Namespace, model: Any, texts: int, batch_size: int) -> str:
    """For comparison: the texts without the model, and the model without the texts."""
    import headscope
    from headscope.corpus.windows import WindowSpec
    from measuring import ways
    from measuring.rounds import seconds
    from measuring.setup import batches_of

    cut, windows = WindowSpec(length=options.length), []
    started = time.perf_counter()
    for document in headscope.documents(options.inside):
        made = model.windows(document, cut)
        windows += [] if isinstance(made, str) else made
    reading = time.perf_counter() - started
    few = windows[: BARE_TEXTS if model.device.type == "cuda" else batch_size]
    job = ways.Job(model, batches_of(model, few, batch_size), options.length)
    run = ways.bare(job)
    run()
    bare = min(seconds(run, model.device) for _ in range(3)) * texts / job.texts
    return (
        f"By themselves: reading and cutting all texts one after another takes {reading:.1f} s, the bare forward pass "
        f"(sdpa, batches of {batch_size}, from {job.texts} windows) {bare:.1f} s."
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=20_000)
    parser.add_argument("--shape", default="12x12x768", metavar="LAYERSxHEADSxWIDTH")
    parser.add_argument("--model", metavar="FOLDER", help="this model instead of random weights")
    parser.add_argument("--source", metavar="FILE", help="sentences from these documents; without it the bundled ones")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, help="windows at a time; without it as headscope chooses")
    parser.add_argument("--kernel", help="without it as headscope chooses")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--tf32",
        action=argparse.BooleanOptionalAction,
        help="float32 products on CUDA; without it as headscope chooses",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # the process that does the job: its file of texts
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        print(json.dumps(done(options)))
        return
    with tempfile.TemporaryDirectory() as held:
        result = in_new_process(options, Path(held))
    from measuring.speed_tables import job_table
    from measuring.tables import save

    print(job_table(result))
    if options.json:
        save(result, options.json)


def in_new_process(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make what is needed, then have the job done by a process that starts from nothing."""
    import torch

    from measuring.tables import machine

    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    sentences = sentences_of(options.source)
    write_texts(folder / "texts.jsonl", sentences, options.windows, options.length)
    if not options.model:
        write_model(folder / "model", options.shape, common_words(sentences), options.length)
    given = ["--inside", folder / "texts.jsonl", "--model", options.model or folder / "model", "--out", folder]
    given += ["--length", options.length, "--device", device, "--dtype", options.dtype]
    given += [
        part for name in ("batch", "kernel") if (value := getattr(options, name)) for part in (f"--{name}", value)
    ]
    given += [] if options.tf32 is None else ["--tf32" if options.tf32 else "--no-tf32"]
    about = {
        "model": Path(options.model).name if options.model else f"random weights, {options.shape}",
        "length": options.length,
        "device": device,
        "dtype": options.dtype,
        **machine(device),
    }
    ran = subprocess.run([sys.executable, __file__, *map(str, given)], stdout=subprocess.PIPE, text=True, check=True)
    return {"kind": "job", "about": about, **json.loads(ran.stdout.splitlines()[-1])}


if __name__ == "__main__":
    main()
