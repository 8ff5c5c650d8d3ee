"""headscope: what every attention head of a transformer writes, measured over whole corpora.

>>> import headscope
>>> model = headscope.load()                                    # the bundled model; or a hub name, or a folder
>>> study = headscope.study(model, headscope.documents(limit=4))  # the bundled texts; or your own
>>> study.rate("repeat_rate").dims
('layer', 'head')
"""

from headscope.corpus.bundled import examples
from headscope.corpus.documents import Corpus, Document, documents
from headscope.errors import CorpusError, HeadscopeError, ModelError, Stopped, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.studies.result import Study, open_study
from headscope.studies.run import Progress, study

__version__ = "0.1.0"
__all__ = [
    "Corpus",
    "CorpusError",
    "Document",
    "HeadscopeError",
    "Model",
    "ModelError",
    "Progress",
    "Stopped",
    "Study",
    "StudyError",
    "documents",
    "examples",
    "load",
    "open_study",
    "study",
]
