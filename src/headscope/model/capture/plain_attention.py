"""Detection of plain attention: a softmax over tokens and nothing else, which faster kernels may compute instead.

Attention is plain if its mask only says which tokens attend to which, no option changes the scores (a cap, a sink, a
bias), and the formula below reproduces the model's own function on the first texts. The model computes everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headscope.model.capture.records import AttentionRequest

HARMLESS_OPTIONS = frozenset(
    {
        "scaling", "dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache",
        "output_attentions", "output_hidden_states", "return_dict",
    }
)  # fmt: skip
"""Options that do not change scores: dropout is off, and the mask holds which tokens are attended to."""
MASK_THRESHOLD = -1e4
"""Additive masks hold 0 or a number at least this low; the lowest of float16 is −65,504."""
PROOF_TEXTS = 2
"""texts on which the formula is compared with the model's own function"""
NARROW, WIDE = 2e-2, 1e-4
"""allowed difference of the two, relative to the largest value, in half and in single precision"""


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """Inputs of plain attention, softmax(scaling · Q·Kᵀ) · V: every token attends to all real tokens, or to those up to
    itself.

    Padding is on the right; the results in its rows do not matter.
    """

    query: torch.Tensor
    """(batch, head, query, width)"""
    key: torch.Tensor
    """(batch, key head, key, width); each key head serves the same number of heads"""
    value: torch.Tensor
    mask: torch.Tensor | None
    """added to the scores: (batch, 1, query, key), 0 or forbidding; None if all tokens attend to all"""
    scaling: float
    causal: bool

    @property
    def group(self) -> int:
        """Number of heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]


@dataclass
class PlainDetector:
    """Decide which attention computations of one batch are plain."""

    real: torch.Tensor
    """(batch, token), on the network's device"""
    plain_modules: dict[int, bool]
    """whether the attention of a module is plain, by the id of the module"""
    has_padding: bool
    mask_kinds: dict[int, tuple[torch.Tensor, bool | None]] = field(default_factory=dict)
    """masks of this run, and whether they are causal; None: neither causal nor plain padding"""

    def find_plain_inputs(self, request: AttentionRequest) -> AttentionInputs | None:
        scaling = request.options.get("scaling")
        if not isinstance(scaling, float) or request.module.training or not self._has_matching_shapes(request):
            return None
        if any(value is not None and name not in HARMLESS_OPTIONS for name, value in request.options.items()):
            return None
        causal = self._is_causal(request.mask)
        if causal is None:
            return None
        mask = request.mask if causal or self.has_padding else None
        inputs = AttentionInputs(request.query, request.key, request.value, mask, scaling, causal)
        if id(request.module) not in self.plain_modules:
            self.plain_modules[id(request.module)] = is_plain(inputs, request)
        return inputs if self.plain_modules[id(request.module)] else None

    def _has_matching_shapes(self, request: AttentionRequest) -> bool:
        query, key, value = request.query, request.key, request.value
        if not query.ndim == key.ndim == value.ndim == 4:
            return False
        tokens = tuple(self.real.shape)
        same = all((len(tensor), tensor.shape[2]) == tokens for tensor in (query, key, value))
        return same and query.shape[1] % key.shape[1] == 0 and key.shape[1] == value.shape[1]

    def _is_causal(self, mask: torch.Tensor | None) -> bool | None:
        if mask is None:
            return None if self.has_padding else False
        if id(mask) not in self.mask_kinds:
            # The reference to the mask keeps its id from being given to another one.
            self.mask_kinds[id(mask)] = mask, self._classify_mask(mask)
        return self.mask_kinds[id(mask)][1]

    def _classify_mask(self, mask: torch.Tensor) -> bool | None:
        n = self.real.shape[1]
        if mask.ndim != 4 or mask.shape != (len(self.real), 1, n, n) or not mask.is_floating_point():
            return None
        allowed, forbidden = mask[:, 0] == 0, mask[:, 0] <= MASK_THRESHOLD
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


def attend(inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs (batch, query, head, width) and maps (batch, head, query, key) by the formula, in plain torch."""
    key, value = (tensor.repeat_interleave(inputs.group, 1) for tensor in (inputs.key, inputs.value))
    scores = inputs.query @ key.transpose(2, 3) * inputs.scaling
    if inputs.mask is not None:
        scores = scores + inputs.mask
    maps = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (maps @ value).transpose(1, 2), maps


def is_plain(inputs: AttentionInputs, request: AttentionRequest) -> bool:
    """Return whether the formula reproduces the model's own function on the first texts."""
    first = AttentionInputs(
        inputs.query[:PROOF_TEXTS],
        inputs.key[:PROOF_TEXTS],
        inputs.value[:PROOF_TEXTS],
        None if inputs.mask is None else inputs.mask[:PROOF_TEXTS],
        inputs.scaling,
        inputs.causal,
    )
    tolerance = NARROW if inputs.query.dtype in (torch.float16, torch.bfloat16) else WIDE
    for result, expected in zip(attend(first), request.compute_reference(PROOF_TEXTS), strict=True):
        if expected is None or result.shape != expected.shape:
            return False
        if not bool((result.float() - expected.float()).abs().max() <= tolerance * expected.float().abs().max()):
            return False
    return True
