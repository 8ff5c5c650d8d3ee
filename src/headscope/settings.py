"""Settings of a study, and the table of everything that its manifest records.

Every field of `Settings` is a command-line option and a keyword argument of `headscope.study`. `MANIFEST` says of every
entry of a manifest what must be equal for studies to be resumed, merged and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from headscope.corpus.windows import BlockMode, SentenceMode, WindowMode, WindowSpec
from headscope.errors import StudyError
from headscope.similarity import TAU, THETA, Similarity

MAX_SMALL_CORPUS = 2000
"""Largest number of documents for which all texts are in the sample."""
SAMPLE_FRACTION = 0.05
MAX_LENGTH_WITH_MAPS = 256
"""Largest window length for which N×N maps are kept by default."""
MAX_LENGTH = 2**20
MAX_BATCH_SIZE = 2**20
AUTO = "auto"
ALL_RELATIONS, NO_RELATIONS = "all", "none"
CHOICES = {
    "windows": get_args(WindowMode),
    "sentences": get_args(SentenceMode),
    "blocks": get_args(BlockMode),
    "similarity": get_args(Similarity),
}
KERNELS = {
    "triton": "on NVIDIA GPUs",
    "numba": "on CPUs",
    "torch": "anywhere torch runs",
    "reference": "the definition in plain loops, slow",
}


@dataclass(frozen=True)
class Settings:
    """Options of a study; the defaults follow the paper."""

    length: int = 128
    windows: WindowMode = "first"
    sentences: SentenceMode = "tokens"
    min_tokens: int = 2
    blocks: BlockMode = "documents"
    """what standard errors are computed over; blocks of windows give errors that are too small"""
    theta: float = THETA
    tau: float = TAU
    similarity: Similarity = "dot"
    sample: float | None = None
    """fraction of the texts in the sample; None: 1 where the corpus is known to be small, else 0.05"""
    maps: bool | None = None
    """keep N×N maps; None: for windows of up to 256 tokens"""
    skip_broken: bool = False
    """skip and count documents that the tokenizer cannot process; otherwise the first of them is an error"""
    relations: str = "all"
    """labelled relations that are measured: `all`, `none`, or their names with commas between them; or the name of a
    function of the user, of which all are"""
    examples: bool = True
    """keep texts that show what each head does, and the beginnings of the first documents"""

    def __post_init__(self) -> None:
        if self.length < 3:
            raise StudyError(f"length is {self.length}: a window needs at least 3 tokens")
        if self.length > MAX_LENGTH:
            raise StudyError(f"length is {self.length}: a window has at most {MAX_LENGTH:,} tokens")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise StudyError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}")
        for name in ("theta", "tau"):
            if not 0 < getattr(self, name) < 1:
                raise StudyError(f"{name} is {getattr(self, name)}: it is a share of the maximum, between 0 and 1")
        if self.sample is not None and not 0 <= self.sample <= 1:
            raise StudyError(f"sample is {self.sample}: it is a fraction of the texts, from 0 to 1")
        if self.min_tokens < 1:
            raise StudyError(f"min_tokens is {self.min_tokens}: at least 1")
        if not self.relations.strip(", "):
            raise StudyError("relations is empty: all, none, or names of relations with commas between them")

    def choose_sample(self, expected: int | None, limit: int | None) -> float:
        """Return the fraction of the texts in the sample.

        Args:
            expected: Number of documents, if it is at most `MAX_SMALL_CORPUS`.
            limit: Number of documents that are read at most.
        """
        if self.sample is not None:
            return self.sample
        is_small = expected is not None or (limit is not None and limit <= MAX_SMALL_CORPUS)
        return 1.0 if is_small else SAMPLE_FRACTION

    def describe(self) -> dict[str, Any]:
        """Return the entries of a manifest that depend on these settings alone."""
        values = asdict(self) | {"maps": int(self.keeps_maps), "examples": int(self.examples)}
        return {name: value for name, value in values.items() if name not in ("sample", "skip_broken")}

    @property
    def cut(self) -> WindowSpec:
        return WindowSpec(
            self.length,
            self.windows,
            self.sentences,
            self.min_tokens,
            skip_broken=self.skip_broken,
            blocks=self.blocks,
            relations=self.relation_labels,
        )

    @property
    def relation_labels(self) -> tuple[str, ...] | None:
        """Names of the labelled relations that are measured; None: all."""
        if self.relations == NO_RELATIONS:
            return ()
        if self.relations == ALL_RELATIONS or self.relations.startswith("function "):
            return None
        return tuple(filter(None, (name.strip() for name in self.relations.split(","))))

    @property
    def keeps_maps(self) -> bool:
        return self.length <= MAX_LENGTH_WITH_MAPS if self.maps is None else self.maps


def check_target_windows(windows: WindowMode, *, has_targets: bool) -> None:
    """Raise a StudyError if documents with a target should have more than one window."""
    if has_targets and windows == "all":
        raise StudyError(
            "with --target a document has one window, of the beginnings of text and target: later ones would not "
            "belong together. Leave --windows out, and cut the texts into sentences or paragraphs"
        )


def check_run_options(batch_size: int | None, kernel: str, checkpoint_interval: float) -> None:
    """Raise a StudyError for invalid run options. Whether a kernel works here is checked when the engine starts."""
    if batch_size is not None and not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise StudyError(f"batch size is {batch_size}: from 1 to {MAX_BATCH_SIZE:,}")
    if kernel not in (AUTO, *KERNELS):
        raise StudyError(f"unknown kernel {kernel!r}; there are: {', '.join((AUTO, *KERNELS))}")
    if not checkpoint_interval >= 0:
        raise StudyError(f"{checkpoint_interval} seconds between checkpoints: at least 0")


Use = Literal["resume", "repeat", "merge", "join shares", "compare"]
"""What is done with a study: resume it from its checkpoint; take it for the result of the same command, given again;
merge it with one of other texts; join shares of one corpus, which is a merge that needs more to match; compare it."""
Kind = Literal["text", "number", "yes or no", "JSON"]


@dataclass(frozen=True)
class ManifestEntry:
    """An entry of the manifest of a study."""

    name: str
    label: str
    """what it is called in pages and messages"""
    kind: Kind = "text"
    must_match: tuple[Use, ...] = ()
    """what is refused if the entry differs"""
    warns: tuple[Use, ...] = ()
    """what tells the user of a difference, or needs permission; nothing else depends on the entry"""
    default: Any = None
    """value of studies that were made before there was this entry, if it is known"""


UNVERIFIED = "unverified capture, numbers could be wrong"
COUNTED: tuple[Use, ...] = ("resume", "repeat", "merge")
"""Uses of which everything must match that sums depend on."""
MANIFEST = (
    ManifestEntry("model", "Model", must_match=COUNTED),
    ManifestEntry("model_type", "Architecture"),
    ManifestEntry("stack", "Stack", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("stacks", "Stacks that can be observed"),
    ManifestEntry("layers", "Layers with attention", "number", must_match=COUNTED),
    ManifestEntry("depth", "Layers in all", "number"),
    ManifestEntry("heads", "Heads in a layer", "number", must_match=COUNTED),
    ManifestEntry("causal", "Tokens see only what came before", "yes or no", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("modality", "Input", must_match=("compare",)),
    ManifestEntry("tokenizer", "Tokenizer", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("first_special_token", "First special token"),
    ManifestEntry("first_token_role", "Role of this token"),
    ManifestEntry("route", "Heads observed through"),
    ManifestEntry("verified", "Capture verified", "yes or no", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("verified_note", "Why it is not verified"),
    ManifestEntry("weight_hash", "Hash of the weights", must_match=COUNTED),
    ManifestEntry("trusted", "Trusted on request"),
    ManifestEntry("corpus", "Corpus", must_match=("repeat", "join shares")),
    ManifestEntry("corpus_version", "Hash of the sizes and times of the files", warns=("repeat", "join shares")),
    ManifestEntry("limit", "Limit of documents", must_match=("resume", "repeat")),
    ManifestEntry("field", "Field of the text", must_match=("resume", "repeat", "join shares")),
    ManifestEntry("target", "Field of the decoder's target", must_match=COUNTED, warns=("compare",), default="none"),
    ManifestEntry("text_format", "Format of the texts", must_match=("resume", "repeat", "join shares")),
    ManifestEntry("encoding", "Encoding of the texts", must_match=("resume", "repeat", "join shares")),
    ManifestEntry("skip_broken", "Broken documents are skipped", "yes or no", must_match=("repeat",)),
    ManifestEntry("share", "Share of the corpus", must_match=("resume", "repeat")),
    ManifestEntry("chunks", "Hash of the chunks", must_match=("join shares",)),
    ManifestEntry("chunk_size", "Size of a chunk", must_match=("join shares",)),
    ManifestEntry("documents_read", "Documents read", "number"),
    ManifestEntry("documents_skipped", "Documents skipped", "JSON"),
    ManifestEntry("corpus_hash", "Hash of the documents", warns=("compare",)),
    ManifestEntry("excerpts", "Excerpts", "JSON"),
    ManifestEntry("windows", "Windows taken of a document", must_match=(*COUNTED, "compare")),
    ManifestEntry("length", "Tokens in a window", "number", must_match=(*COUNTED, "compare")),
    ManifestEntry("min_tokens", "Shortest text, tokens", "number", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("sentences", "How sentences are found", must_match=(*COUNTED, "compare")),
    ManifestEntry("blocks", "Blocks for standard errors", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("theta", "Threshold θ of a high pair", "number", must_match=(*COUNTED, "compare")),
    ManifestEntry("tau", "Threshold τ of a line", "number", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("similarity", "Similarity of outputs", must_match=(*COUNTED, "compare"), default="dot"),
    ManifestEntry("similarity_note", "What this similarity leaves out"),
    ManifestEntry("sample", "Fraction of texts in the sample", "number", must_match=COUNTED),
    ManifestEntry("maps", "N×N maps kept", "yes or no", must_match=COUNTED),
    ManifestEntry("relations", "Labelled relations measured", must_match=COUNTED, default="all"),
    ManifestEntry("examples", "Texts kept as examples", "yes or no", must_match=COUNTED, default=0),
    ManifestEntry("dtype", "Dtype", must_match=COUNTED, warns=("compare",)),
    ManifestEntry("tf32", "Products in TF32", "yes or no", must_match=("resume", "repeat")),
    ManifestEntry("kernel", "Kernel", must_match=("resume", "repeat")),
    ManifestEntry("kernel_note", "Why this kernel"),
    ManifestEntry("batch_size", "Batch size", "number", must_match=("resume",)),
    ManifestEntry("batch_size_note", "Why this size"),
    ManifestEntry("batching", "Texts that share a batch"),
    ManifestEntry("complete", "Complete", "yes or no", warns=("compare",)),
    ManifestEntry("stopped_by", "Stopped by"),
    ManifestEntry("date", "Date"),
    ManifestEntry("duration_seconds", "Duration", "number"),
    ManifestEntry("timing", "Timing", "JSON"),
    ManifestEntry("runs", "Runs", "number"),
    ManifestEntry("device", "Device"),
    ManifestEntry("platform", "Platform"),
    ManifestEntry("command", "Command"),
    ManifestEntry("headscope", "headscope", must_match=("resume",), warns=("compare",)),
    ManifestEntry("versions", "Versions", "JSON"),
    ManifestEntry("format", "File format", "number", warns=("compare",)),
)
"""All entries of a manifest. The names of the files must match as well when a run is resumed (`RunPlan.get_identity`).
τ may differ between studies that are compared: it decides only lines, and nothing compared depends on lines."""


def describe_unverified(manifest: Mapping[str, Any]) -> str:
    """Return the mark of results of a model whose captured heads are not verified; empty if they are.

    >>> describe_unverified({"verified": 0, "verified_note": "layer 0: heads are mixed"})
    'unverified capture, numbers could be wrong: layer 0: heads are mixed'
    """
    if manifest.get("verified", 1):
        return ""
    return f"{UNVERIFIED}: {manifest.get('verified_note') or 'the reason was not recorded'}"


def get_value(manifest: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """Return an entry of a manifest, its known default in older studies, or something else."""
    default = next((entry.default for entry in MANIFEST if entry.name == name), None)
    return manifest.get(name, otherwise if default is None else default)


def list_matching(use: Use) -> tuple[str, ...]:
    """Return the names of the entries that must be equal for this use of studies."""
    return tuple(entry.name for entry in MANIFEST if use in entry.must_match)


def list_of_kind(*kinds: Kind) -> tuple[str, ...]:
    """Return the names of the entries of these kinds."""
    return tuple(entry.name for entry in MANIFEST if entry.kind in kinds)
