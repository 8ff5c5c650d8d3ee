"""The linear map of heads' outputs that decides which similarity is measured (docs/method.md, "Which similarity").

C = O·Oᵀ is computed of mapped outputs: `centered` subtracts the mean over the tokens of the window, `projected`
multiplies with a factor R of the head, R·Rᵀ = W·Wᵀ, so that C is that of what the head adds to the residual stream.
Every backend maps the outputs before it counts anything, so that all other definitions stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.devices import use_tf32
from headscope.model.model import Model
from headscope.model.output_projections import compute_factors, describe_projections
from headscope.similarity import Similarity


@dataclass(frozen=True, eq=False)
class OutputMap:
    """Map of the outputs of all layers."""

    centers: bool
    """subtract the mean over the tokens of the window"""
    factors: Sequence[Tensor] | None = None
    """for each layer, a factor for each of its heads: (head, width, width)"""

    @classmethod
    def create(cls, model: Model, similarity: Similarity) -> OutputMap | None:
        """Return the map of a model's outputs; None where they stay as they are.

        Raises:
            ModelError: What the heads add to the residual stream is not known, and the similarity depends on it.
        """
        if similarity == "dot":
            return None
        if not is_projected(similarity):
            return cls(centers=True)
        dtype = torch.float64 if model.dtype == "float64" else torch.float32
        factors = [factor.to(dtype).to(model.device) for factor in compute_factors(model)]
        return cls("centered" in similarity, factors)

    def apply(self, layer: int, output: Tensor, real: Tensor) -> Tensor:
        """Return mapped outputs (text, position, head, width), in single precision at least. Padding is arbitrary.

        Args:
            layer: Counted from 0.
            output: What the heads write, (text, position, head, width).
            real: (text, position), False on padding.
        """
        vectors = output if output.dtype == torch.float64 else output.float()
        if self.centers:
            # In double precision: a common vector may be much larger than what remains.
            exact = vectors.double().masked_fill(~real[:, :, None, None], 0)
            means = exact.sum(1, keepdim=True) / real.sum(1).clamp(min=1)[:, None, None, None]
            vectors = (exact - means).to(vectors.dtype)
        if self.factors is None:
            return vectors
        factor = self.factors[layer].to(vectors.device, vectors.dtype)
        heads = vectors.transpose(1, 2)
        if not heads.is_cuda:
            return _multiply(heads, factor).transpose(1, 2)
        with use_tf32(False):  # which pairs are high must not depend on how the model multiplies
            return _multiply(heads, factor).transpose(1, 2)


def is_projected(similarity: Similarity) -> bool:
    """Return whether a similarity depends on the output projection."""
    return similarity.startswith("projected")


def describe_map(model: Model, similarity: Similarity) -> str:
    """Return what the manifest says of the map of a model's outputs beside its name; empty if there is nothing."""
    return describe_projections(model) if is_projected(similarity) else ""


def _multiply(heads: Tensor, factor: Tensor) -> Tensor:
    """Multiply outputs (text, head, position, width) with the factors; heads that the layer lacks stay zero."""
    missing = heads.shape[1] - len(factor)
    if not missing:
        return heads @ factor
    return torch.cat([heads[:, : len(factor)] @ factor, heads[:, len(factor) :]], 1)
