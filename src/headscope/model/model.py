"""A model whose heads can be watched: the transformer, its tokenizer, and what is known about both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headscope.corpus.formats import Document
from headscope.corpus.windows import Batch, Cut, Window
from headscope.devices import send
from headscope.errors import ModelError
from headscope.model.anatomy import DECODER_TOKENS, TOKENS, Anatomy, Call, Plan, examine, is_double, unmasked
from headscope.model.capture.observation import Asked, Report, Route, Sighting, entering
from headscope.model.capture.plain import Plain, Question
from headscope.model.capture.watching import BOTH, prepared, watching
from headscope.model.patches import Patches
from headscope.model.tokens import ModelTokens
from headscope.types import Bools, Ints

PADDING_SEEN, PADDING_SEEN_HALF = 1e-3, 5e-2
"""Changes up to this, relative to the largest value, are the order of floating-point sums; in narrow types more."""

See = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called for each layer of a stack in turn, counted from 0: heads' outputs (batch, query, head, width) and attention
maps (batch, head, query, key)."""


Attend = Callable[[int, Question], torch.Tensor | None]
"""Called for a layer whose attention is plain, before it is computed: gives the heads' outputs (batch, query, head,
width), having seen all there is to see, or None to have the model compute it and `See` called."""


@dataclass(frozen=True, eq=False)
class Model:
    """Made by `headscope.load`. `network` is the transformers model, unchanged."""

    name: str
    network: Any
    tokens: ModelTokens | Patches
    weight_hash: str
    stack: str | None = None
    """which of its stacks is watched; None: the first, and mostly the only one"""
    origin: Mapping[str, Any] | None = None
    """what `headscope.load` has to be asked for to have it once more; None: it was given as an object"""

    @property
    def device(self) -> torch.device:
        return torch.device(next(iter(self.network.parameters())).device)

    @property
    def dtype(self) -> str:
        return str(next(iter(self.network.parameters())).dtype).removeprefix("torch.")

    @property
    def type(self) -> str:
        return str(getattr(self.network.config, "model_type", type(self.network).__name__))

    @property
    def modality(self) -> str:
        """What it reads: `text`, or `image`, whose patches are its tokens."""
        return "image" if isinstance(self.tokens, Patches) else "text"

    @property
    def _tokenizer(self) -> Any:
        if isinstance(self.tokens, Patches):
            raise ModelError(f"{self.name} reads images and has no tokenizer")
        return self.tokens.tokenizer

    @property
    def _config(self) -> Any:
        """The part of the configuration that speaks of the text model, where there are others (images, sound)."""
        return self.network.config.get_text_config()

    @property
    def max_length(self) -> int | None:
        """The longest window the model has positions for; None where nothing bounds it."""
        if isinstance(self.tokens, Patches):
            return self.tokens.length
        config = self._config
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        if not isinstance(limit, int) or limit <= 0:
            return None
        # RoBERTa and its kin number positions from the padding id + 1, so the first rows of their table are never used.
        embeddings = next((m for m in self.network.modules() if hasattr(m, "position_embeddings")), None)
        table = getattr(embeddings, "position_embeddings", None)
        unused = getattr(table, "padding_idx", None)
        return limit if unused is None else limit - unused - 1

    # -- stacks -------------------------------------------------------------------------------------------------------

    @property
    def stacks(self) -> tuple[str, ...]:
        """What can be watched: `encoder`, `decoder`, `cross` (the decoder's attention to the encoder)."""
        return tuple(self._plan.stacks)

    def on(self, stack: str) -> Model:
        """The same model, with another of its stacks to watch."""
        if stack not in self.stacks:
            raise ModelError(f"{self.name} has no stack {stack!r}; there are: {', '.join(self.stacks)}")
        return replace(self, stack=stack)

    @property
    def anatomy(self) -> Anatomy:
        """Layers and heads of the stack that is watched, as they showed themselves."""
        held = self._plan.stacks
        if self.stack is None and self.two_stacks and "encoder" not in held:
            raise ModelError(
                f"{self.name}: the encoder of the model type {self.type!r} attends in blocks, or with something else "
                f"than a softmax over tokens, and cannot be watched: choose --stack {' or '.join(held)}"
            )
        return held[self.stack] if self.stack else next(iter(held.values()))

    @property
    def two_stacks(self) -> bool:
        """Encoder and decoder, each with a text of its own."""
        return is_double(self.network)

    @cached_property
    def _plan(self) -> Plan:
        if isinstance(self.tokens, Patches):
            return self._plan_of_images(self.tokens)

        def run(report: Report) -> None:
            ids = np.array([self.plain_tokens(TOKENS)], dtype=np.int64)
            inputs = self._inputs(ids, np.ones_like(ids, dtype=bool))
            if self.two_stacks:
                inputs |= self._decoder_inputs(ids[:, :DECODER_TOKENS], np.ones((1, DECODER_TOKENS), dtype=bool))
            try:
                with watching(self.network, report, batch=1), torch.inference_mode():
                    self._run(self.network, inputs)
            except ModelError:
                raise
            except Exception as error:  # what models raise that want something else than a text: images, sound, boxes
                first = next(iter(str(error).splitlines()), type(error).__name__)
                raise ModelError(
                    f"{self.name}: the model type {self.type!r} does not run on a text of {TOKENS} tokens alone: "
                    f"{first}"
                ) from error

        return examine(self.name, self.network, run)

    def _plan_of_images(self, patches: Patches) -> Plan:
        if self.two_stacks:
            raise ModelError(
                f"{self.name}: the model type {self.type!r} reads an image and writes a text: watch its encoder alone, "
                "headscope.load(network.get_encoder(), image_processor)"
            )
        length = patches.length  # raises, with the reason, where patches are no tokens

        def run(report: Report) -> None:
            with watching(self.network, report, batch=1), torch.inference_mode():
                self._run(self.network, patches.inputs(patches.noise()))

        return examine(self.name, self.network, run, patches=length)

    def plain_tokens(self, count: int) -> list[int]:
        """Different token ids, none of them a special one's: models do things of their own with those."""
        special = set(self._tokenizer.all_special_ids)
        return [k for k in range(count + len(special)) if k not in special][:count]

    @cached_property
    def ignores_padding(self) -> bool:
        """Whether a text's numbers stay as they are beside longer texts: ConvBERT's convolutions see the padding."""
        if isinstance(self.tokens, Patches):
            return True  # there is none: all images have as many tokens
        ids = np.array(self.plain_tokens(TOKENS), dtype=np.int64)
        short, long = (self.reads(Window.plain(ids[:count])) for count in (TOKENS - 2, TOKENS))
        runs: list[list[torch.Tensor]] = []
        for windows in ([short], [short, long]):
            runs.append([])
            batch = Batch.of(windows, self.tokens.pad_id)
            self.observe(batch, lambda layer, output, attention: runs[-1].append(output[0, : len(short)].float()))
        tolerance = PADDING_SEEN if self.dtype == "float32" else PADDING_SEEN_HALF
        return all((a - b).abs().max() <= tolerance * a.abs().max() for a, b in zip(*runs, strict=True))

    # -- running ------------------------------------------------------------------------------------------------------

    def windows(self, document: Document, cut: Cut) -> list[Window] | str:
        """The windows of a document as the watched stack reads them, or the reason why it has none."""
        return next(self.windows_of([document], cut))

    def windows_of(self, documents: Sequence[Document], cut: Cut) -> Iterator[list[Window] | str]:
        """The same for many documents in turn, whose texts are tokenized in one call."""
        made: Iterator[list[Window] | str]
        if isinstance(self.tokens, Patches):
            made = map(self.tokens.windows, documents)
        elif len(documents) == 1:
            made = iter([cut(documents[0], self.tokens)])
        else:
            made = cut.each(documents, self.tokens)
        shifts = self.two_stacks and self.anatomy.stack != "encoder"  # asked once, and not for every window
        for windows in made:
            yield [self.reads(window) for window in windows] if shifts and isinstance(windows, list) else windows

    def reads(self, window: Window) -> Window:
        """A window as the watched stack reads it: a decoder behind an encoder starts with a token of its own."""
        if not self.two_stacks or self.anatomy.stack == "encoder":
            return window
        return window.shifted(self._start_id, crosses=self.anatomy.stack == "cross")

    @property
    def _start_id(self) -> int:
        config, tokenizer = self.network.config, self._tokenizer
        for held in (config.decoder_start_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
            if held is not None:
                return int(held)
        raise ModelError(f"{self.name}: neither its configuration nor its tokenizer says what its decoder starts with")

    def first_token(self) -> tuple[str, str]:
        """The special token that attention finds first, and what it is for in words; both empty if there is none."""
        if self.two_stacks and self.anatomy.stack == "decoder":
            return self.tokens.names([self._start_id])[0], "the token its decoder starts with"
        return self.tokens.first_special() or "", self.tokens.first_role()

    def observe(self, batch: Batch, see: See, attend: Attend | None = None) -> None:
        """Run the model over a batch of windows that it `reads`, and show every layer of the watched stack to `see`.

        `attend` may compute the attention of a layer itself, where it is plain; that layer is then not shown.
        """
        plan, stack = self._plan, self.anatomy.stack
        source = batch.source
        network, inputs = self.network, self._inputs_of(batch)
        stacks = list(plan.stacks)
        if source is not None:
            inputs |= self._decoder_inputs(batch.ids, batch.real)
        elif self.two_stacks:
            # The decoder need not run where only the encoder is watched.
            network, stacks = self.network.get_encoder(), ["encoder"]
        expected = plan.of(stacks) if self.two_stacks else list(plan.calls)
        shown = _Shown(self.name, expected, stack, batch.ids.shape[1], see, attend)
        if attend is not None:
            real = send([batch.real], self.device)[0]
            shown.plain = Plain(real, self._proven, padded=not batch.real.all())
        own = [call.module for call in expected if call.route == "products"]
        routes: tuple[Route, ...] = BOTH if own else ("registry",)
        late = [call.projection.module for call in expected if call.projection is not None and call.late]
        with (
            watching(
                network,
                shown.report,
                batch=len(batch),
                routes=routes,
                modules=own,
                answer=None if attend is None else shown.answer,
            ),
            entering(late, shown.arrived),
            torch.inference_mode(),
        ):
            self._run(network, inputs)
        shown.check_all()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Several threads may `observe` within this context."""
        with prepared(self.network), unmasked(self.network):
            yield

    @cached_property
    def _proven(self) -> dict[int, bool]:
        """Modules whose attention was held against the plain formula, by their id, and whether it is that."""
        return {}

    @cached_property
    def tried(self) -> dict[Hashable, str]:
        """Kernels that were tried on this model, as who tried them names them, and what is wrong with them."""
        return {}

    def _inputs_of(self, batch: Batch) -> dict[str, Any]:
        if isinstance(self.tokens, Patches):
            return self.tokens.inputs(
                np.stack([window.pixels for window in batch.windows if window.pixels is not None])
            )
        return self._inputs(*((batch.ids, batch.real) if batch.source is None else batch.source))

    def _inputs(self, ids: Ints, real: Bools) -> dict[str, Any]:
        known = _known_tokens(self.network)
        if known is not None and ids.max() >= known:
            raise ModelError(
                f"{self.name}: its tokenizer gives the token id {ids.max()}, but the model knows {known} tokens: "
                "the two do not belong together"
            )
        return dict(zip(("input_ids", "attention_mask"), send([ids, real.astype(np.int64)], self.device), strict=True))

    def _decoder_inputs(self, ids: Ints, real: Bools) -> dict[str, Any]:
        return {f"decoder_{name}": given for name, given in self._inputs(ids, real).items()}

    @staticmethod
    def _run(network: Any, inputs: dict[str, Any]) -> None:
        accepted = inspect.signature(network.forward).parameters
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        with unmasked(network):
            network(**inputs)


@dataclass
class _Shown:
    """Shows the layers of one stack as they are computed, and sees to it that all of a run happens as planned."""

    name: str
    expected: list[Call]
    stack: str
    tokens: int
    see: See
    attend: Attend | None = None
    plain: Plain | None = None
    met: int = 0
    layer: int = 0
    waiting: torch.Tensor | None = None
    """the maps of a layer whose outputs have not come to their projection yet"""

    def answer(self, asked: Asked) -> torch.Tensor | None:
        """The outputs of a layer whose attention is plain, computed by others."""
        call = self._next(asked.module)
        if self.attend is None or self.plain is None or call.stack != self.stack or call.late:
            return None
        question = self.plain.question(asked)
        output = None if question is None else self.attend(self.layer, question)
        if output is not None:
            self.met += 1
            self.layer += 1
        return output

    def _next(self, module: torch.nn.Module) -> Call:
        if self.met == len(self.expected) or module is not self.expected[self.met].module:
            raise ModelError(f"{self.name}: its attention layers do not run in the order in which they ran before")
        return self.expected[self.met]

    def report(self, sighting: Sighting) -> None:
        call = self._next(sighting.module)
        self.met += 1
        if call.stack != self.stack:
            return
        if sighting.attention.shape[-2:] != (self.tokens, self.tokens):
            raise ModelError(
                f"{self.name}: it attends otherwise in windows of {self.tokens} tokens than in short ones: "
                "choose a smaller --length"
            )
        if call.late:
            self.waiting = sighting.attention
        else:
            self._show(sighting.output, sighting.attention)

    def arrived(self, module: torch.nn.Module, given: torch.Tensor) -> None:
        projection = self.expected[self.met - 1].projection
        if self.waiting is not None and projection is not None and module is projection.module:
            attention, self.waiting = self.waiting, None
            self._show(given.reshape(*given.shape[:2], attention.shape[1], -1), attention)

    def _show(self, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.see(self.layer, output, attention)
        self.layer += 1

    def check_all(self) -> None:
        if self.met != len(self.expected) or self.waiting is not None:
            raise ModelError(
                f"{self.name}: captured {self.met} attention computations where there are {len(self.expected)}"
            )


def _known_tokens(network: Any) -> int | None:
    """How many different tokens a network knows, where it says."""
    try:
        return getattr(network.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:
        return None
