"""A worker on a cluster."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from headscope.corpus.documents import Corpus
from headscope.engines.leases import Lease
from headscope.engines.worker import Worker
from headscope.studies.job import Job
from headscope.studies.standing import Standing


class Remote:
    """What runs in a process of its own, anywhere on the cluster."""

    def __init__(
        self, origin: dict[str, Any], device: str, corpus: Corpus, job: Job, threads: int, folder: str
    ) -> None:
        self.given, self.folder = (origin, device, corpus, job, threads), folder

    def ready(self) -> str:
        """Load the model; returns its weights' hash. Not done on construction: of an error there Ray keeps no more than
        its words, and takes the worker for one that died."""
        import torch

        from headscope.model.loading import load

        with suppress(OSError):  # names of files are those of where the command was given, where there is such a folder
            os.chdir(self.folder)
        origin, device, corpus, job, threads = self.given
        torch.set_num_threads(threads)
        model = load(**origin, device=device)
        job.check(model)  # another machine, perhaps with another processor
        self.worker = Worker(model, corpus, job)
        return model.weight_hash

    def work(self, lease: Lease) -> tuple[Standing, float]:
        began = time.monotonic()
        return self.worker.work(lease), time.monotonic() - began
