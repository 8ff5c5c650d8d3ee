"""Where the patches of an image are among a model's tokens.

This is found by running the model, not by its configuration: a patch that changes shows which token it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headscope.errors import ModelError
from headscope.model.capture.sighting import Sighting
from headscope.model.capture.watching import watching
from headscope.types import Floats

CHANGE = 4.0
"""what is added to a patch to see which token it is; pixels lie within about ±2 when a model gets them"""
SEEN = 1e-3
"""a token has changed that differs by more than this, relative to the largest value"""

Shape = tuple[int, ...]
"""channels, height, width of an image"""


@dataclass(frozen=True)
class Layout:
    """A model's tokens of one image: special ones, all patches row by row, perhaps more special ones."""

    rows: int
    columns: int
    first: int
    """the place of the first patch, which is the number of special tokens before it"""
    length: int
    distilled: bool = False
    """the second token is DeiT's, which learned from another model"""

    @property
    def patches(self) -> int:
        return self.rows * self.columns

    def name(self, place: int) -> str:
        """`r3c5` for a patch; what stands before the patches is `[CLS]`, `[REG1]`, …, what stands after `[DET1]`, ….

        >>> [Layout(2, 2, 2, 7).name(k) for k in range(7)]
        ['[CLS]', '[REG1]', 'r0c0', 'r0c1', 'r1c0', 'r1c1', '[DET1]']
        """
        if place < self.first:
            return "[CLS]" if place == 0 else "[DIST]" if self.distilled else f"[REG{place}]"
        patch = place - self.first
        if patch >= self.patches:
            return f"[DET{patch - self.patches + 1}]"
        return "r{}c{}".format(*divmod(patch, self.columns))


def lay_out(label: str, network: Any, shape: Shape) -> Layout:
    """Run a network on images of this shape, one patch changed, and look which token that is."""
    probe = _Probe(label, network, shape)
    rows, columns, (height, width) = probe.grid()
    images = np.zeros((3, *shape), dtype=np.float32)
    images[1, :, :height, :width] += CHANGE
    down, right = height * (rows - 1), width * (columns - 1)
    images[2, :, down : down + height, right : right + width] += CHANGE
    base, *changed = probe.before_attention(images, rows * columns)
    moved = [((one - base).abs().amax(-1) > SEEN * base.abs().max()).nonzero().flatten().tolist() for one in changed]
    if [len(places) for places in moved] != [1, 1] or moved[1][0] - moved[0][0] != rows * columns - 1:
        raise probe.refused(
            f"its {len(base):,} tokens are not its {rows} × {columns} patches, one for each, in order: it attends in "
            "windows, or its maps shrink"
        )
    distilled = any(name.endswith("distillation_token") for name, _ in network.named_parameters())
    return Layout(rows, columns, moved[0][0], len(base), distilled)


def inputs(network: Any, pixels: Floats, patches: int) -> dict[str, Any]:
    """What a network is given for images (image, channel, height, width) of so many patches; 0: not known yet."""
    weight = next(each for each in network.parameters() if each.is_floating_point())
    made = {"pixel_values": torch.from_numpy(np.ascontiguousarray(pixels)).to(weight.device, weight.dtype)}
    if patches and "noise" in inspect.signature(network.forward).parameters:
        # ViT-MAE orders its patches by random numbers, to leave out the last of them.
        made["noise"] = torch.arange(patches, dtype=torch.float32, device=weight.device).expand(len(pixels), -1)
    return made


@contextmanager
def unmasked(network: Any) -> Iterator[None]:
    """Within this context ViT-MAE sees all of its image."""
    config: Any = getattr(network, "config", None)
    ratio = getattr(config, "mask_ratio", None)
    if ratio is None:
        yield
        return
    config.mask_ratio = 0.0
    try:
        yield
    finally:
        config.mask_ratio = ratio


@dataclass(frozen=True)
class _Probe:
    label: str
    network: Any
    shape: Shape

    def grid(self) -> tuple[int, int, tuple[int, int]]:
        """Rows and columns of patches, and their height and width: what the convolution that gets the image makes."""
        found: list[tuple[int, int, tuple[int, int]]] = []

        def cut(module: Any, args: tuple[Any, ...], made: torch.Tensor) -> None:
            if not found and tuple(args[0].shape[1:]) == self.shape:
                found.append((made.shape[2], made.shape[3], tuple(module.stride)))

        hooks = [each.register_forward_hook(cut) for each in self._all(torch.nn.Conv2d)]
        self._run(np.zeros((1, *self.shape), dtype=np.float32), 0, lambda sighting: None, hooks)
        if not found:
            raise self.refused("no convolution cuts its images into patches")
        return found[0]

    def before_attention(self, images: Floats, patches: int) -> torch.Tensor:
        """What enters the last linear map before the first attention: all tokens, not yet mixed."""
        seen: list[Sighting] = []
        entered: list[torch.Tensor] = []

        def enter(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if not seen and args and args[0].dim() == 3 and len(args[0]) == len(images):
                entered[:] = [args[0].float()]

        hooks = [each.register_forward_pre_hook(enter) for each in self._all(torch.nn.Linear)]
        self._run(images, patches, seen.append, hooks)
        if not seen:
            raise self.refused("it has no attention layers, or none with a softmax over patches")
        if not entered:
            raise self.refused("it attends in windows, or over something else than one row of tokens an image")
        return entered[0]

    def _all(self, kind: type[torch.nn.Module]) -> list[torch.nn.Module]:
        return [module for module in self.network.modules() if isinstance(module, kind)]

    def _run(self, images: Floats, patches: int, saw: Callable[[Sighting], None], hooks: Iterable[Any]) -> None:
        try:
            with watching(self.network, saw, batch=len(images)), unmasked(self.network), torch.inference_mode():
                self.network(**inputs(self.network, images, patches))
        except ModelError:
            raise
        except Exception as error:  # what models raise that want something else than an image, or one of another size
            first = next(iter(str(error).splitlines()), type(error).__name__)
            size = f"{self.shape[-1]} × {self.shape[-2]} pixels"
            raise self.refused(f"it does not run on an image of {size} alone: {first}") from error
        finally:
            for hook in hooks:
                hook.remove()

    def refused(self, why: str) -> ModelError:
        kind = getattr(self.network.config, "model_type", type(self.network).__name__)
        return ModelError(f"{self.label}: the model type {kind!r} cannot be watched: {why}")
