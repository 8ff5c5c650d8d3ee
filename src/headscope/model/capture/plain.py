"""Attention that is a softmax over tokens and nothing else, so that others than the model may compute it.

A question is plain where its mask says only who may look at whom, no option bends the scores (a cap, a sink, a bias),
and the formula below gives what the model's own function gives for the first texts. All else is left to the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headscope.model.capture.observation import Asked

HARMLESS = frozenset(
    {
        "scaling", "dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache",
        "output_attentions", "output_hidden_states", "return_dict",
    }
)  # fmt: skip
"""Options that leave scores as they are: dropout is off, and whom a token may look at is in the mask."""
FORBIDDEN = -1e4
"""Masks add 0, or a number at least this low; the lowest of float16 is −65,504."""
PROVING = 2
"""texts on which the formula is held against the model's own function"""
NARROW, WIDE = 2e-2, 1e-4
"""how far the two may be apart, relative to the largest value, in half precision and in single"""


@dataclass(frozen=True, eq=False)
class Question:
    """Plain attention to compute: softmax(scaling · Q·Kᵀ), every token looking at all real ones, or at those up to it.

    Padding stands on the right; what its rows get does not matter.
    """

    query: torch.Tensor
    """(batch, head, query, width)"""
    key: torch.Tensor
    """(batch, key head, key, width); each serves as many heads as there are of them"""
    value: torch.Tensor
    mask: torch.Tensor | None
    """what is added to the scores, (batch, 1, query, key), which is 0 or forbids; None where all may look at all"""
    scaling: float
    causal: bool

    @property
    def group(self) -> int:
        """How many heads share a key."""
        return self.query.shape[1] // self.key.shape[1]


@dataclass
class Plain:
    """Decides for one run over a batch which questions are plain."""

    real: torch.Tensor
    """(batch, token), on the network's device"""
    proven: dict[int, bool]
    """what is known of modules, by their id"""
    padded: bool
    masks: dict[int, tuple[torch.Tensor, bool | None]] = field(default_factory=dict)
    """masks met in this run, and whether they are causal; None: they are neither that nor plain padding"""

    def question(self, asked: Asked) -> Question | None:
        scaling = asked.options.get("scaling")
        if not isinstance(scaling, float) or asked.module.training or not self._fits(asked):
            return None
        if any(value is not None and name not in HARMLESS for name, value in asked.options.items()):
            return None
        causal = self._causal(asked.mask)
        if causal is None:
            return None
        mask = asked.mask if causal or self.padded else None
        made = Question(asked.query, asked.key, asked.value, mask, scaling, causal)
        if id(asked.module) not in self.proven:
            self.proven[id(asked.module)] = proves(made, asked)
        return made if self.proven[id(asked.module)] else None

    def _fits(self, asked: Asked) -> bool:
        query, key, value = asked.query, asked.key, asked.value
        if not query.ndim == key.ndim == value.ndim == 4:
            return False
        tokens = tuple(self.real.shape)
        same = all((len(each), each.shape[2]) == tokens for each in (query, key, value))
        return same and query.shape[1] % key.shape[1] == 0 and key.shape[1] == value.shape[1]

    def _causal(self, mask: torch.Tensor | None) -> bool | None:
        if mask is None:
            return None if self.padded else False
        if id(mask) not in self.masks:
            self.masks[id(mask)] = mask, self._kind(mask)  # held, so that no other mask can have its id
        return self.masks[id(mask)][1]

    def _kind(self, mask: torch.Tensor) -> bool | None:
        n = self.real.shape[1]
        if mask.ndim != 4 or mask.shape != (len(self.real), 1, n, n) or not mask.is_floating_point():
            return None
        allowed, forbidden = mask[:, 0] == 0, mask[:, 0] <= FORBIDDEN
        if not bool((allowed | forbidden).all()):
            return None
        queries, keys = self.real[:, :, None], self.real[:, None, :]
        for causal in (False, True):
            expected = keys.expand(-1, n, n)
            if causal:
                expected = expected & torch.ones(n, n, dtype=torch.bool, device=mask.device).tril()
            if bool(((allowed == expected) | ~queries).all()):
                return causal
        return None


def attend(question: Question) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (batch, query, head, width) and maps (batch, head, query, key) by the formula, in plain torch."""
    key, value = (each.repeat_interleave(question.group, 1) for each in (question.key, question.value))
    scores = question.query @ key.transpose(2, 3) * question.scaling
    if question.mask is not None:
        scores = scores + question.mask
    maps = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (maps @ value).transpose(1, 2), maps


def proves(question: Question, asked: Asked) -> bool:
    """Whether the formula gives what the model's own function gives, for the first texts."""
    few = Question(
        question.query[:PROVING],
        question.key[:PROVING],
        question.value[:PROVING],
        None if question.mask is None else question.mask[:PROVING],
        question.scaling,
        question.causal,
    )
    tolerance = NARROW if question.query.dtype in (torch.float16, torch.bfloat16) else WIDE
    for one, other in zip(attend(few), asked.own(PROVING), strict=True):
        if other is None or one.shape != other.shape:
            return False
        if not bool((one.float() - other.float()).abs().max() <= tolerance * other.float().abs().max()):
            return False
    return True
