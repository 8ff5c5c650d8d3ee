"""The sums that only the paper's claims need (METHOD §6, docs/findings.md), for the texts in the sample.

All backends but the reference share this: batched torch, on any device. Each structure that a claim speaks of comes
with its null, the same number without that structure.

    words      is the most attended token that is not special a separator?                                     claim 3
    columns    correlation between heads of the attention that positions receive                               claim 13
    lines      share of the attention in line columns and on the diagonal, against even attention              claim 16
    dominants  number of different dominant tokens, were every head's pairs drawn at random                    claim 10
    regions    is the strongest region of C on the diagonal, with positions as they are and shuffled?          claim 14
    inside     C between lines, against C across a line at the same distances, line tokens left out            claim 15
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Ints
from headscope.corpus.windows import Batch
from headscope.similarity import NEAR
from headscope.tally.text_structure import draw_position_orders, rank_pairs

FLAT = 1e-4
"""Attention columns that vary by less than this share of their mean do not vary: it may be rounding."""
MAX_ELEMENTS = {"cpu": 1 << 18, "other": 1 << 25}
"""number of similarities computed at a time, by device: on a CPU they should stay in its cache"""


@dataclass(frozen=True, eq=False)
class ClaimTexts:
    """The sampled texts of a batch: S texts, N tokens in the longest. Padding is False, 0, or no pair."""

    real: Tensor
    """(S, N)"""
    real_keys: Tensor
    """(S, N): the same of the tokens that attention goes to"""
    ids: Tensor
    word_keys: Tensor
    """(S, N): keys that are not special tokens"""
    separator_keys: Tensor
    """(S, N): keys that end a sentence or are a comma"""
    ranks: Tensor
    """(S, N, N): rank of each pair in the random order of its text; N² where there is none"""
    order: Tensor
    """(S, N): the position that each position is shuffled to"""
    even: Tensor
    """(S, N): what each position receives from one head that spreads its attention evenly"""
    even_itself: Tensor
    """(S, N): what it receives from itself then"""
    crosses: Tensor
    """(S,): attention goes to another text, so that its lines do not cut this one"""

    @classmethod
    def from_batch(cls, batch: Batch, rows: Ints, device: torch.device | str, *, causal: bool) -> ClaimTexts:
        """Return some texts of a batch, given by their numbers."""
        windows, real, n = [batch.windows[row] for row in rows], batch.real[rows], batch.ids.shape[1]
        real_keys = batch.real_keys[rows]
        word_keys, separator_keys = np.zeros_like(real), np.zeros_like(real)
        word_keys[real_keys] = ~np.concatenate([window.keys.special for window in windows])
        separator_keys[real_keys] = np.concatenate([window.keys.end | window.keys.comma for window in windows])
        ranks = np.full((len(rows), n, n), n * n, dtype=np.int32)
        for text, window in enumerate(windows):
            ranks[text, : len(window), : len(window)] = rank_pairs(window)
            np.fill_diagonal(ranks[text], n * n)
        even, even_itself = compute_even_columns(real_keys.sum(1), n, causal=causal)
        even *= (real.sum(1) / real_keys.sum(1))[:, None]  # cross-attention has more queries than keys, or fewer
        arrays = (
            real, real_keys, batch.ids[rows], word_keys, separator_keys & word_keys, ranks,
            draw_position_orders(windows, real), even, even_itself, np.array([window.crosses for window in windows]),
        )  # fmt: skip
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    @property
    def text_sums(self) -> dict[str, Tensor]:
        """Sums that belong to the texts alone, by quantity."""
        words = self.word_keys.sum(1)
        share = self.separator_keys.sum(1).double() / words.clamp(min=1)
        return {"word_texts": words > 0, "separator_share": share, "column_texts": self.real_keys.sum(1) >= 3}

    def select(self, texts: slice) -> ClaimTexts:
        """Return some of the texts."""
        return replace(self, **{field.name: getattr(self, field.name)[texts] for field in fields(self)})


def compute_even_columns(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]], n: int, *, causal: bool
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Return what every position receives from a head that spreads its attention evenly, of all and of itself: (S, N).

    With causal attention, query i gives 1/(i + 1) to each of i + 1 keys.
    """
    positions = np.arange(n)
    real = positions < lengths[:, None]
    to_itself = 1 / (positions + 1) if causal else 1 / lengths[:, None]
    harmonic = np.concatenate([[0.0], np.cumsum(1 / (positions + 1))])
    received = harmonic[lengths][:, None] - harmonic[positions] if causal else np.ones(real.shape)
    return np.where(real, received, 0.0), np.where(real, to_itself, 0.0)


def measure_claims(
    texts: ClaimTexts, output: Tensor, columns: Tensor, itself: Tensor, theta: float, tau: float
) -> dict[str, Tensor]:
    """Return the summands of one layer for each sampled text: (S,), (S, H), or (S, H + 1).

    Args:
        texts: The sampled texts.
        output: What the heads write, (S, N, H, d); padding is arbitrary.
        columns: Attention that each position receives of each head, (S, H, N), without that of padding.
        itself: Attention that each position receives from itself, of all heads, (S, N).
        theta: Threshold of high pairs.
        tau: Threshold of lines.
    """
    dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
    vectors = output.to(dtype).transpose(1, 2).masked_fill(~texts.real[:, None, :, None], 0)  # (S, H, N, d)
    columns = columns.double().masked_fill(~texts.real_keys[:, None], 0)
    received = columns.sum(1)
    lines = received > tau * received.amax(1, keepdim=True)
    most = MAX_ELEMENTS["cpu" if vectors.device.type == "cpu" else "other"]
    step = max(1, most // (vectors.shape[1] * vectors.shape[2] ** 2))
    parts = [slice(start, start + step) for start in range(0, len(vectors), step)]
    pair_sums = [_measure_pairs(texts.select(part), vectors[part], lines[part], theta) for part in parts]
    return {
        "separator_texts": texts.separator_keys.gather(1, _find_top_word(texts, received))[:, 0],
        "column_correlation_sum": _correlate_columns(texts, columns),
        **_measure_lines(texts, received, lines, itself.double()),
        **{name: torch.cat([sums[name] for sums in pair_sums]) for name in pair_sums[0]},
    }


def _find_top_word(texts: ClaimTexts, received: Tensor) -> Tensor:
    """Return the position of the most attended token that is not special: (S, 1)."""
    return received.masked_fill(~texts.word_keys, -1).argmax(1, keepdim=True)


def _correlate_columns(texts: ClaimTexts, columns: Tensor) -> Tensor:
    """Return the mean correlation between heads of what positions receive, relative to even attention: (S,)."""
    heads, tokens = columns.shape[1], texts.real_keys.sum(1)[:, None, None]
    if heads < 2:
        return torch.zeros(len(columns), dtype=torch.float64, device=columns.device)
    relative = columns / torch.where(texts.real_keys, texts.even, 1)[:, None]
    mean = relative.sum(2, keepdim=True) / tokens
    deviations = (relative - mean).masked_fill(~texts.real_keys[:, None], 0)
    norm = deviations.square().sum(2, keepdim=True).sqrt()
    varies = (norm > FLAT * mean * tokens.sqrt()) & (tokens >= 3)
    directions = torch.where(varies, deviations / norm.clamp(min=1e-300), 0)
    total = directions.sum(1).square().sum(1) - directions.square().sum((1, 2))
    return total / (heads * (heads - 1))


def _measure_lines(texts: ClaimTexts, received: Tensor, lines: Tensor, itself: Tensor) -> dict[str, Tensor]:
    """Return the shares of attention in lines and on the diagonal outside of them, and those of even attention."""
    total, even_total = received.sum(1).clamp(min=1e-300), texts.even.sum(1)
    off = ~lines & texts.real_keys
    return {
        "line_attention_sum": (received * lines).sum(1) / total,
        "line_even_sum": (texts.even * lines).sum(1) / even_total,
        "diagonal_attention_sum": (itself * off).sum(1) / total,
        "diagonal_even_sum": (texts.even_itself * off).sum(1) / even_total,
    }


def _measure_pairs(texts: ClaimTexts, vectors: Tensor, lines: Tensor, theta: float) -> dict[str, Tensor]:
    """Return what similarities C decide: random dominant tokens, strongest regions, C between and across lines."""
    matrix = vectors @ vectors.transpose(2, 3)
    matrix.diagonal(dim1=2, dim2=3).zero_()
    pairs = torch.count_nonzero(matrix > theta * matrix.amax((2, 3), keepdim=True), (2, 3)) // 2
    # A line's token closes its block: the block of a position is the number of lines before it.
    block = lines.cumsum(1) - lines.long()
    power = vectors.double().square().sum((2, 3)) / texts.real.sum(1)[:, None]
    return {
        "shuffled_distinct_dominants": _count_random_dominants(texts, pairs),
        **_find_strongest_regions(texts, vectors.double(), block),
        **_compare_across_lines(texts, matrix, lines, block, power),
    }


def _count_random_dominants(texts: ClaimTexts, pairs: Tensor) -> Tensor:
    """Return the number of different dominant tokens as one of 0…H, if each head has as many random pairs: (S, H + 1).

    Heads begin at different places of the text's random order, which goes on at its beginning.
    """
    heads, tokens = pairs.shape[1], texts.real.sum(1)
    count = (tokens * (tokens - 1) // 2)[:, None]
    start = torch.arange(heads, device=pairs.device) * count // heads
    ranks, (first, after, wrapped) = (
        texts.ranks[:, None],
        (bound.int()[..., None, None] for bound in (start, torch.minimum(start + pairs, count), start + pairs - count)),
    )
    high = (((ranks >= first) & (ranks < after)) | (ranks < wrapped)).float()
    equal = ((texts.ids[:, :, None] == texts.ids[:, None, :]) & texts.real[:, None, :]).float()
    # As in `TorchTallier._count_inclusions`: a pair of equal tokens counts once.
    scores = (high.sum(3) - (high * equal[:, None]).sum(3) / 2) @ equal
    values = torch.where(pairs > 0, texts.ids.gather(1, scores.argmax(2)), -1).sort(dim=1).values
    new = torch.ones_like(values, dtype=torch.bool)
    new[:, 1:] = values[:, 1:] != values[:, :-1]
    return torch.nn.functional.one_hot((new & (values >= 0)).sum(1), heads + 1)


def _find_strongest_regions(texts: ClaimTexts, vectors: Tensor, block: Tensor) -> dict[str, Tensor]:
    """Return which texts are cut into regions, the share of these on the diagonal, and whether the strongest is.

    The sum of C over a region is the product of its blocks' sums of vectors; on the diagonal, less the squares.
    """
    blocks = int(block.max()) + 1
    members = torch.nn.functional.one_hot(block, blocks).double() * texts.real[..., None]  # (S, N, K)
    sizes = members.sum(1)
    elements = sizes[:, :, None] * sizes[:, None, :] - torch.diag_embed(sizes)
    on = torch.eye(blocks, dtype=torch.bool, device=block.device)
    diagonal, off = on & (elements > 0), ~on & (elements > 0)
    regions = diagonal.sum((1, 2)) + off.sum((1, 2)) // 2
    has_both = diagonal.any(2).any(1) & off.any(2).any(1) & ~texts.crosses
    # A token that was shuffled to another position counts to the block there.
    shuffled = torch.zeros_like(members).scatter_(1, texts.order[..., None].expand_as(members), members)
    placed = torch.cat([members, shuffled], 2).transpose(1, 2)  # (S, 2K, N)
    count, heads, n, width = vectors.shape
    sums = (placed @ vectors.transpose(1, 2).reshape(count, n, -1)).view(count, 2, blocks, heads, width).transpose(2, 3)
    squares = (placed @ vectors.square().sum(3).transpose(1, 2)).view(count, 2, blocks, heads).transpose(2, 3)
    means = (sums @ sums.transpose(3, 4) - torch.diag_embed(squares)) / elements.clamp(min=1)[:, None, None]
    highest_on, highest_off = (
        means.masked_fill(~mask[:, None, None], -torch.inf).amax((3, 4)) for mask in (diagonal, off)
    )
    is_on_diagonal = highest_on - highest_off > NEAR * means.abs().amax((3, 4))
    is_on_diagonal &= has_both[:, None, None]
    chance = torch.where(has_both, diagonal.sum((1, 2)).double() / regions.clamp(min=1), 0)
    return {
        "region_texts": has_both,
        "region_chance_sum": chance,
        "diagonal_region_texts": is_on_diagonal[:, 0],
        "shuffled_diagonal_region_texts": is_on_diagonal[:, 1],
    }


def _compare_across_lines(
    texts: ClaimTexts, matrix: Tensor, lines: Tensor, block: Tensor, power: Tensor
) -> dict[str, Tensor]:
    """Return the mean of C/T over pairs between lines, and over pairs with a line between them at the same distances.

    Pairs with a line's own token are left out. T is the mean square length of the outputs.
    """
    n = lines.shape[1]
    inner = texts.real & ~lines & ~texts.crosses[:, None]
    upper = torch.ones(n, n, dtype=torch.bool, device=lines.device).triu(1)
    pair = inner[:, :, None] & inner[:, None, :] & upper
    same = block[:, :, None] == block[:, None, :]
    distance = (torch.arange(n, device=lines.device) - torch.arange(n, device=lines.device)[:, None]).clamp(min=0)
    index = distance.flatten().expand(len(lines), -1)
    inside, across = (
        torch.zeros((len(lines), n), dtype=torch.float64, device=lines.device).scatter_add_(
            1, index, mask.flatten(1).double()
        )
        for mask in (pair & same, pair & ~same)
    )
    has_both = (inside > 0) & (across > 0)
    total = (inside * has_both).sum(1)
    inside_weight = has_both / total.clamp(min=1)[:, None]
    across_weight = inside_weight * inside / across.clamp(min=1)
    weights = [
        (weight.gather(1, index).view_as(pair) * mask).to(matrix.dtype).flatten(1)
        for weight, mask in ((inside_weight, pair & same), (across_weight, pair & ~same))
    ]
    scale = torch.where(power > 0, 1 / power.clamp(min=1e-300), 0)
    sums = (matrix.flatten(2) @ torch.stack(weights, 2)).double() * scale[..., None]
    return {
        "delineated_texts": total > 0,
        "delineated_inside_sum": sums[..., 0],
        "delineated_across_sum": sums[..., 1],
    }
