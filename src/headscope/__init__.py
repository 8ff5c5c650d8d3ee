"""headscope: statistics of what every attention head of a transformer writes, over whole corpora.

Models and texts
    load(name)                  a model: a name of the hub, a folder, or a transformers model and its tokenizer
    documents(sources)          a corpus: files, folders, URLs, datasets, or the bundled texts
    examples()                  the texts that the paper prints

A corpus
    study(model, documents)     `Study`: rates, errors, chance; .heads(), .findings(), .plot(), .report(), .save()
    compare(studies)            `Comparison`: several studies side by side
    findings(study)             the claims of the paper, measured
    match_heads(model, other)   `HeadMatch`: which heads of two models write the same
    export(model, documents, path)  what heads write, or where they look, token by token, in a Parquet file

One text
    read(model, text)           `Reading`: every similarity and attention map; .pairs(), .plot(), .to_html()
    segment(model, text)        `Segmentation`: where the text changes its subject; `Splitter` does it for LangChain

What heads are worth
    silenced(model, heads)      a context in which heads write nothing
    ablate(model, documents)    `Ablation`: what the model loses without each head
    prune(model, heads)         `Pruned`: a smaller model without some heads

Saved results
    open_study(path), open_reading(path), open_ablation(path)

Every function takes a loaded model, or a name, a folder, or a pair (transformers model, tokenizer). What is wrong with
an argument, a file or a model is said by a `HeadscopeError`.

Examples
--------
>>> import headscope
>>> study = headscope.study("minilm", headscope.documents(limit=4))  # the bundled texts; or your own
>>> study.rate("repeat_rate").dims
('layer', 'head')
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.comparison.compare import compare
    from headscope.comparison.matching import HeadMatch, match_heads
    from headscope.comparison.result import Comparison
    from headscope.corpus.documents import Corpus, Document, documents
    from headscope.corpus.formats import examples
    from headscope.errors import CorpusError, HeadscopeError, ModelError, ReadingError, Stopped, StudyError
    from headscope.exporting.export import export
    from headscope.model.interventions import silenced
    from headscope.model.loading import load
    from headscope.model.model import Model
    from headscope.pruning.ablation import ablate
    from headscope.pruning.ablation_result import Ablation, open_ablation
    from headscope.pruning.prune import Pruned, prune
    from headscope.readings.files import open_reading
    from headscope.readings.read import read
    from headscope.readings.reading import Reading
    from headscope.segmentation.result import Segment, Segmentation
    from headscope.segmentation.segment import segment
    from headscope.segmentation.splitter import Splitter
    from headscope.studies.findings import Finding, findings
    from headscope.studies.head_types import HeadType
    from headscope.studies.result import Study, open_study
    from headscope.studies.study import Progress, study

__version__ = "0.1.0"
# Read when torch is imported: operations that Apple's GPUs lack then run on the CPU, with a warning.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
__all__ = [
    "Ablation",
    "Comparison",
    "Corpus",
    "CorpusError",
    "Document",
    "Finding",
    "HeadMatch",
    "HeadType",
    "HeadscopeError",
    "Model",
    "ModelError",
    "Progress",
    "Pruned",
    "Reading",
    "ReadingError",
    "Segment",
    "Segmentation",
    "Splitter",
    "Stopped",
    "Study",
    "StudyError",
    "ablate",
    "compare",
    "documents",
    "examples",
    "export",
    "findings",
    "load",
    "match_heads",
    "open_ablation",
    "open_reading",
    "open_study",
    "prune",
    "read",
    "segment",
    "silenced",
    "study",
]

_MODULES = {
    "headscope.comparison.compare": ("compare",),
    "headscope.comparison.matching": ("HeadMatch", "match_heads"),
    "headscope.comparison.result": ("Comparison",),
    "headscope.corpus.formats": ("examples",),
    "headscope.corpus.documents": ("Corpus", "Document", "documents"),
    "headscope.errors": ("CorpusError", "HeadscopeError", "ModelError", "ReadingError", "Stopped", "StudyError"),
    "headscope.exporting.export": ("export",),
    "headscope.model.loading": ("load",),
    "headscope.model.model": ("Model",),
    "headscope.pruning.ablation": ("ablate",),
    "headscope.pruning.ablation_result": ("Ablation", "open_ablation"),
    "headscope.pruning.prune": ("Pruned", "prune"),
    "headscope.model.interventions": ("silenced",),
    "headscope.readings.files": ("open_reading",),
    "headscope.readings.read": ("read",),
    "headscope.readings.reading": ("Reading",),
    "headscope.segmentation.result": ("Segment", "Segmentation"),
    "headscope.segmentation.segment": ("segment",),
    "headscope.segmentation.splitter": ("Splitter",),
    "headscope.studies.head_types": ("HeadType",),
    "headscope.studies.findings": ("Finding", "findings"),
    "headscope.studies.result": ("Study", "open_study"),
    "headscope.studies.study": ("Progress", "study"),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `headscope --help` should not wait for torch."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'headscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
