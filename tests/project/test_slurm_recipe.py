"""The scripts of docs/slurm.md, run as they are printed there, with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headscope
from headscope.studies.result import open_study
from tests.helpers.interrupting import files, save_tiny_model

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
SHARES = 3

SRUN = """#!/bin/bash
exec "$@"
"""

SCONTROL = """#!/bin/bash
[ "$1" = requeue ] && touch "requeued-$2"
"""

# Runs the jobs at once, one after the other, and those that are requeued again. A job waits in vain for one that
# failed.
SBATCH = """#!{python}
import os, pathlib, re, subprocess, sys
options = dict(part.partition("=")[::2] for part in sys.argv[1:-1])
script = pathlib.Path(sys.argv[-1])
job = str(100 + len(list(pathlib.Path().glob("job-*"))))
directives = dict(re.findall(r"^#SBATCH (--[a-z-]+)(?:=(.*))?$", script.read_text(), re.MULTILINE))
array = options.get("--array", directives.get("--array", ""))
first, _, last = array.partition("-")
tasks = [str(k) for k in range(int(first), int(last) + 1)] if last else array.split(",")
codes = []
awaited = options.get("--dependency", "").removeprefix("afterok:")
if awaited and pathlib.Path(f"job-{{awaited}}").read_text().strip("0 "):
    tasks = []
for task in tasks:
    environment = os.environ | {{"SLURM_JOB_ID": job}}
    if task:
        environment |= {{"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": task,
                        "SLURM_ARRAY_TASK_COUNT": str(len(tasks))}}
    requeued = pathlib.Path(f"requeued-{{job}}_{{task}}")
    while True:
        with open("log", "ab") as log:
            code = subprocess.run(["bash", str(script)], env=environment, stdout=log, stderr=log).returncode
        if not requeued.exists():
            break
        requeued.unlink()
    codes.append(str(code))
pathlib.Path(f"job-{{job}}").write_text(" ".join(codes))
if "--parsable" in options:
    print(job)
"""

# The real command, with small chunks and without figures. A file `signal-SHARE` has it receive that signal once, in
# the middle.
HEADSCOPE = """#!{python}
import os, pathlib, sys
from headscope import output_folder
from headscope.corpus.chunks import ChunkSize
output_folder.write_figures = lambda *given: []
if sys.argv[1] == "study":
    from headscope.run import local_engine, plan
    from headscope.run.executor import BatchExecutor
    plan.choose_chunk_size = lambda *more: ChunkSize(documents=4, bytes=300)
    local_engine.FLUSH_SECONDS = 0.0
    planned = pathlib.Path("signal-" + os.environ["SLURM_ARRAY_TASK_ID"])
    if planned.exists():
        add, batches = BatchExecutor.add, iter(range(10**6))
        def add_batch(self, batch):
            if next(batches) == 4:
                number = int(planned.read_text())
                planned.unlink()
                os.kill(os.getpid(), number)
            add(self, batch)
        BatchExecutor.add = add_batch
from headscope.__main__ import main
main()
"""


def get_block(name: str) -> str:
    """Return the block of the page behind a comment with its name, for fewer shares, and windows of a tiny model."""
    (block,) = re.findall(rf"<!-- {re.escape(name)} -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
    text = str(block).replace("--array=1-16", f"--array=1-{SHARES}").replace("SHARES=16", f"SHARES={SHARES}")
    return text.replace("--array=3,7", "--array=3").replace("--model ./model", "--model ./model --length 24")


@pytest.mark.skipif(sys.platform == "win32" or shutil.which("bash") is None, reason="the recipe is for bash")
@pytest.mark.usefixtures("small_chunks")
def test_the_recipe_makes_the_study_of_the_whole_corpus(tmp_path: Path):
    save_tiny_model(tmp_path / "model")
    files(tmp_path / "corpus", [60, 40])
    for name in ("study.sbatch", "merge.sbatch"):
        (tmp_path / name).write_text(get_block(name), "utf-8")
    commands = {"srun": SRUN, "scontrol": SCONTROL, "sbatch": SBATCH, "headscope": HEADSCOPE}
    (tmp_path / "bin").mkdir()
    for name, text in commands.items():
        path = tmp_path / "bin" / name
        path.write_text(text.format(python=sys.executable) if "{python}" in text else text, "utf-8")
        path.chmod(0o755)

    def submit(name: str) -> None:
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["bash", "-e", "-c", get_block(name)], cwd=tmp_path, env=environment, check=True)

    (tmp_path / "signal-2").write_text("15")  # as at the end of its time
    (tmp_path / "signal-3").write_text("9")  # as where there is too little memory
    submit("submit")
    log = (tmp_path / "log").read_text("utf-8")
    assert (tmp_path / "job-100").read_text() == "0 0 137", log
    assert "headscope: terminated. What was counted is kept in shares/2" in log
    assert log.count("resuming: ") == 1
    assert "Traceback" not in log
    assert not (tmp_path / "merged").exists()
    submit("again")
    log = (tmp_path / "log").read_text("utf-8")
    assert [(tmp_path / f"job-{number}").read_text() for number in (102, 103)] == ["0", "0"], log

    merged = open_study(tmp_path / "merged")
    whole = headscope.study(
        headscope.load(tmp_path / "model", device="cpu"), headscope.documents([tmp_path / "corpus"]), length=24
    )
    for name, variable in whole.data.variables.items():
        if str(name).startswith("source"):  # each share has sources of its own
            continue
        there = merged.data[name].values
        if variable.dtype.kind == "f":
            np.testing.assert_allclose(variable.values, there, rtol=1e-12, atol=1e-12, err_msg=str(name))
        else:
            np.testing.assert_array_equal(variable.values, there, err_msg=str(name))
    for name in ("corpus_hash", "documents_read", "sample", "share", "complete", "theta", "length"):
        assert merged.manifest[name] == whole.manifest[name], name
