"""The check of Fig. 9: planted pairs are found, planted differences reported, and other models and texts refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import headscope
from headscope import cli
from headscope.cli.display.models import show_check
from headscope.corpus.formats import load_paper_examples
from headscope.errors import ModelError, ReadingError
from headscope.model.model import Model
from headscope.readings import paper_check
from headscope.readings.paper_alternatives import THETAS, Choice, Outcome, Published, count_choices
from headscope.readings.paper_check import compare, load_figure_9
from headscope.readings.reading import Reading
from tests.helpers import tiny

FIGURE = load_figure_9()
N = len(FIGURE.tokens)
WIDTH = 24
"""of a head: more than one dimension for each pair (18 in head 7)"""
SPECIAL = np.array([token in ("[CLS]", "[SEP]") for token in FIGURE.tokens])


def make_outputs(pairs: Iterable[tuple[int, int]], n: int = N, width: int = WIDTH) -> np.ndarray[Any, Any]:
    """Return outputs with C_ij = 1 for these pairs and 0 for others: each pair has a dimension, 1 in both tokens."""
    outputs = np.zeros((n, width))
    for dimension, (i, j) in enumerate(pairs):
        outputs[i, dimension] = outputs[j, dimension] = 1.0
    return outputs


def make_noise(layers: int = 12, heads: int = 12) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(layers, N, heads, WIDTH))


def plant_pairs(*, layer: int = 11, shift: int = 0) -> np.ndarray[Any, Any]:
    """Return noise, with the published pairs in the published heads, or shifted to others."""
    outputs = make_noise()
    for head, pairs in FIGURE.pairs.items():
        outputs[layer, :, head + shift] = make_outputs(pairs)
    return outputs


def make_reading(outputs: np.ndarray[Any, Any]) -> Reading:
    return Reading.from_arrays(FIGURE.tokens, outputs, special=SPECIAL)


# -- the printed figure -----------------------------------------------------------------------------------------------


def test_the_figure_is_the_printed_one():
    example = load_paper_examples()["airport-policing"]
    assert example["theta"] == 0.3 == Choice().theta  # the check assumes that it is METHOD's
    assert list(FIGURE.pairs) == [5, 7, 8]
    assert len(FIGURE) == 35
    assert (FIGURE.layer, N) == (11, 128)
    assert all(0 <= i < j < N for pairs in FIGURE.pairs.values() for i, j in pairs)
    assert THETAS[29] == 0.3


# -- planted ----------------------------------------------------------------------------------------------------------


def test_planted_pairs_are_all_matched():
    result = compare(make_reading(plant_pairs()))
    assert result.agrees
    assert result.outcome == Outcome(35, 0, 0)
    assert [check.outcome for check in result.heads] == [Outcome(9, 0, 0), Outcome(18, 0, 0), Outcome(8, 0, 0)]
    first = result.heads[0].matched[0]
    assert (first.token_i, first.token_j, first.index_i, first.index_j, first.relative) == ("post", "war", 20, 22, 1.0)
    assert [(check.closest.layer, check.closest.head) for check in result.heads if check.closest] == [
        (11, 5),
        (11, 7),
        (11, 8),
    ]
    assert result.better == ()
    assert "all 35 published pairs" in result.verdict


def test_a_small_case_counted_by_hand():
    output = np.array([[2.0, 1.0, 0.0], [2.0, -1.0, 1.0], [1.0, 0.0, -1.0], [0.0, 1.2, 1.2]])
    # C: 01 → 3, 02 → 2, 03 → 1.2, 12 → 1, 13 → 0, 23 → −1.2. Above 0.3 × 3: the first four.
    figure = Published("a b c d", ("a", "b", "c", "d"), 0, {1: ((0, 1), (1, 3), (2, 3), (0, 3))})
    outputs = np.stack([np.zeros((4, 3)), output], axis=1)[None]
    result = compare(Reading.from_arrays(figure.tokens, outputs), figure)
    (check,) = result.heads
    assert [(pair.index_i, pair.index_j) for pair in check.matched] == [(0, 1), (0, 3)]
    assert [(pair.token_i, pair.token_j) for pair in check.missing] == [("b", "d"), ("c", "d")]
    assert [(pair.index_i, pair.index_j) for pair in check.extra] == [(0, 2), (1, 2)]
    assert [pair.relative for pair in check.missing] == pytest.approx([0, -0.4])
    assert [pair.relative for pair in check.extra] == pytest.approx([2 / 3, 1 / 3])
    assert result.outcome == Outcome(2, 2, 2)
    assert result.outcome.jaccard == pytest.approx(2 / 6)
    # There is no layer −1, so layers are not numbered from 1: 4 × 2 × 2 × 2 combinations, 99 θ, less METHOD's own.
    assert result.choices_tried == 4 * 2 * 2 * 2 * 99 - 1
    # θ from 0.34 to 0.39 drops 12, and nothing else.
    theta_alone = next(alternative for alternative in result.better if alternative.choice.changed == ("theta",))
    assert theta_alone.outcome == Outcome(2, 2, 1)
    assert (theta_alone.choice.theta, theta_alone.theta_from, theta_alone.theta_to) == (0.34, 0.34, 0.39)


def test_heads_numbered_from_1():
    result = compare(make_reading(plant_pairs(shift=-1)))
    assert not result.agrees
    assert result.outcome.matched < 20
    best = result.better[0]
    assert best.choice == Choice(heads_from=1)
    assert best.outcome == Outcome(35, 0, 0)
    assert "With heads numbered from 1 the pairs are exactly the published ones" in result.verdict
    # Nothing is gained by changing more: no choice that also numbers the heads from 1 is listed.
    assert [alternative.choice.heads_from for alternative in result.better] == [1] + [0] * (len(result.better) - 1)
    assert [(check.closest.layer, check.closest.head) for check in result.heads if check.closest] == [
        (11, 4),
        (11, 6),
        (11, 7),
    ]
    assert "head 5 is L11H4, head 7 is L11H6 and head 8 is L11H7" in result.verdict


def test_layers_numbered_from_1():
    best = compare(make_reading(plant_pairs(layer=10))).better[0]
    assert best.choice == Choice(layers_from=1)
    assert best.outcome.jaccard == 1


def test_permuted_heads_are_found():
    outputs = plant_pairs()
    outputs[[11, 3], :, [8, 2]] = outputs[[3, 11], :, [2, 8]]
    result = compare(make_reading(outputs))
    closest = result.heads[2].closest
    assert closest is not None
    assert (closest.layer, closest.head, closest.outcome) == (3, 2, Outcome(8, 0, 0))
    assert result.heads[2].has_moved
    assert not result.heads[0].has_moved
    assert "head 8 is L3H2" in result.verdict


def test_another_theta():
    """A strong pair beside the published ones keeps them below 0.3 of the maximum, and above 0.2 of it."""
    outputs = plant_pairs()
    for head in FIGURE.pairs:
        outputs[11, [100, 101], head, -1] = 2.0  # C = 4, the published pairs' 1: a quarter of it
    result = compare(make_reading(outputs))
    assert result.outcome == Outcome(0, 35, 3)
    assert {round(pair.relative or 0, 6) for check in result.heads for pair in check.missing} == {0.25}
    best = result.better[0]
    assert best.choice == Choice(theta=0.24)
    assert (best.theta_from, best.theta_to) == (0.01, 0.24)
    assert best.outcome == Outcome(35, 0, 3)
    assert "With θ = 0.24, 35 are found, 0 missing, 3 others" in result.verdict


@pytest.mark.parametrize(
    ("strength", "special", "counted"),
    [
        # [CLS] and [SEP] alike four times as much as any pair: they hide all pairs unless they leave the maximum.
        (2.0, "left out", Outcome(35, 0, 0)),
        # As much as any pair: they are only one more pair, and it is enough not to list it.
        (1.0, "not listed", Outcome(35, 0, 0)),
    ],
)
def test_special_tokens(strength: float, special: str, counted: Outcome):
    outputs = plant_pairs()
    for head in FIGURE.pairs:
        outputs[11, [0, 127], head, -1] = strength
    result = compare(make_reading(outputs))
    assert {(pair.index_i, pair.index_j) for check in result.heads for pair in check.extra} == {(0, 127)}
    assert (result.better[0].choice, result.better[0].outcome) == (Choice(special=special), counted)  # type: ignore[arg-type]


def test_special_tokens_out_of_the_maximum_alone():
    """Where the published pairs include special tokens, these may have been left out of the maximum and no more."""
    figure = Published("", ("[CLS]", "a", "b", "[SEP]"), 0, {0: ((0, 3), (1, 2))})
    output = make_outputs([(0, 3), (1, 2)], 4)
    output[[0, 3]] *= 2  # [CLS]–[SEP] 4, a–b 1
    result = compare(
        Reading.from_arrays(figure.tokens, output[None, :, None], special=[True, False, False, True]), figure
    )
    assert result.outcome == Outcome(1, 1, 0)
    exact = {alternative.choice.special for alternative in result.better if alternative.choice.changed == ("special",)}
    assert exact == {"not in the maximum"}


def test_cosine():
    """Outputs of any length: only lengths differ from the planted case."""
    outputs = plant_pairs()
    random = np.random.default_rng(1)
    for head, pairs in FIGURE.pairs.items():
        # Disjoint pairs, so that their cosine is 1: a token in many pairs points nowhere near any other.
        disjoint = make_outputs([])
        for dimension, (i, j) in enumerate(pairs):
            if not disjoint[i].any() and not disjoint[j].any():
                disjoint[i, dimension] = disjoint[j, dimension] = 1.0
        outputs[11, :, head] = disjoint * random.uniform(0.05, 2.0, size=(N, 1))
    result = compare(make_reading(outputs))
    best = result.better[0]
    assert best.choice == Choice(unit_length=True)
    assert best.outcome.extra == 0
    assert best.outcome.matched > result.outcome.matched


def test_diagonal_in_the_maximum():
    """A long vector that is similar to no other matters only with the diagonal, and then hides the weaker pair."""
    figure = Published("", ("a", "b", "c", "d", "e"), 0, {0: ((0, 1),)})
    output = make_outputs([(0, 1)], 5)
    output[[2, 3], -1] = 0.6  # 0.36 of the largest element beside the diagonal
    output[4, -2] = np.sqrt(2.0)  # half of which the published pair is, and the other 0.18
    result = compare(Reading.from_arrays(figure.tokens, output[None, :, None]), figure)
    assert result.outcome == Outcome(1, 0, 1)
    exact = [alternative.choice for alternative in result.better if alternative.outcome.jaccard == 1]
    assert exact == [Choice(diagonal=True), Choice(theta=0.36)]


def test_choices_agree_with_their_definition():
    """The counts for all θ at once equal those of plain loops, for every combination, on noise."""
    outputs = make_noise()[10:]
    figure = Published("", FIGURE.tokens, 1, FIGURE.pairs)
    all_counts = count_choices(make_reading(outputs), figure)
    assert len({counts.choice for counts in all_counts}) == 64
    for counts in all_counts[::7]:
        for index in (0, 29, 60):
            matched = extra = 0
            for head, pairs in figure.pairs.items():
                vectors = outputs[1 - counts.choice.layers_from, :, head - counts.choice.heads_from]
                if counts.choice.unit_length:
                    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
                matrix = vectors @ vectors.T
                not_in_maximum = {0, 127} if counts.choice.special in ("left out", "not in the maximum") else set()
                unlisted = {0, 127} if counts.choice.special in ("left out", "not listed") else set()
                largest = max(
                    matrix[i, j]
                    for i in set(range(N)) - not_in_maximum
                    for j in set(range(N)) - not_in_maximum
                    if i != j or counts.choice.diagonal
                )
                for i in range(N):
                    for j in range(i + 1, N):
                        if matrix[i, j] > THETAS[index] * largest and not {i, j} & unlisted:
                            matched += (i, j) in pairs
                            extra += (i, j) not in pairs
            assert (counts.matched[index], counts.extra[index]) == (matched, extra), counts.choice


def test_a_model_that_is_not_the_papers():
    result = compare(make_reading(make_noise()))
    assert result.outcome.jaccard < 0.1
    assert "comes near the published pairs" in result.verdict
    assert "google-bert/bert-base-uncased" in result.verdict
    scores = [alternative.outcome.jaccard for alternative in result.better]
    assert scores == sorted(scores, reverse=True)
    assert all(score > result.outcome.jaccard for score in scores)
    assert len(result.select_nearest()) <= 5
    assert any(len(alternative.choice.changed) == 1 for alternative in result.select_nearest())


def test_heads_that_write_nothing(capsys: pytest.CaptureFixture[str]):
    result = compare(make_reading(np.zeros((12, N, 12, 2))))
    assert result.outcome == Outcome(0, 35, 0)
    assert result.heads[0].closest is None
    assert result.heads[0].missing[0].relative is None
    assert result.better == ()
    assert json.loads(paper_check.as_json(result))["heads"][0]["closest"] is None
    show_check(result)
    assert "None of 6,335 other choices matches better" in capsys.readouterr().out


# -- not comparable ---------------------------------------------------------------------------------------------------


def test_other_tokens_are_not_compared():
    tokens = list(FIGURE.tokens)
    tokens[37] = "##bula"
    with pytest.raises(ReadingError, match=r"token 37 is '##bula' where the paper prints '##bular'.*vocabulary of"):
        compare(Reading.from_arrays(tokens, plant_pairs()))
    with pytest.raises(ReadingError, match="127 tokens where the paper has 128"):
        compare(Reading.from_arrays(FIGURE.tokens[:-1], plant_pairs()[:, :-1]))


def test_the_uncased_vocabulary_gives_the_printed_tokens(minilm: Model):
    (encoding,) = minilm.tokens.encode(FIGURE.text, N, all_windows=False, offsets=False)
    paper_check._require_tokens("minilm", minilm.tokens.labels(encoding.ids), FIGURE)  # raises where they differ


def test_too_few_layers_or_heads(minilm: Model):
    with pytest.raises(
        ModelError, match=r"layers 0 to 5 with heads 0 to 11, and Fig. 9 shows heads 5, 7 and 8 of layer 11"
    ):
        paper_check.check(minilm)
    with pytest.raises(ModelError, match="layers 0 to 11 with heads 0 to 7"):
        compare(make_reading(plant_pairs()[:, :, :8]))


# -- a real model with planted weights --------------------------------------------------------------------------------


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the printed tokens only."""
    return tiny.tokenizer(dict.fromkeys(["[PAD]", "[UNK]", "[MASK]", *FIGURE.tokens]))


def make_bert(outputs: np.ndarray[Any, Any], positions: int = N) -> BertModel:
    """Return a BERT whose heads have these outputs (layer, position, head, width), whatever its tokens are.

    Embeddings depend on positions only, tokens attend to themselves only, and no layer changes the residual stream. So
    the input of each layer is x = scale · onehot(position) + offset, the onehot after a LayerNorm, and the values of a
    head can be any function of it.
    """
    layers, n, heads, width = outputs.shape
    hidden = heads * width
    network = BertModel(
        BertConfig(
            vocab_size=len(make_tokenizer()),
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4,
            max_position_embeddings=positions,
            attn_implementation="eager",
        )
    )
    onehot = torch.eye(max(n, positions), hidden, dtype=torch.float64)[:positions]
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        network.embeddings.position_embeddings.weight.copy_(onehot)
        normed = torch.nn.functional.layer_norm(onehot[:1], (hidden,), eps=network.config.layer_norm_eps)[0]
        scale, offset = float(normed[0] - normed[1]), float(normed[1])
        codes = torch.from_numpy(np.random.default_rng(2).normal(size=(hidden, width)))
        # Queries so far apart that attention maps are 0 and 1.
        queries = (40 * codes / codes.norm(dim=1, keepdim=True)).T.repeat(heads, 1)
        for layer in range(layers):
            attention = network.encoder.layer[layer].attention.self
            values = torch.zeros(hidden, hidden, dtype=torch.float64)
            values[:, :n] = torch.from_numpy(outputs[layer].reshape(n, hidden).T)
            for linear, matrix in ((attention.query, queries), (attention.key, queries), (attention.value, values)):
                linear.weight.copy_(matrix / scale)
                linear.bias.copy_(-(matrix / scale).sum(dim=1) * offset)
    return network.eval()


def save_model(folder: Path, outputs: np.ndarray[Any, Any]) -> str:
    make_bert(outputs).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model that reproduces Fig. 9."""
    return save_model(tmp_path_factory.mktemp("exact"), plant_pairs())


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model that reproduces it in heads with numbers lower by one."""
    return save_model(tmp_path_factory.mktemp("shifted"), plant_pairs(shift=-1))


class Ran(SimpleNamespace):
    code: int
    out: str
    err: str


@pytest.fixture
def headscope_paper(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `headscope paper …` in this process, in an empty folder, without a hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["headscope", "paper", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return Ran(code=exit_info.value.code or 0, out=captured.out, err=captured.err)

    return run


def test_a_planted_model_writes_what_was_planted():
    outputs = plant_pairs()
    model = headscope.load(make_bert(outputs), make_tokenizer())
    model_reading = headscope.read(model, FIGURE.text)
    assert np.abs(model_reading.outputs.values - outputs).max() < 1e-4
    assert paper_check.check(model).agrees


def test_exit_0_where_all_is_as_published(headscope_paper, exact: str):
    ran = headscope_paper("--model", exact)
    assert ran.code == 0, ran.err
    assert "Fig. 9 is reproduced: all 35 published pairs are found" in " ".join(ran.out.split())
    assert "Missing" not in ran.out
    assert "Extra" not in ran.out
    assert "match better" not in ran.out
    assert ran.err == ""


def test_exit_3_where_it_differs(headscope_paper, shifted: str):
    ran = headscope_paper("--model", shifted)
    assert ran.code == 3, ran.err
    shown = " ".join(ran.out.split())
    for words in (
        "Missing: published",
        "Extra: high here",
        "heads numbered from 1",
        "L11H4: 9 of 9, 0 extra",
        "is not reproduced",
    ):
        assert words in shown
    assert "war" in shown
    assert ran.err == ""


def test_json(headscope_paper, shifted: str):
    ran = headscope_paper("--model", shifted, "--json")
    assert ran.code == 3
    read = json.loads(ran.out)
    assert (read["agrees"], read["published"], read["layer"], read["theta"]) == (False, 35, 11, 0.3)
    assert read["matched"] + read["missing"] == 35
    assert [head["head"] for head in read["heads"]] == ["L11H5", "L11H7", "L11H8"]
    for head in read["heads"]:
        for kind in ("matched", "missing", "extra"):
            assert len(head[kind]) == head["counts"][kind]
        assert all(pair["relative"] <= 0.3 for pair in head["missing"])
        assert all(pair["relative"] > 0.3 for pair in head["extra"])
    assert sum(head["counts"]["extra"] for head in read["heads"]) == read["extra"]
    assert read["better"][0]["changes"] == ["heads numbered from 1"]
    assert read["better"][0]["jaccard"] == 1
    assert read["manifest"]["model"] == shifted
    assert len(read["manifest"]["weight_hash"]) == 64
    assert read["manifest"]["command"].startswith("headscope paper --model")


def test_a_model_of_other_size(headscope_paper):
    ran = headscope_paper("--model", "minilm")
    assert ran.code == 1
    assert "layers 0 to 5" in ran.err
    assert "layer 11" in ran.err
    assert ran.out == ""


def test_a_model_of_few_positions():
    with pytest.raises(ModelError, match=r"positions for 40 tokens, and the text of Fig\. 9 has 128"):
        paper_check.check(headscope.load(make_bert(make_noise()[:, :40, :, :4], positions=40), make_tokenizer()))


@pytest.mark.parametrize("name", [None, "./bert-base-uncased", "google-bert/bert-base-uncased"])
def test_a_model_that_is_not_there(headscope_paper, name: str | None):
    ran = headscope_paper(*(["--model", name] if name else []))
    assert ran.code == 1
    reason = "no such folder" if name == "./bert-base-uncased" else "google-bert/bert-base-uncased: cannot be loaded"
    assert reason in ran.err
    assert "hf download google-bert/bert-base-uncased config.json model.safetensors" in ran.err
    assert "headscope paper --model ./bert-base-uncased" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--device", "abacus"], 1, "abacus"),
        (["--dtype", "float7"], 2, "float7"),
        (["--model", "hollow"], 1, "no config.json"),
        (["--theta", "0.2"], 2, "--theta"),
    ],
)
def test_other_errors_say_nothing_of_downloads(
    headscope_paper, tmp_path: Path, arguments: list[str], code: int, words: str
):
    (tmp_path / "hollow").mkdir()
    ran = headscope_paper(*arguments)
    assert ran.code == code
    assert words in ran.err
    assert "hf download" not in ran.err


def test_the_help_names_the_exit_codes(headscope_paper):
    ran = headscope_paper("--help")
    assert ran.code == 0
    assert "3 the check was made and differs" in " ".join(ran.out.replace("│", " ").split())


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_counts_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    result = compare(make_reading(make_noise()))
    show_check(result)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert all(name in shown for name in ("published", "matched", "missing", "extra", "Jaccard"))  # no column is cut
    assert "…" in shown  # thousands of extra pairs are not listed
    assert f"{len(result.heads[1].extra) - 10:,} more" in shown
    assert shown.count("\n") < 120
    for check in result.heads:
        assert f"{check.outcome.extra:,}" in shown
