"""A model whose heads can be observed: the transformer, its tokenizer, and its stacks, layers and heads."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from headscope.array_types import Bools, Ints
from headscope.corpus.formats import Document
from headscope.corpus.windows import NOT_TOKENIZABLE, TOO_SHORT, Batch, Window, WindowSpec
from headscope.devices import send
from headscope.errors import ModelError
from headscope.model.architecture import (
    DECODER_TOKENS,
    TOKENS,
    AttentionCall,
    AttentionPlan,
    StackArchitecture,
    disable_image_masking,
    examine,
    has_encoder_and_decoder,
)
from headscope.model.capture.attention_interface import ALL_ROUTES, prepare_network, watch_attention
from headscope.model.capture.plain_attention import AttentionInputs, PlainDetector
from headscope.model.capture.records import (
    AttentionRequest,
    CapturedAttention,
    OnCapture,
    Route,
    read_heads,
    watch_inputs,
)
from headscope.model.image_patches import Patches
from headscope.model.tokenizer import ModelTokens

PADDING_TOLERANCE, PADDING_TOLERANCE_HALF = 1e-3, 5e-2
"""differences up to this, relative to the largest value, come from the order of floating-point sums; more in half
precision"""

BATCH_PROBE_TEXTS, BATCH_PROBE_TOKENS = 6, 16
"""number of texts, and tokens of the longest, with which it is found out which texts can share a batch"""
Batching = Literal["mixed lengths", "equal lengths", "single texts"]
"""which texts can share a batch"""

OnLayer = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called for each layer of a stack in turn, counted from 0, with the heads' outputs (batch, query, head, width) and the
attention maps (batch, head, query, key). A layer with fewer heads than others has zeros in place of those it lacks."""

Attend = Callable[[int, AttentionInputs], torch.Tensor | None]
"""Called before a layer whose attention is plain is computed. May compute the heads' outputs (batch, query, head,
width) itself and process them; if it returns None, the model computes the layer, and `OnLayer` is called.
"""


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model. `network` is the transformers model, unchanged.

    Create it with `headscope.load`.

    Examples
    --------
    >>> import headscope
    >>> headscope.load("minilm", device="cpu")
    <Model minilm: 6 layers × 12 heads, 384 wide, encoder, cpu, float32>
    """

    name: str
    network: Any
    tokens: ModelTokens | Patches
    weight_hash: str
    stack: str | None = None
    """the stack that is observed; None: the first, which is usually the only one"""
    origin: Mapping[str, Any] | None = None
    """arguments of `headscope.load` that load it again; None: it was given as an object"""

    def __repr__(self) -> str:
        try:
            architecture = self.architecture
        except ModelError:  # an error that names the model must not fail for it
            parts = [f"a {self.type} whose heads cannot be observed"]
        else:
            layers, heads = (
                f"{number} {noun}{'s' * (number != 1)}"
                for number, noun in ((architecture.layers, "layer"), (architecture.heads, "head"))
            )
            width = getattr(self._config, "hidden_size", None)
            parts = [f"{layers} × {heads}", *([f"{width} wide"] if width else []), architecture.stack]
        return f"<Model {self.name}: {', '.join([*parts, str(self.device), self.dtype])}>"

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return torch.device(next(iter(self.network.parameters())).device)

    @property
    def dtype(self) -> str:
        """The type of the weights, such as `float32`."""
        return str(next(iter(self.network.parameters())).dtype).removeprefix("torch.")

    @property
    def type(self) -> str:
        """The model type of transformers, such as `bert`."""
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
        """Configuration of the text model, where there are others (images, sound)."""
        return self.network.config.get_text_config()

    @property
    def max_length(self) -> int | None:
        """Largest number of tokens that the model has positions for; None if there is no limit."""
        if isinstance(self.tokens, Patches):
            return self.tokens.length
        config = self._config
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        if not isinstance(limit, int) or limit <= 0:
            return None
        # RoBERTa and similar models number positions from the padding id + 1: the first rows of the table are unused.
        embeddings = next((m for m in self.network.modules() if hasattr(m, "position_embeddings")), None)
        table = getattr(embeddings, "position_embeddings", None)
        unused = getattr(table, "padding_idx", None)
        return limit if unused is None else limit - unused - 1

    # -- stacks -------------------------------------------------------------------------------------------------------

    @property
    def stacks(self) -> tuple[str, ...]:
        """Stacks that can be observed: `encoder`, `decoder`, `cross` (the decoder's attention to the encoder)."""
        return tuple(self.attention_plan.stacks)

    def on(self, stack: str) -> Model:
        """Return the same model, observing another of its stacks.

        Parameters
        ----------
        stack
            `encoder`, `decoder` or `cross`, whichever the model has.

        Returns
        -------
        Model

        Raises
        ------
        ModelError
            There is no such stack.

        Examples
        --------
        >>> import headscope
        >>> headscope.load("minilm").on("encoder").architecture.stack
        'encoder'
        """
        if stack not in self.stacks:
            raise ModelError(f"{self.name} has no stack {stack!r}; there are: {', '.join(self.stacks)}")
        return replace(self, stack=stack)

    @property
    def architecture(self) -> StackArchitecture:
        """Layers and heads of the stack that is observed, as found by running the model."""
        stacks = self.attention_plan.stacks
        if self.stack is None and self.is_encoder_decoder and "encoder" not in stacks:
            raise ModelError(
                f"{self.name}: the encoder of the model type {self.type!r} attends in blocks, or not with a softmax "
                f"over tokens, and cannot be watched: choose --stack {' or '.join(stacks)}"
            )
        return stacks[self.stack] if self.stack else next(iter(stacks.values()))

    def check_verified(self, *, allow_unverified: bool = False) -> None:
        """Raise if what is captured of the observed stack is not verified to be what its heads write.

        Parameters
        ----------
        allow_unverified
            Accept it.

        Raises
        ------
        ModelError
            It is not verified; the message says why.

        Examples
        --------
        >>> import headscope
        >>> headscope.load().check_verified()
        """
        architecture = self.architecture
        if not architecture.verified and not allow_unverified:
            raise ModelError(
                f"{self.name}: what is captured of its {architecture.stack}'s heads is not verified, and numbers could "
                f"be wrong: {architecture.problem}. --allow-unverified (in Python allow_unverified=True) measures it "
                "anyway and marks all results"
            )

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it has an encoder and a decoder, each with its own text."""
        return has_encoder_and_decoder(self.network)

    @cached_property
    def attention_plan(self) -> AttentionPlan:
        """The attention computations of a run, as found by running the model over a few tokens."""
        if isinstance(self.tokens, Patches):
            return self._plan_images(self.tokens)

        def run(on_capture: OnCapture) -> Any:
            # Two texts: the order of texts and tokens in a tensor shows in its shape.
            tokens = self.pick_ordinary_tokens(TOKENS)
            ids = np.array([tokens, tokens[::-1]], dtype=np.int64)
            inputs = self.make_token_inputs(ids, np.ones_like(ids, dtype=bool))
            if self.is_encoder_decoder:
                inputs |= self.make_decoder_inputs(ids[:, :DECODER_TOKENS], np.ones((2, DECODER_TOKENS), dtype=bool))
            try:
                with watch_attention(self.network, on_capture, batch=2), torch.inference_mode():
                    return self._run_network(self.network, inputs)
            except ModelError:
                raise
            except Exception as error:  # of many kinds: the model may need images, sound or boxes
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise ModelError(
                    f"{self.name}: the model type {self.type!r} does not run on a text of {TOKENS} tokens alone: "
                    f"{reason}"
                ) from error

        return examine(self.name, self.network, run)

    def _plan_images(self, patches: Patches) -> AttentionPlan:
        if self.is_encoder_decoder:
            raise ModelError(
                f"{self.name}: the model type {self.type!r} reads an image and writes a text: watch its encoder alone, "
                "headscope.load(network.get_encoder(), image_processor)"
            )
        length = patches.length  # raises if patches are not tokens

        def run(on_capture: OnCapture) -> Any:
            with watch_attention(self.network, on_capture, batch=1), torch.inference_mode():
                return self._run_network(self.network, patches.inputs(patches.noise()))

        return examine(self.name, self.network, run, patches=length)

    def pick_ordinary_tokens(self, count: int) -> list[int]:
        """Return distinct token ids, without those of special tokens, which some models treat differently.

        Parameters
        ----------
        count
            How many.

        Returns
        -------
        list of int

        Examples
        --------
        >>> import headscope
        >>> len(headscope.load("minilm").pick_ordinary_tokens(3))
        3
        """
        special = set(self._tokenizer.all_special_ids)
        return [k for k in range(count + len(special)) if k not in special][:count]

    @cached_property
    def batching(self) -> Batching:
        """Which texts can share a batch without changing each other's outputs beyond rounding, found by running them.

        ConvBERT's convolutions see padding; experts of limited capacity, and what is normalized over a batch, depend on
        the other texts.
        """
        if isinstance(self.tokens, Patches):
            return "mixed lengths"  # there is no padding: all images have the same number of tokens
        try:
            return self._find_batching(min(BATCH_PROBE_TOKENS, self.max_length or BATCH_PROBE_TOKENS))
        except Exception:  # of many kinds: a model may treat texts of this length differently, and names it in a study
            return self._find_batching(TOKENS)

    def _find_batching(self, tokens: int) -> Batching:
        ordinary, random = np.array(self.pick_ordinary_tokens(tokens), dtype=np.int64), np.random.default_rng(0)
        longer = self.adapt_window(Window.plain(ordinary))
        texts = [
            self.adapt_window(Window.plain(random.permutation(ordinary)[: tokens * 3 // 5]))
            for _ in range(BATCH_PROBE_TEXTS)
        ]
        together = self._observe_last(texts, len(texts))
        if not self._is_rounding([layer[-1:] for layer in together], self._observe_last(texts[-1:], 1)):
            return "single texts"
        padded = self._observe_last([longer, *texts], len(texts))
        return "mixed lengths" if self._is_rounding(together, padded) else "equal lengths"

    def _observe_last(self, windows: list[Window], count: int) -> list[torch.Tensor]:
        """Return the outputs (text, token, head, width) of the last texts of a batch, layer by layer."""
        outputs: list[torch.Tensor] = []
        tokens = len(windows[-1])
        self.observe(
            Batch.of(windows, self.tokens.pad_id),
            lambda _, output, maps: outputs.append(output[-count:, :tokens].float()),
        )
        return outputs

    def _is_rounding(self, expected: list[torch.Tensor], actual: list[torch.Tensor]) -> bool:
        tolerance = PADDING_TOLERANCE if self.dtype == "float32" else PADDING_TOLERANCE_HALF
        return all((a - b).abs().max() <= tolerance * a.abs().max() for a, b in zip(expected, actual, strict=True))

    @property
    def ignores_padding(self) -> bool:
        """Whether texts of different lengths can share a batch."""
        return self.batching == "mixed lengths"

    def limit_batch_size(self, size: int) -> int:
        """Return this number of texts per batch, or 1 if no two texts can share a batch.

        Parameters
        ----------
        size
            Number of texts.

        Returns
        -------
        int

        Examples
        --------
        >>> import headscope
        >>> headscope.load().limit_batch_size(32)
        32
        """
        return 1 if self.batching == "single texts" else size

    # -- running ------------------------------------------------------------------------------------------------------

    def windows(self, document: Document, cut: WindowSpec) -> list[Window] | str:
        """Return the windows of a document as the observed stack reads them, or the reason why it has none.

        Parameters
        ----------
        document
            The document.
        cut
            How documents are cut into windows.

        Returns
        -------
        list of Window, or str

        Examples
        --------
        >>> import headscope
        >>> from headscope.corpus.windows import WindowSpec
        >>> model = headscope.load("minilm")
        >>> document = headscope.Document("Two ravens met.", "ravens")
        >>> [len(window) for window in model.windows(document, WindowSpec(length=128))]
        [6]
        """
        return next(self.cut_documents([document], cut))

    def cut_documents(self, documents: Sequence[Document], cut: WindowSpec) -> Iterator[list[Window] | str]:
        """Yield what `windows` returns for each of many documents, whose texts are tokenized in one call.

        Parameters
        ----------
        documents
            The documents.
        cut
            How documents are cut into windows.

        Yields
        ------
        list of Window, or str

        Examples
        --------
        >>> import headscope
        >>> from headscope.corpus.windows import WindowSpec
        >>> model = headscope.load("minilm")
        >>> documents = [headscope.Document("Two ravens met.", "ravens"), headscope.Document("", "nothing")]
        >>> _, reason = model.cut_documents(documents, WindowSpec(length=128))
        >>> reason
        'empty'
        """
        results: Iterator[list[Window] | str]
        if isinstance(self.tokens, Patches):
            results = map(self.tokens.windows, documents)
        elif any(document.target is not None for document in documents):
            yield from self._cut_pairs(documents, self.tokens, cut)
            return
        else:
            results = cut.cut_documents(documents, self.tokens)
        is_decoder = self.needs_targets  # computed once, not for every window
        for windows in results:
            yield (
                [self.adapt_window(window) for window in windows]
                if is_decoder and isinstance(windows, list)
                else windows
            )

    def _cut_pairs(
        self, documents: Sequence[Document], tokens: ModelTokens, cut: WindowSpec
    ) -> Iterator[list[Window] | str]:
        """Yield the one window of each document with a target, or the reason why it has none."""
        self.check_target(has_targets=all(document.target is not None or document.broken for document in documents))
        crosses = self.architecture.stack == "cross"
        sources = [replace(document, target=None, relations=None, words=None) for document in documents]
        targets = [
            replace(source, text=document.target or "") for document, source in zip(documents, sources, strict=True)
        ]
        source_windows = replace(cut, min_tokens=1, sentences="tokens").cut_documents(sources, tokens)
        target_windows = cut.cut_documents(targets, self.target_tokens)
        for document, source, target in zip(documents, source_windows, target_windows, strict=True):
            if isinstance(source, str):
                yield source
            elif isinstance(target, str):
                yield target if target in (document.broken, TOO_SHORT, NOT_TOKENIZABLE) else f"target {target}"
            else:
                digest = document.digest if cut.blocks == "documents" else None
                start = self._find_decoder_start(target[0].ids)
                yield [target[0].pair_with(source[0], start, crosses=crosses, document=digest)]

    @property
    def needs_targets(self) -> bool:
        """Whether the observed stack reads what the model is to write for a text."""
        return self.is_encoder_decoder and self.architecture.stack != "encoder"

    def check_target(self, *, has_targets: bool) -> None:
        """Raise if the observed stack needs targets and there are none, or does not read those that there are.

        Parameters
        ----------
        has_targets
            Whether documents are pairs of texts.

        Raises
        ------
        ModelError

        Examples
        --------
        >>> import headscope
        >>> headscope.load("minilm").check_target(has_targets=False)
        """
        if not self.is_encoder_decoder:
            if has_targets:
                raise ModelError(
                    f"{self.name}: has no decoder behind an encoder, which alone reads a target: leave --target out"
                )
            return
        if has_targets and not self.needs_targets:
            raise ModelError(
                f"{self.name}: its encoder does not read the target: choose --stack decoder or --stack cross, or leave "
                "--target out"
            )
        if self.needs_targets and not has_targets:
            raise ModelError(
                f"{self.name}: its decoder reads what the model is to write for a text, such as the translation: name "
                "the field that holds it with --target FIELD (in Python: give a list of pairs (source, target), or "
                "target=…), or study the encoder; --target with the field of the text itself makes every text its own "
                "target"
            )

    @cached_property
    def target_tokens(self) -> ModelTokens:
        """Tokens of what the decoder of an encoder–decoder model writes."""
        if isinstance(self.tokens, Patches):
            raise ModelError(f"{self.name} reads images and has no tokenizer")
        return self.tokens.for_targets()

    @property
    def key_tokens(self) -> ModelTokens | Patches:
        """Tokens that attention of the observed stack goes to."""
        if isinstance(self.tokens, Patches) or not self.is_encoder_decoder or self.architecture.stack != "decoder":
            return self.tokens
        return self.target_tokens

    @property
    def window_tokens(self) -> ModelTokens | Patches:
        """Tokens of the windows whose head outputs are observed."""
        if isinstance(self.tokens, Patches) or not self.is_encoder_decoder or self.architecture.stack == "encoder":
            return self.tokens
        return self.target_tokens

    def _find_decoder_start(self, target: Ints) -> int:
        """Return the token id with which the decoder starts for a target, as the model itself shifts labels.

        It is `decoder_start_id`, or in some models (mBART, PLBart, FSMT) the last token of the target.
        """
        labels = torch.from_numpy(np.ascontiguousarray(target, dtype=np.int64))[None]
        shift = getattr(sys.modules[type(self.network).__module__], "shift_tokens_right", None)
        if hasattr(self.network, "_shift_right"):
            shifted = self.network._shift_right(labels)
        elif shift is not None:
            config = self.network.config
            options = (config.pad_token_id, self.decoder_start_id)
            shifted = shift(labels.clone(), *options[: len(inspect.signature(shift).parameters) - 1])
        else:
            return self.decoder_start_id
        if shifted.shape != labels.shape or not torch.equal(shifted[0, 1:], labels[0, :-1]):
            raise ModelError(
                f"{self.name}: the model type {self.type!r} gives its decoder something else than a start token and "
                "the target without its last token: --target is not supported for it"
            )
        return int(shifted[0, 0])

    def adapt_window(self, window: Window) -> Window:
        """Return a window as the observed stack reads it.

        The decoder of an encoder–decoder model starts with a token of its own.

        Parameters
        ----------
        window
            Tokens of a text.

        Returns
        -------
        Window

        Examples
        --------
        >>> import headscope, numpy as np
        >>> from headscope.corpus.windows import Window
        >>> window = Window.plain(np.array([101, 7592, 102]))
        >>> len(headscope.load("minilm").adapt_window(window))  # an encoder reads it as it is
        3
        """
        if not self.needs_targets:
            return window
        return window.shift_right(self.decoder_start_id, crosses=self.architecture.stack == "cross")

    @property
    def decoder_start_id(self) -> int:
        """Token id with which the decoder starts to read."""
        config, tokenizer = self.network.config, self._tokenizer
        for token_id in (config.decoder_start_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
            if token_id is not None:
                return int(token_id)
        raise ModelError(f"{self.name}: neither its configuration nor its tokenizer says what its decoder starts with")

    def first_token(self) -> tuple[str, str]:
        """Return the special token at the start of every window, and its role in words.

        Returns
        -------
        token, role : str
            Both empty if there is none.

        Examples
        --------
        >>> import headscope
        >>> headscope.load("minilm").first_token()[0]
        '[CLS]'
        """
        if self.is_encoder_decoder and self.architecture.stack == "decoder":
            return self.tokens.names([self.decoder_start_id])[0], "the token its decoder starts with"
        return self.tokens.find_first_special() or "", self.tokens.describe_first_special()

    def observe(self, batch: Batch, see: OnLayer, attend: Attend | None = None) -> None:
        """Run the model over a batch and call `see` for every layer of the observed stack.

        Parameters
        ----------
        batch
            Windows as `windows` returns them.
        see
            Called for each layer, in order, with its number from 0, outputs (text, position, head, width) and
            attention maps (text, head, query, key).
        attend
            May compute layers with plain attention itself; `see` is not called for these.

        Raises
        ------
        ModelError
            The model's attention is not computed as it was when it was loaded.

        Examples
        --------
        >>> import headscope, numpy as np
        >>> from headscope.corpus.windows import Batch, Window
        >>> model, shapes = headscope.load("minilm"), []
        >>> batch = Batch.of([Window.plain(np.array([101, 7592, 102]))], model.tokens.pad_id)
        >>> model.observe(batch, lambda layer, outputs, attention: shapes.append(tuple(outputs.shape)))
        >>> len(shapes), shapes[0]
        (6, (1, 3, 12, 32))
        """
        plan, stack = self.attention_plan, self.architecture.stack
        source = batch.source
        network, inputs = self.network, self.make_batch_inputs(batch)
        stacks = list(plan.stacks)
        if source is not None:
            inputs |= self.make_decoder_inputs(batch.ids, batch.real)
        elif self.is_encoder_decoder:
            # The decoder need not run where only the encoder is watched.
            network, stacks = self.network.get_encoder(), ["encoder"]
        expected = plan.of(stacks) if self.is_encoder_decoder else list(plan.calls)
        feed = _LayerFeed(self.name, expected, stack, batch.ids.shape[1], self.architecture.heads, see, attend)
        if attend is not None:
            real = send([batch.real], self.device)[0]
            feed.detector = PlainDetector(real, self._plain_modules, has_padding=not batch.real.all())
        traced_modules = [call.module for call in expected if call.route == "products"]
        routes: tuple[Route, ...] = ALL_ROUTES if traced_modules else ("registry",)
        projections = [call.projection.module for call in expected if call.projection is not None and call.is_indirect]
        with (
            watch_attention(
                network,
                feed.handle_capture,
                batch=len(batch),
                routes=routes,
                modules=traced_modules,
                override=None if attend is None else feed.compute_plain,
            ),
            watch_inputs(projections, feed.handle_projection_input),
            torch.inference_mode(),
        ):
            self._run_network(network, inputs)
        feed.check_complete()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Let several threads `observe` within this context.

        Yields
        ------
        None

        Examples
        --------
        >>> import headscope
        >>> with headscope.load("minilm").prepared():
        ...     pass  # threads that call `observe`
        """
        with prepare_network(self.network), disable_image_masking(self.network):
            yield

    @cached_property
    def _plain_modules(self) -> dict[int, bool]:
        """Whether the attention of a module is plain, by the id of the module."""
        return {}

    @cached_property
    def kernel_errors(self) -> dict[Hashable, str]:
        """Kernels that were tried on this model, by a key that the caller chooses, and what is wrong with them."""
        return {}

    def make_batch_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return what the network is called with for a batch.

        Parameters
        ----------
        batch
            Windows as `windows` returns them.

        Returns
        -------
        dict
            Arguments of the network's `forward`.

        Examples
        --------
        >>> import headscope, numpy as np
        >>> from headscope.corpus.windows import Batch, Window
        >>> model = headscope.load("minilm")
        >>> sorted(model.make_batch_inputs(Batch.of([Window.plain(np.array([101, 7592, 102]))], model.tokens.pad_id)))
        ['attention_mask', 'input_ids']
        """
        if isinstance(self.tokens, Patches):
            return self.tokens.inputs(
                np.stack([window.pixels for window in batch.windows if window.pixels is not None])
            )
        return self.make_token_inputs(*((batch.ids, batch.real) if batch.source is None else batch.source))

    def make_token_inputs(self, ids: Ints, real: Bools) -> dict[str, Any]:
        """Return what the network is called with for token ids.

        Parameters
        ----------
        ids
            Token ids (text, position).
        real
            Whether a position is no padding (text, position).

        Returns
        -------
        dict
            Arguments of the network's `forward`.

        Raises
        ------
        ModelError
            An id is larger than the network's vocabulary.

        Examples
        --------
        >>> import headscope, numpy as np
        >>> inputs = headscope.load("minilm").make_token_inputs(np.array([[101, 102]]), np.array([[True, True]]))
        >>> inputs["input_ids"].tolist()
        [[101, 102]]
        """
        self._check_ids(ids, self.network)
        return dict(zip(("input_ids", "attention_mask"), send([ids, real.astype(np.int64)], self.device), strict=True))

    def make_decoder_inputs(self, ids: Ints, real: Bools) -> dict[str, Any]:
        """Return what the decoder of an encoder–decoder model is called with for token ids.

        Parameters
        ----------
        ids
            Token ids (text, position).
        real
            Whether a position is no padding (text, position).

        Returns
        -------
        dict
            Arguments of the network's `forward`.

        Examples
        --------
        >>> import headscope, numpy as np
        >>> model = headscope.load("minilm")
        >>> sorted(model.make_decoder_inputs(np.array([[101, 102]]), np.array([[True, True]])))
        ['decoder_attention_mask', 'decoder_input_ids']
        """
        # The vocabulary of a decoder may be another one.
        self._check_ids(ids, self.network.get_decoder() if self.is_encoder_decoder else self.network)
        tensors = send([ids, real.astype(np.int64)], self.device)
        return dict(zip(("decoder_input_ids", "decoder_attention_mask"), tensors, strict=True))

    def _check_ids(self, ids: Ints, network: Any) -> None:
        vocabulary_size = _get_vocabulary_size(network)
        if vocabulary_size is not None and ids.max() >= vocabulary_size:
            raise ModelError(
                f"{self.name}: its tokenizer gives the token id {ids.max()}, but the model knows "
                f"{vocabulary_size} tokens: the tokenizer belongs to another model"
            )

    @staticmethod
    def _run_network(network: Any, inputs: dict[str, Any]) -> Any:
        accepted = inspect.signature(network.forward).parameters
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        with disable_image_masking(network):
            return network(**inputs)


@dataclass
class _LayerFeed:
    """Pass on the layers of one stack as they are computed, and check that the run's attention is as planned."""

    name: str
    expected: list[AttentionCall]
    stack: str
    tokens: int
    heads: int
    """that `see` gets of each layer"""
    see: OnLayer
    attend: Attend | None = None
    detector: PlainDetector | None = None
    calls_seen: int = 0
    layer: int = 0
    pending_maps: torch.Tensor | None = None
    """maps of a layer whose outputs will be read from its projection's input"""
    pending_shape: torch.Size = field(default_factory=torch.Size)
    """shape of these outputs"""

    def compute_plain(self, request: AttentionRequest) -> torch.Tensor | None:
        """Return the outputs of a layer with plain attention, if `attend` computes them."""
        call = self._check_next(request.module)
        if self.attend is None or self.detector is None or call.stack != self.stack or call.is_indirect:
            return None
        if call.heads != self.heads:
            return None
        inputs = self.detector.find_plain_inputs(request)
        output = None if inputs is None else self.attend(self.layer, inputs)
        if output is not None:
            self.calls_seen += 1
            self.layer += 1
        return output

    def _check_next(self, module: torch.nn.Module) -> AttentionCall:
        if self.calls_seen == len(self.expected) or module is not self.expected[self.calls_seen].module:
            raise ModelError(f"{self.name}: its attention layers run in another order than before")
        return self.expected[self.calls_seen]

    def handle_capture(self, captured: CapturedAttention) -> None:
        call = self._check_next(captured.module)
        self.calls_seen += 1
        if call.stack != self.stack:
            return
        if captured.attention.shape[-2:] != (self.tokens, self.tokens):
            raise ModelError(
                f"{self.name}: its attention in windows of {self.tokens} tokens differs from that in short ones: "
                "choose a smaller --length"
            )
        if call.is_indirect:
            self.pending_maps, self.pending_shape = captured.attention, captured.output.shape
        else:
            self._show(captured.output, captured.attention)

    def handle_projection_input(self, module: torch.nn.Module, inputs: torch.Tensor) -> None:
        projection = self.expected[self.calls_seen - 1].projection
        if self.pending_maps is not None and projection is not None and module is projection.module:
            attention, shape, self.pending_maps = self.pending_maps, self.pending_shape, None
            heads = read_heads(inputs, projection.layout, shape)
            if heads is None:
                raise ModelError(f"{self.name}: the input of its output projection has another form than before")
            self._show(heads, attention)

    def _show(self, output: torch.Tensor, attention: torch.Tensor) -> None:
        absent = self.heads - attention.shape[1]
        if absent:
            output = torch.nn.functional.pad(output, (0, 0, 0, absent))
            attention = torch.nn.functional.pad(attention, (0, 0, 0, 0, 0, absent))
        self.see(self.layer, output, attention)
        self.layer += 1

    def check_complete(self) -> None:
        if self.calls_seen != len(self.expected) or self.pending_maps is not None:
            raise ModelError(
                f"{self.name}: captured {self.calls_seen} attention computations where there are {len(self.expected)}"
            )


def _get_vocabulary_size(network: Any) -> int | None:
    """Return the size of a network's vocabulary, or None if it does not say."""
    try:
        return getattr(network.get_input_embeddings(), "num_embeddings", None)
    except (NotImplementedError, AttributeError):
        return None
