"""Segments as chunks for retrieval, with the interface of LangChain's and LlamaIndex's text splitters.

Neither library is needed: the splitter is a plain class with `split_text`, `split_documents`, `create_documents` and
`transform_documents` (LangChain), and can be called with nodes (LlamaIndex). Documents are returned in the class of the
input, so LangChain documents stay LangChain documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headscope.corpus.formats import Document
from headscope.errors import CorpusError
from headscope.model.loading import ModelSource, resolve_model
from headscope.segmentation.result import Segment, validate_options
from headscope.segmentation.segment import segment


@dataclass
class Chunk:
    """A document with the attributes of LangChain's, for inputs that are strings."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)


class Splitter:
    """Split texts where their subject changes.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer).
    granularity
        Above 1 gives more segments, below 1 fewer, see `headscope.segment`.
    max_characters
        Longer segments are split between sentences, and longer sentences anywhere.

    Examples
    --------

    >>> splitter = Splitter("minilm")
    >>> len(splitter.split_text("Rain fell. The storm brought thunder. " * 3))
    1
    """

    def __init__(
        self, model: ModelSource = "minilm", *, granularity: float = 1.0, max_characters: int | None = None
    ) -> None:
        if max_characters is not None and not (isinstance(max_characters, int) and max_characters > 0):
            raise CorpusError(f"max_characters is {max_characters!r}: it is a number of characters, 1 or more")
        validate_options(None, granularity)
        self.model = resolve_model(model)
        self.granularity = granularity
        self.max_characters = max_characters

    def split_text(self, text: str) -> list[str]:
        """Return the segments of a text.

        Parameters
        ----------
        text
            The text.

        Returns
        -------
        list of str
            Joined they are the text; an empty text has none.

        Examples
        --------
        >>> splitter = Splitter("minilm", max_characters=20)
        >>> splitter.split_text("Two ravens met. The ravens left.")
        ['Two ravens met. ', 'The ravens left.']
        """
        return [text[start:end] for start, end in self._find_spans(text)]

    def create_documents(self, texts: Sequence[str], metadatas: Sequence[dict[str, Any]] | None = None) -> list[Any]:
        """Return a document for each segment of each text.

        Parameters
        ----------
        texts
            The texts.
        metadatas
            Metadata for each text.

        Returns
        -------
        list
            Documents with `page_content`, and `metadata` with the `start_index` in the text.

        Examples
        --------
        >>> splitter = Splitter("minilm", max_characters=20)
        >>> documents = splitter.create_documents(["Two ravens met. The ravens left."], [{"source": "tales"}])
        >>> documents[1].metadata
        {'source': 'tales', 'start_index': 16}
        """
        all_metadata = [{} for _ in texts] if metadatas is None else metadatas
        return [
            Chunk(text[start:end], {**metadata, "start_index": start})
            for text, metadata in zip(texts, all_metadata, strict=True)
            for start, end in self._find_spans(text)
        ]

    def split_documents(self, documents: Iterable[Any]) -> list[Any]:
        """Return a document for each segment of these documents.

        Parameters
        ----------
        documents
            Strings, or objects with `page_content` or `text`, and `metadata`.

        Returns
        -------
        list
            Of the class and with the metadata of the document that each is from, with its `start_index`.

        Raises
        ------
        CorpusError
            A document has no text.

        Examples
        --------
        >>> splitter = Splitter("minilm", max_characters=20)
        >>> splitter.split_documents(["Two ravens met. The ravens left."])
        ['Two ravens met. ', 'The ravens left.']
        """
        return [part for document in documents for part in self._split_document(document)]

    def transform_documents(self, documents: Sequence[Any], **options: Any) -> list[Any]:
        """Return what `split_documents` returns, under the name that LangChain calls.

        Parameters
        ----------
        documents
            As for `split_documents`.
        options
            Ignored.

        Returns
        -------
        list

        Examples
        --------
        >>> Splitter("minilm").transform_documents(["Two ravens met."])
        ['Two ravens met.']
        """
        return self.split_documents(documents)

    def __call__(self, nodes: Sequence[Any], **options: Any) -> list[Any]:
        """Return what `split_documents` returns, under the names that LlamaIndex calls.

        Parameters
        ----------
        nodes
            As the documents of `split_documents`.
        options
            Ignored.

        Returns
        -------
        list

        Examples
        --------
        >>> Splitter("minilm").get_nodes_from_documents(["Two ravens met."])
        ['Two ravens met.']
        """
        return self.split_documents(nodes)

    get_nodes_from_documents = __call__

    def _split_document(self, document: Any) -> list[Any]:
        if isinstance(document, str):
            return self.split_text(document)
        cls = type(document)
        names = (name for name in ("page_content", "text") if isinstance(getattr(document, name, None), str))
        attribute = next(names, None)
        if attribute is None:
            raise CorpusError(f"a {cls.__name__} has no text: documents have `page_content` or `text`")
        text = getattr(document, attribute)
        metadata = dict(getattr(document, "metadata", None) or {})
        return [
            cls(**{attribute: text[start:end], "metadata": {**metadata, "start_index": start}})
            for start, end in self._find_spans(text)
        ]

    def _find_spans(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each chunk."""
        if not text.strip():
            return []
        segmentation = segment(self.model, Document(text, "the text"), granularity=self.granularity)
        edges = segmentation.edges.tolist()
        return [span for part in segmentation for span in self._limit_length(part, edges)]

    def _limit_length(self, part: Segment, edges: list[int]) -> list[tuple[int, int]]:
        """Return the spans of a segment: one, or several with as many whole sentences as fit if it is too long."""
        limit = self.max_characters
        if limit is None or part.end - part.start <= limit:
            return [(part.start, part.end)]
        spans: list[tuple[int, int]] = []
        start = part.start
        ends = [edge for edge in edges if part.start < edge <= part.end]
        for end, next_end in zip(ends, [*ends[1:], None], strict=True):
            while end - start > limit:
                spans.append((start, start + limit))
                start += limit
            if end > start and (next_end is None or next_end - start > limit):
                spans.append((start, end))
                start = end
        return spans
