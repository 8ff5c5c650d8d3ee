"""Segments as chunks for retrieval, with the calls that LangChain's and LlamaIndex's splitters have.

Neither is needed: the splitter is a plain class with `split_text`, `split_documents`, `create_documents` and
`transform_documents` (LangChain), and can be called on nodes (LlamaIndex). Documents are made by the class of those
given, so what goes in as a LangChain document comes out as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.errors import CorpusError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.segmentation.asked import check
from headscope.segmentation.result import Segment
from headscope.segmentation.segment import segment


@dataclass
class Chunk:
    """A document of our own, where no other class is there to make one of: LangChain's two attributes."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)


class Splitter:
    """Cuts texts where their subject changes.

    >>> splitter = Splitter("minilm")
    >>> len(splitter.split_text("Rain fell. The storm brought thunder. " * 3))
    1
    """

    def __init__(
        self, model: Model | str | Path = "minilm", *, granularity: float = 1.0, max_characters: int | None = None
    ) -> None:
        if max_characters is not None and not (isinstance(max_characters, int) and max_characters > 0):
            raise CorpusError(f"max_characters is {max_characters!r}: it is a number of characters, 1 or more")
        check(None, granularity)
        self.model = model if isinstance(model, Model) else load(model)
        self.granularity = granularity
        self.max_characters = max_characters

    def split_text(self, text: str) -> list[str]:
        """The segments, which joined are the text. An empty text has none."""
        return [text[start:end] for start, end in self._spans(text)]

    def create_documents(self, texts: Sequence[str], metadatas: Sequence[dict[str, Any]] | None = None) -> list[Any]:
        """A document for each segment of each text, with its `start_index` in the text."""
        about = [{} for _ in texts] if metadatas is None else metadatas
        return [
            Chunk(text[start:end], {**metadata, "start_index": start})
            for text, metadata in zip(texts, about, strict=True)
            for start, end in self._spans(text)
        ]

    def split_documents(self, documents: Iterable[Any]) -> list[Any]:
        """A document for each segment, of the class of the one it is from, with its metadata."""
        return [part for document in documents for part in self._parts(document)]

    def transform_documents(self, documents: Sequence[Any], **options: Any) -> list[Any]:
        return self.split_documents(documents)

    def __call__(self, nodes: Sequence[Any], **options: Any) -> list[Any]:
        return self.split_documents(nodes)

    get_nodes_from_documents = __call__

    def _parts(self, document: Any) -> list[Any]:
        if isinstance(document, str):
            return self.split_text(document)
        kind = type(document)
        name = next((held for held in ("page_content", "text") if isinstance(getattr(document, held, None), str)), None)
        if name is None:
            raise CorpusError(f"a {kind.__name__} has no text: documents have `page_content` or `text`")
        text = getattr(document, name)
        metadata = dict(getattr(document, "metadata", None) or {})
        return [
            kind(**{name: text[start:end], "metadata": {**metadata, "start_index": start}})
            for start, end in self._spans(text)
        ]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        if not text.strip():
            return []
        made = segment(self.model, text, granularity=self.granularity)
        return [span for part in made for span in self._bounded(part, made.edges.tolist())]

    def _bounded(self, part: Segment, edges: list[int]) -> list[tuple[int, int]]:
        """A segment that is too long, in parts of whole sentences as far as they fit."""
        most = self.max_characters
        if most is None or part.end - part.start <= most:
            return [(part.start, part.end)]
        spans: list[tuple[int, int]] = []
        start = part.start
        ends = [edge for edge in edges if part.start < edge <= part.end]
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            while end - start > most:
                spans.append((start, start + most))
                start += most
            if end > start and (following is None or following - start > most):
                spans.append((start, end))
                start = end
        return spans
