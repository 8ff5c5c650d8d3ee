"""Plan of a run: everything decided once, so that every worker and every resumed run does the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from headscope import provenance
from headscope.corpus.chunks import Chunk, ChunkSize
from headscope.corpus.documents import Corpus
from headscope.model.model import Model
from headscope.run.engines import Share, check_limit, format_share
from headscope.settings import MAX_SMALL_CORPUS, Settings, list_matching
from headscope.tally.output_maps import OutputMap, describe_map
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings

SECONDS_PER_CHUNK = 16.0
"""A chunk holds about so much work; `benchmarks/chunks.py` shows what other sizes cost."""
OPERATIONS_PER_SECOND = 0.17e12
"""Floating-point operations of the forward pass on two CPU cores, measured."""
GPU_SPEEDUP = 64
"""A chunk holds so many times more for a GPU, to fill its larger batches."""
DOCUMENTS_CPU, DOCUMENTS_GPU = (16, 4096), (1024, 65536)
"""documents of a chunk, at least and at most"""
SECTION_CHUNKS = 2
"""A section, the unit of counting, ends at so many times the documents of a chunk: chunks are cut by bytes, and most
that hold more documents than expected are still one section."""
BYTES_PER_TOKEN = 4.5
BYTES_PER_DOCUMENT = 2000.0
"""used if no document was measured"""
MIN_BYTES, MAX_CHUNKS = 2**16, 200_000


@dataclass(frozen=True)
class RunPlan:
    """Settings of a study as the model takes them, and how its corpus is cut into chunks."""

    settings: Settings
    sample: float
    """fraction of the texts in the sample"""
    chunk_size: ChunkSize
    batch_size: int | None = None
    """texts per batch, if asked for; otherwise every worker chooses it for its device"""
    kernel: str = "auto"
    tf32: bool = True
    expected: int | None = None
    """number of documents, where it is known"""
    share: Share | None = None
    """count only this share of the chunks"""
    unit: str = "texts"
    """what is counted: texts, or images"""
    similarity_note: str = ""
    """what the similarity leaves out of what heads add to the residual stream"""

    @classmethod
    def create(
        cls,
        model: Model,
        corpus: Corpus,
        settings: Settings,
        *,
        batch_size: int | None = None,
        kernel: str = "auto",
        tf32: bool = True,
        share: Share | None = None,
        device: str | None = None,
    ) -> RunPlan:
        """Plan a study. Looks at the first documents of the corpus.

        Args:
            device: Type of the device that counts, if it is not the model's.

        Raises:
            ModelError: The similarity needs to know what the model's heads add to the residual stream, and it cannot.
        """
        note = describe_map(model, settings.similarity)
        check_limit(share, corpus.limit)
        expected, mean_bytes = corpus.measure(MAX_SMALL_CORPUS)
        sample = settings.choose_sample(expected, corpus.limit)
        size = choose_chunk_size(model, settings, mean_bytes or BYTES_PER_DOCUMENT, corpus, device)
        if share is not None:
            expected = None
        return cls(settings, sample, size, batch_size, kernel, tf32, expected, share, f"{model.modality}s", note)

    @property
    def section_texts(self) -> int:
        """Number of texts at which a section ends."""
        return SECTION_CHUNKS * self.chunk_size.documents

    def get_shape(self, model: Model) -> Shape:
        """Return the shape of the sums."""
        architecture, settings = model.architecture, self.settings
        return Shape(
            architecture.layers,
            architecture.heads,
            settings.length,
            settings.keeps_maps,
            architecture.width,
            crosses=architecture.stack == "cross",
            examples=settings.examples and model.modality == "text" and architecture.stack != "cross",
        )

    def get_counting(self, model: Model) -> TallySettings:
        """Return what the sums depend on besides the model and the texts."""
        architecture, settings = model.architecture, self.settings
        return TallySettings(
            self.get_shape(model),
            settings.theta,
            settings.tau,
            self.sample,
            architecture.causal,
            architecture.numbers,
            OutputMap.create(model, settings.similarity),
        )

    def select_share(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return the chunks of this plan's share: every n-th, so that shares are of similar size."""
        if self.share is None:
            return list(chunks)
        number, total = self.share
        return [chunk for chunk in chunks if chunk.number % total == number - 1]

    def get_identity(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        """Return everything that must not change when a study is resumed, by its name in the manifest.

        How a run counts (device, engine, batch size) may change, unless it is asked for by name.
        """
        values = {
            **provenance.describe_model(model),
            **self.settings.describe(),
            **corpus.describe(),
            **provenance.describe_run(),
            "sample": self.sample,
            "batch_size": self.batch_size or "auto",
            "kernel": self.kernel,
            "tf32": self.tf32,
            "share": format_share(self.share),
        }
        identity = {name: values[name] for name in list_matching("resume")}
        return {**identity, "texts": [source.name for source in corpus.sources]}

    def resume(self, chunk_size: ChunkSize) -> RunPlan:
        """Return this plan with the chunks of the run that is resumed."""
        return replace(self, chunk_size=chunk_size)


def choose_chunk_size(
    model: Model, settings: Settings, mean_bytes: float, corpus: Corpus, device: str | None = None
) -> ChunkSize:
    """Return how much a chunk holds: a function of the model's size and the settings, so that it is the same on every
    machine, and of the length of the documents."""
    work = 2.0 * count_parameters(model) * settings.length
    documents = OPERATIONS_PER_SECOND * SECONDS_PER_CHUNK / max(work, 1.0)
    least, most = DOCUMENTS_CPU
    if (device or model.device.type) == "cuda":
        documents, (least, most) = documents * GPU_SPEEDUP, DOCUMENTS_GPU
    count = 2 ** round(math.log2(min(max(documents, least), most)))
    if settings.windows == "all":  # documents here are windows
        mean_bytes = min(mean_bytes, BYTES_PER_TOKEN * settings.length)
    total = sum(source.stamp.size for source in corpus.sources if source.stamp is not None)
    size = max(count * mean_bytes, MIN_BYTES, total / MAX_CHUNKS)
    return ChunkSize(count, 2 ** math.ceil(math.log2(size)))


def count_parameters(model: Model) -> int:
    """Return the number of parameters that every token is multiplied with: embeddings are looked up."""
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = (module for module in model.network.modules() if not isinstance(module, tables))
    return sum(weight.numel() for module in modules for weight in module.parameters(recurse=False))
