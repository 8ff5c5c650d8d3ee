"""The benchmark of chemical reactions: its statistics are correct for reactions made by hand, without any weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headscope.readings.reading import Reading
from tests.helpers import tiny

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import reactions  # noqa: E402

TOKENS = ["[CLS]", "C", "O", ".", "C", "N", ">>", "C", "N", "[SEP]"]
"""CO.CN>>CN: reactant atoms at 1, 2, 4, 5, product atoms at 7, 8"""
REACTIONS = [f"{'C' * count}NCCCC.O>>{'C' * other}NCCCC" for count in range(4, 12) for other in range(4, 12)]


def test_atoms_are_told_from_bonds_and_special_tokens():
    atoms = {"c": "C", "[nH]": "N", "[C@@H]": "C", "Cl": "Cl", "[Na+]": "Na", "[13C]": "C", "[se]": "Se", "[H]": "H"}
    assert {token: reactions.find_element(token) for token in atoms} == atoms
    assert not any(map(reactions.find_element, ("[CLS]", "[SEP]", "=", "(", "1", "%12", ">>", ".", "~")))
    reactants, products = reactions.split_atoms(TOKENS)
    assert (reactants.tolist(), products.tolist()) == ([1, 2, 4, 5], [7, 8])


def test_only_atoms_without_a_choice_are_mapped_by_element():
    assert reactions.map_elements(TOKENS) == {8: 5}  # two carbons could be 7; nitrogen can only be 5
    assert reactions.map_elements(["[CLS]", "N", "C", ">>", "N", "N", "[SEP]"]) == {}


def test_atoms_are_mapped_by_surroundings_that_occur_once():
    side = "OCCCCNFCCCC"
    tokens = ["[CLS]", *side, ".", *"CCCCCCCCC", ">>", *side[1:], "[SEP]"]
    mapping = reactions.map_contexts(tokens)
    arrow = tokens.index(">>")
    assert {tokens[place] + tokens[mapping[place]] for place in mapping} == {"NN", "FF"}
    assert {place - arrow - 1: mapping[place] for place in mapping} == {4: 6, 5: 7}
    twice = ["[CLS]", *side, *side, ">>", *side, "[SEP]"]
    assert reactions.map_contexts(twice) == {}


def test_bonds_of_chains_branches_and_rings():
    tokens = reactions.SPLIT.findall("CC(=O)N1CC1.[Na+]~O>>C%12CC%12")
    atoms = [place for place, token in enumerate(tokens) if reactions.find_element(token)]
    number = {place: k for k, place in enumerate(atoms)}
    bonds = {(number[i], number[j]) for i, j in np.argwhere(reactions.find_bonds(tokens)) if i < j}
    assert bonds == {(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (3, 5), (8, 9), (9, 10), (8, 10)}


def test_a_map_worked_by_hand():
    """CCO>>CCO. Oxygen is sure; its neighbor counts 90 times as much for the neighbor; the last carbon is left."""
    tokens = ["[CLS]", *"CCO", ">>", *"CCO", "[SEP]"]
    attention = np.zeros((9, 9))
    attention[5, [1, 2]] = 0.4, 0.6
    attention[6, [1, 2]] = 0.25, 0.25
    attention[[1, 2], 6] = 0.25, 0.25  # the other direction is added
    attention[7, 3] = 0.1
    attention[7, 1] = 0.9  # another element does not count
    mapping, confidence = reactions.map_reaction(attention, tokens)
    assert mapping == [0, 1, 2]
    assert confidence == pytest.approx(90 / 91)
    assert reactions.map_reaction(np.zeros((9, 9)), tokens) == ([-1, -1, -1], 1.0)


def test_statistics_of_one_reaction_worked_by_hand():
    """The first head writes a vector for each element and looks at the right atoms; the second sees all alike."""
    count = len(TOKENS)
    elements = sorted({reactions.find_element(token) for token in TOKENS})
    vectors = np.eye(len(elements))[[elements.index(reactions.find_element(token)) for token in TOKENS]]
    vectors[[0, 3, 6, 9]] = 0  # none but atoms write
    outputs = np.stack([vectors, np.ones_like(vectors)], axis=1)[None]
    attention = np.full((1, 2, count, count), 1 / count)
    attention[0, 0, [7, 8]] = 0
    attention[0, 0, 7, [1, 4, 2]] = 0.25, 0.25, 0.5
    attention[0, 0, 8, [5, 0]] = 0.75, 0.25
    sums = reactions.BlockSums()
    reactions.add_reaction(sums, 3, Reading.from_arrays(TOKENS, outputs, attention))
    expected = {
        # C: 2 of 10 tokens, N: 1 of 10.
        "same_element": ([(0.5 + 0.75) / 2, 0.15], [0.15, 0.15]),
        "element_attention": ([1, 0], [0.25, 0.25]),
        "element_similarity": ([1, 0], [0.25, 0.25]),
        "high_same_element": ([1, 3 / 8], [0, 0]),
        "all_same_element": ([3 / 8, 3 / 8], [0, 0]),
    }
    for name, (values, chance) in expected.items():
        summary = sums.summarize(name)
        np.testing.assert_allclose(summary["value"], [values], atol=1e-6, err_msg=name)
        np.testing.assert_allclose(summary["chance"], [chance], atol=1e-6, err_msg=name)
        assert np.isnan(summary["error"]).all()  # one block of documents has no error


def test_right_pairs_that_are_high_are_held_against_pairs_of_their_element():
    side = [*"CCCCNCCCC"]
    tokens = ["[CLS]", *side, ">>", *side, "[SEP]"]
    assert reactions.map_contexts(tokens) == {15: 5}
    outputs = np.full((1, len(tokens), 1, 2), 0.0)
    outputs[0, [5, 15], 0, 0] = 1
    sums = reactions.BlockSums()
    even = np.full((1, 1, len(tokens), len(tokens)), 1 / len(tokens))
    reactions.add_reaction(sums, 0, Reading.from_arrays(tokens, outputs, even))
    summary = sums.summarize("high_mapped")
    assert summary["value"] == [[1.0]]
    assert summary["chance"] == [[round(1 / (8 * 8 + 1), 6)]]


def test_errors_are_those_of_leaving_out_documents():
    sums = reactions.BlockSums()
    random = np.random.default_rng(0)
    numerators, denominators = random.integers(1, 9, 12), random.integers(9, 20, 12)
    for block, (numerator, denominator) in enumerate(zip(numerators, denominators, strict=True)):
        sums.add(block, "rate", [[numerator]], denominator, denominator / 2)
    left_out = [(sum(numerators) - a) / (sum(denominators) - b) for a, b in zip(numerators, denominators, strict=True)]
    summary = sums.summarize("rate")
    assert summary["value"] == [[pytest.approx(sum(numerators) / sum(denominators), abs=1e-6)]]
    assert summary["error"] == [[pytest.approx(np.sqrt(np.var(left_out) * 11), abs=1e-6)]]
    assert summary["chance"] == [[0.5]]


def test_divergence_worked_by_hand():
    first = np.array([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])
    second = np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    # Third row: middle ¾ ¼; ½(log₂ 4⁄3 + ½ log₂ 2⁄3 + ½ log₂ 2) = 0.311.
    np.testing.assert_allclose(reactions.compute_divergence(first, second), [1, 0, 0.311278], atol=1e-6)


def test_both_commands_run_on_random_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reactions, "LENGTH", 48)
    monkeypatch.setattr(reactions, "PUBLISHED", reactions.PUBLISHED[3:])
    ids = {token: k for k, token in enumerate((*tiny.SPECIAL, "C", "O", "N", ".", ">>", "1", "c", "[Na+]", "~"))}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(reactions.SPLIT.pattern), behavior="isolated")
    backend.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    roles = {f"{name[1:-1].lower()}_token": name for name in tiny.SPECIAL}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
    shape = {"num_hidden_layers": 11, "num_attention_heads": 6, "hidden_size": 12, "max_position_embeddings": 384}
    for seed, name in enumerate(("rxnmapper", "rxnfp-pretrained", "rxnfp-finetuned")):
        tiny.network("bert", seed=seed, **shape).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    texts = tmp_path / "reactions.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in REACTIONS), encoding="utf-8")
    for command in ("rxnmapper", "rxnfp"):
        output = tmp_path / f"{command}.json"
        reactions.main(
            [command, "--models", str(tmp_path), "--reactions", str(texts), "--limit", "50", "--json", str(output)]
        )
        result = json.loads(output.read_text(encoding="utf-8"))
        assert (result["kind"], result["reactions"]) == (command, 50)
        if command == "rxnmapper":
            assert (result["tokenized"], result["unknown"]) == (50, 0)
            assert np.shape(result["statistics"]["same_element"]["error"]) == (11, 6)
            assert np.min(result["statistics"]["same_element"]["error"]) > 0
            tables = reactions.RXNMAPPER_SECTIONS
        else:
            assert result["paired"]
            assert any(result["rates"]["mean_distance"]["significant"])  # two random models
            tables = reactions.RXNFP_SECTIONS
        assert all(len(section([result]).splitlines()) > 3 for section in tables.values())
    assert "L10H5" in capsys.readouterr().out
