"""Exported files: equal to readings and to what the network itself computes, whatever shares a batch; bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch

import headscope
from headscope.errors import ModelError, SelectionError, StudyError
from headscope.exporting.export import read_manifest
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny

TEXTS = ["the cat sat. the dog ran!", "a b c", "who, me? the one.", "", "the end of the day, the end of it"]
PROJECTING = [
    "bert",
    "gpt2",
    "llama",
    "modernbert",
    "opt",
    "qwen3_next",
    "gpt_neox",
    "falcon",
    "deberta-v2",
    "mpt",
    "jamba",
]
HEADS = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


def export(model: Any, tmp_path: Path, texts: Any = TEXTS, **options: Any) -> pd.DataFrame:
    path = headscope.export(model, texts, tmp_path / "heads.parquet", **{"length": 16, "overwrite": True} | options)
    return pd.read_parquet(path)


def stack(column: pd.Series) -> np.ndarray:
    return np.stack(column.tolist())


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_outputs_are_those_of_readings(model: Model, tmp_path: Path, batch_size: int) -> None:
    table = export(model, tmp_path, batch_size=batch_size)
    assert [*table] == ["document", "document_number", "window", "position", "token_id", "token", "special", *HEADS]
    assert table["document_number"].unique().tolist() == [0, 1, 2, 4]
    for number, rows in table.groupby("document_number"):
        reading = headscope.read(model, TEXTS[int(str(number))], length=16)
        assert rows["token"].tolist() == reading.tokens.values.tolist()
        assert rows["position"].tolist() == list(range(len(reading)))
        assert rows["special"].tolist() == [True, *[False] * (len(rows) - 2), True]
        for layer in range(2):
            for head in range(4):
                np.testing.assert_allclose(
                    stack(rows[f"L{layer}H{head}"]), reading.output(layer, head), rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize("kind", PROJECTING)
def test_projected_heads_add_up_to_what_the_projection_writes(kind: str, tmp_path: Path) -> None:
    model = tiny.model(kind)
    table = export(model, tmp_path, what="projected", batch_size=3)
    (window,) = model.windows(headscope.Document(TEXTS[0], "first"), headscope.corpus.windows.WindowSpec(length=16))
    projections = [call.projection.module for call in model.attention_plan.of([model.architecture.stack])]
    written: list[torch.Tensor] = []
    hooks = [module.register_forward_hook(lambda *call: written.append(call[2])) for module in projections]
    with torch.inference_mode():
        model.network(input_ids=torch.from_numpy(window.ids)[None])
    for hook in hooks:
        hook.remove()
    rows = table[table["document_number"] == 0]
    for layer, (module, output) in enumerate(zip(projections, written, strict=True)):
        bias = 0 if module.bias is None else module.bias.detach().numpy()
        number = model.architecture.numbers[layer]
        total = sum(stack(rows[f"L{number}H{head}"]) for head in range(4)) + bias
        np.testing.assert_allclose(total, output.reshape(len(rows), -1).numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_attention_scores_are_those_of_the_definition(kind: str, tmp_path: Path) -> None:
    model = tiny.model(kind)
    table = export(model, tmp_path, what="attention", heads="L1H2")
    names = read_manifest(tmp_path / "heads.parquet")["scores"]
    assert len(names) == 9
    for number, rows in table.groupby("document_number"):
        reading = headscope.read(model, TEXTS[int(str(number))], length=16)
        maps = reading.data["attention"].sel(layer=1, head=2).values
        ids, special = rows["token_id"].tolist(), rows["special"].tolist()
        punctuation = [not any(letter.isalnum() for letter in token) for token in rows["token"]]
        for i, values in enumerate(stack(rows["L1H2"])):
            keys = range(i + 1) if kind == "gpt2" else range(len(ids))
            targets = {
                "attends_previous": [i - 1] if i else None,
                "attends_next": [i + 1] if kind == "bert" and i < len(ids) - 1 else None,
                "attends_self": [i],
                "attends_first": [0] if i else None,
                "attends_special": None if special[i] else [j for j in keys if special[j]],
                "attends_punctuation": [j for j in keys if punctuation[j] and not special[j] and j != i] or None,
                "attends_duplicate": [j for j in keys if j != i and ids[j] == ids[i] and not special[i]] or None,
                "attends_induction": [j for j in range(1, i) if ids[j - 1] == ids[i] and not special[i]] or None,
            }
            expected = [np.nan if target is None else maps[i, target].sum() for target in targets.values()]
            entropy = (
                -sum(maps[i, j] * np.log(maps[i, j]) for j in keys) / np.log(len(keys)) if len(keys) > 1 else np.nan
            )
            assert [*targets, "attention_entropy"] == names
            np.testing.assert_allclose(values, [*expected, entropy], rtol=1e-4, atol=1e-5)


def test_uniform_attention_worked_by_hand(tmp_path: Path) -> None:
    """[CLS] a , a , [SEP] with attention of 1/6 to every token: of the second a, one duplicate and one token after an
    equal one; two special tokens; two commas, of which a comma sees one other."""
    network = tiny.network("bert")
    for layer in network.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.query.weight)
        torch.nn.init.zeros_(layer.attention.self.query.bias)
    table = export(load(network, tiny.tokenizer()), tmp_path, ["a, a,"], what="attention", heads="L0H0")
    nan, part = np.nan, 1 / 6
    expected = [
        [nan, part, part, nan, nan, 2 * part, nan, nan, 1],
        [part, part, part, part, 2 * part, 2 * part, part, nan, 1],
        [part, part, part, part, 2 * part, part, part, nan, 1],
        [part, part, part, part, 2 * part, 2 * part, part, part, 1],
        [part, part, part, part, 2 * part, part, part, part, 1],
        [part, nan, part, part, nan, 2 * part, nan, nan, 1],
    ]
    np.testing.assert_allclose(stack(table["L0H0"]), expected, rtol=1e-5)


@pytest.mark.parametrize("what", ["outputs", "attention"])
@pytest.mark.parametrize(
    "kind",
    ["bert", "gpt2", "t5", "convbert", "gemma3", "qwen3_next", "deberta-v2", "xlnet", "jamba", "squeezebert", "vit"],
)
def test_all_kinds_of_models_are_exported(kind: str, what: Any, tmp_path: Path) -> None:
    model = tiny.vision_model(kind) if kind == "vit" else tiny.model(kind)
    texts = tiny.pictures(2) if kind == "vit" else TEXTS
    options = {} if kind == "vit" else {"length": 16}
    path = headscope.export(model, texts, tmp_path / "x.parquet", what=what, batch_size=2, **options)
    alone = headscope.export(model, texts, tmp_path / "y.parquet", what=what, batch_size=1, **options)
    tables = [pd.read_parquet(file) for file in (path, alone)]
    heads = [name for name in tables[0] if name.startswith("L")]
    assert len(heads) == sum(model.architecture.head_counts)
    for name in heads:
        np.testing.assert_allclose(stack(tables[0][name]), stack(tables[1][name]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stack_name", ["decoder", "cross"])
def test_decoders_and_cross_attention(stack_name: str, tmp_path: Path) -> None:
    model = tiny.model("t5").on(stack_name)
    pairs = [("the cat sat.", "a b, c"), ("who", "the end of the day")]
    table = export(model, tmp_path, pairs, what="attention", heads="L1H0")
    scores = stack(table["L1H0"])
    between = np.isnan(scores).all(0)
    assert between.tolist()[:3] == ([True] * 3 if stack_name == "cross" else [False, True, False])
    assert np.isfinite(scores[1:, 3]).sum() == len(table) - 2


def test_heads_are_in_the_order_of_layers_and_float16_is_half(model: Model, tmp_path: Path) -> None:
    table = export(model, tmp_path, heads="L1H3,L0H2", dtype="float16")
    assert [*table][7:] == ["L0H2", "L1H3"]
    assert stack(table["L1H3"]).dtype == np.float16
    schema = pyarrow.parquet.read_schema(tmp_path / "heads.parquet")
    assert str(schema.field("L1H3").type) == "fixed_size_list<element: halffloat>[8]"
    full = export(model, tmp_path, heads="L1H3,L0H2")
    np.testing.assert_allclose(stack(table["L1H3"]), stack(full["L1H3"]), atol=1e-2)
    assert [*export(model, tmp_path, heads="H2", layers="1")][7:] == ["L1H2"]


def test_the_manifest_says_what_was_exported(model: Model, tmp_path: Path) -> None:
    table = export(model, tmp_path, what="projected", heads="L0H0", limit=4, command="headscope export")
    manifest = read_manifest(tmp_path / "heads.parquet")
    assert manifest["kind"] == "export"
    assert manifest["what"] == "projected"
    assert manifest["documents_read"] == 4
    assert manifest["documents_skipped"] == {"empty": 1}
    assert (manifest["texts"], manifest["tokens"]) == (3, len(table))
    assert manifest["weight_hash"] == model.weight_hash
    assert manifest["command"] == "headscope export"
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(StudyError, match="not a file that headscope exported"):
        read_manifest(tmp_path / "other.parquet")


def test_all_windows_of_a_document(model: Model, tmp_path: Path) -> None:
    table = export(model, tmp_path, ["a b c d e f g h i j k l m n o p q r"], length=8, windows="all", heads="L0H0")
    assert table["window"].unique().tolist() == [0, 1, 2]
    assert table.groupby("window")["position"].max().tolist() == [7, 7, 7]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"what": "weights"}, StudyError, "what is 'weights': choose one of outputs, projected, attention"),
        ({"dtype": "int8"}, StudyError, "dtype is 'int8'"),
        ({"limit": 0}, StudyError, "limit is 0"),
        ({"heads": []}, StudyError, "no heads are selected"),
        ({"heads": "L7H0"}, SelectionError, "layer 7"),
        ({"heads": "L0H0", "layers": "1"}, StudyError, "none of those named is in the layers"),
        ({"batch_size": 0}, StudyError, "batch size is 0"),
        ({"length": 100}, StudyError, "positions for 48 tokens"),
    ],
)
def test_wrong_options_are_named_and_leave_nothing(
    model: Model, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export(model, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_are_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    path.write_bytes(b"mine")
    with pytest.raises(StudyError, match="is there already"):
        headscope.export(model, TEXTS, path, length=16)
    assert path.read_bytes() == b"mine"
    with pytest.raises(StudyError, match="there is no folder"):
        headscope.export(model, TEXTS, tmp_path / "nowhere" / "heads.parquet", length=16)
    with pytest.raises(StudyError, match="a folder"):
        headscope.export(model, TEXTS, tmp_path, length=16)


def test_no_texts_leave_no_file(model: Model, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no text to run: 2 documents read, 2 empty"):
        export(model, tmp_path, ["", " "])
    assert list(tmp_path.iterdir()) == []


def test_an_error_or_an_interrupt_leaves_the_old_file(model: Model, tmp_path: Path) -> None:
    export(model, tmp_path, heads="L0H0")
    before = (tmp_path / "heads.parquet").read_bytes()

    def read_and_fail() -> Any:
        yield TEXTS[0]
        yield TEXTS[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path, read_and_fail(), batch_size=1)
    assert (tmp_path / "heads.parquet").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_numbers_that_are_too_large_for_float16_are_named(tmp_path: Path) -> None:
    network = tiny.network("bert")
    with torch.no_grad():
        network.encoder.layer[1].attention.self.value.weight.mul_(1e6)
    with pytest.raises(StudyError, match=r"L1H0 writes numbers up to .* float16 holds no more"):
        export(load(network, tiny.tokenizer()), tmp_path, dtype="float16")
    with torch.no_grad():
        network.encoder.layer[1].attention.self.value.weight.mul_(1e32)  # their sums overflow
    with pytest.raises(ModelError, match=r"head L1H\d are not finite"):
        export(load(network, tiny.tokenizer()), tmp_path)


def test_unverified_captures_are_refused(tmp_path: Path) -> None:
    model = tiny.model("nystromformer", num_landmarks=24, segment_means_seq_len=24, conv_kernel_size=3)
    with pytest.raises(ModelError, match="not verified"):
        export(model, tmp_path)
    export(model, tmp_path, allow_unverified=True)
    assert read_manifest(tmp_path / "heads.parquet")["verified"] == 0


@pytest.mark.parametrize("kind", ["squeezebert", "ibert"])
def test_projections_that_are_no_plain_linear_maps_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="export outputs instead of projected"):
        export(tiny.model(kind), tmp_path, what="projected")
    assert list(tmp_path.iterdir()) == []
