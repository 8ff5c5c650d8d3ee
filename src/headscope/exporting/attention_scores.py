"""Where every token looks: attention scores of single queries, whose means over texts are those of docs/method.md.

For a query i and a score with the targets T_i, the value is the attention Σ_{j∈T_i} A_ij; NaN where the query does not
count. The entropy of a query that may look at k keys is −Σ_j A_ij ln A_ij / ln k, from 0 (one key) to 1 (evenly).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Bools
from headscope.corpus.windows import Window
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens

TARGETS = (
    "attends_previous", "attends_next", "attends_self", "attends_first", "attends_special", "attends_punctuation",
    "attends_duplicate", "attends_induction",
)  # fmt: skip
ENTROPY = "attention_entropy"
SCORES = (*TARGETS, ENTROPY)
"""names of the scores, in the order in which they are exported"""
BETWEEN_TEXTS = ("attends_first", "attends_special", "attends_punctuation")
"""targets that exist where queries and keys are of two texts"""
OF_WORDS = ("attends_punctuation", "attends_duplicate", "attends_induction")
"""targets that patches of images do not have"""


def mark_punctuation(model: Model, window: Window) -> Bools:
    """Return which tokens of a window have no letter and no digit, and are not special."""
    if not isinstance(model.key_tokens, ModelTokens):
        return np.zeros(len(window), dtype=bool)
    texts = model.key_tokens.texts(window.ids)
    return np.array([not any(character.isalnum() for character in text) for text in texts]) & ~window.special


def mark_targets(window: Window, punctuation: Bools, *, causal: bool) -> tuple[Bools, Bools]:
    """Return the targets of each query, (target, query, key), and which queries count, (target, query).

    Args:
        window: The text.
        punctuation: Of its keys.
        causal: Queries see only themselves and earlier tokens.
    """
    n, keys = len(window), len(window.keys)
    offset = np.arange(keys)[None, :] - np.arange(n)[:, None]
    visible = offset <= 0 if causal else np.ones((n, keys), dtype=bool)
    word = ~window.special
    targets = dict.fromkeys(TARGETS, np.zeros((n, keys), dtype=bool))
    targets["attends_first"] = np.broadcast_to(np.arange(keys) == 0, (n, keys))
    targets["attends_special"] = np.broadcast_to(window.keys.special, (n, keys))
    targets["attends_punctuation"] = np.broadcast_to(punctuation, (n, keys))
    if not window.crosses:
        equal = window.ids[:, None] == window.ids[None, :]
        after_equal = np.zeros_like(equal)
        after_equal[:, 1:] = equal[:, :-1]
        targets |= {
            "attends_previous": offset == -1,
            "attends_next": offset == 1,
            "attends_self": offset == 0,
            "attends_punctuation": targets["attends_punctuation"] & (offset != 0),
            "attends_duplicate": equal & (offset != 0),
            "attends_induction": after_equal & (offset < 0),
        }
    marked = np.stack([targets[name] & visible for name in TARGETS])
    counts = np.zeros((len(TARGETS), n), dtype=bool)
    later = np.arange(n) >= 1
    rules = {
        "attends_previous": later,
        "attends_next": np.arange(n) <= n - 2,
        "attends_self": np.ones(n, dtype=bool),
        "attends_first": later,
        "attends_special": word,
        "attends_punctuation": (targets["attends_punctuation"] & visible).any(axis=1),
        "attends_duplicate": word & (targets["attends_duplicate"] & visible).any(axis=1),
        "attends_induction": word & (targets["attends_induction"] & visible).any(axis=1),
    }
    absent = {"attends_next"} if causal else set()
    absent |= set(TARGETS) - set(BETWEEN_TEXTS) if window.crosses else set()
    absent |= set(OF_WORDS) if window.pixels is not None else set()
    for number, name in enumerate(TARGETS):
        counts[number] = rules[name] & (name not in absent)
    return marked, counts


def compute_scores(
    attention: Tensor, windows: Sequence[Window], marks: Sequence[tuple[Bools, Bools]], *, causal: bool
) -> list[np.ndarray]:
    """Return the scores of every token of some texts: for each text (token, head, score), float32.

    Args:
        attention: Maps (text, head, query, key).
        windows: The texts.
        marks: What `mark_targets` returns for each of them.
        causal: Queries see only themselves and earlier tokens.
    """
    results = []
    for text, (window, (targets, counts)) in enumerate(zip(windows, marks, strict=True)):
        n, keys = len(window), len(window.keys)
        maps = attention[text, :, :n, :keys].float()
        marked, counted = (torch.from_numpy(mask).to(maps.device) for mask in (targets, counts))
        sums = torch.stack([(maps * mask).sum(2) for mask in marked], 2)  # (head, query, target)
        sums = sums.masked_fill(~counted.T[None], torch.nan)
        visible = torch.arange(1, n + 1, device=maps.device) if causal else torch.full((n,), keys, device=maps.device)
        entropy = torch.special.entr(maps).sum(2) / visible.float().log()
        entropy = torch.where(visible > 1, entropy, torch.nan)
        scores = torch.cat([sums, entropy[..., None]], 2).transpose(0, 1)
        results.append(scores.cpu().numpy())
    return results
