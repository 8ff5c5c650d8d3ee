"""Studies and readings by each similarity: what they depend on, what they refuse, and the spread of outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope.errors import ModelError, StudyError
from headscope.model.model import Model
from headscope.similarity import compute_similarity, list_pairs, mark_high
from headscope.studies.result import Study
from tests.helpers import tiny
from tests.helpers.architectures import watched
from tests.helpers.study_equality import assert_same_sums
from tests.helpers.synthetic import make_random_study

TEXTS = [
    "the cat sat on a mat. the cat left, and the mat stayed.",
    "a mat is on the cat.",
    "the cat, a mat. the owl saw a fox, and the fox saw the owl.",
    "a dog ran. it ran to the cat, and the cat ran.",
]
VARIANTS = ("dot", "centered", "projected", "projected-centered")


def study_tiny(model: Model, similarity: str = "dot", **options: Any) -> Study:
    changed: Any = {"similarity": similarity, **options}
    return headscope.study(model, TEXTS, length=24, **changed)


def reparametrize(network: Any, seed: int) -> None:
    """Change values by a random matrix of each head, and take it back in the output projection."""
    random = np.random.default_rng(seed)
    heads = network.config.num_attention_heads
    for layer in network.encoder.layer:
        value, dense = layer.attention.self.value, layer.attention.output.dense
        width = len(value.weight) // heads
        with torch.no_grad():
            for head in range(heads):
                rows = slice(head * width, (head + 1) * width)
                rotation, _ = np.linalg.qr(random.normal(0, 1, (width, width)))
                matrix = torch.from_numpy(rotation * random.uniform(0.2, 3, width)).float()
                value.weight[rows] = matrix.T @ value.weight[rows]
                value.bias[rows] = matrix.T @ value.bias[rows]
                dense.weight[:, rows] = dense.weight[:, rows] @ torch.linalg.inv(matrix).T


@pytest.mark.parametrize("seed", range(3))
def test_projected_does_not_depend_on_how_values_are_written_and_dot_does(seed: int) -> None:
    network, changed = tiny.network("bert", seed=seed), tiny.network("bert", seed=seed)
    reparametrize(changed, seed)
    inputs = torch.tensor([[2, 9, 12, 14, 9, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(network(inputs)[0], changed(inputs)[0], rtol=1e-4, atol=1e-4)
    models = [headscope.load(which, tiny.tokenizer()) for which in (network, changed)]
    for similarity in VARIANTS:
        first, second = (study_tiny(model, similarity) for model in models)
        near = int(first.data["near_threshold"].sum()) + int(second.data["near_threshold"].sum())
        difference = sum(
            int(np.abs(first.data[name].values - second.data[name].values).sum())
            for name in ("pairs", "equal", "same", "location")
        )
        if similarity.startswith("projected"):
            assert difference <= 8 * near, similarity
            for name in ("effective_rank", "common_share"):
                np.testing.assert_allclose(first.data[name], second.data[name], rtol=1e-3, atol=1e-6)
        else:
            assert difference > 8 * near + 20, similarity


@pytest.mark.parametrize("similarity", VARIANTS)
def test_all_backends_give_the_same_study_and_the_choice_is_an_attribute(similarity: str) -> None:
    model = tiny.model("bert")
    studies = {kernel: study_tiny(model, similarity, kernel=kernel) for kernel in ("numba", "torch", "reference")}
    assert_same_sums(studies["numba"], studies["torch"])
    assert_same_sums(studies["numba"], studies["reference"])
    assert {study.manifest["similarity"] for study in studies.values()} == {similarity}
    note = "without the projection's bias" if similarity.startswith("projected") else ""
    assert studies["numba"].manifest["similarity_note"] == note
    assert studies["numba"].manifest["kernel_note"] == ""


@pytest.mark.parametrize("similarity", VARIANTS)
def test_a_reading_and_a_study_of_one_text_have_the_same_pairs(similarity: Any, tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    study = headscope.study(model, TEXTS[:1], length=24, similarity=similarity)
    reading = headscope.read(model, TEXTS[0], length=24, similarity=similarity)
    assert reading.manifest["similarity"] == similarity
    for layer in reading.layers:
        for head in reading.head_numbers:
            pairs = list_pairs(mark_high(compute_similarity(reading.output(layer, head))))
            difference = abs(len(pairs) - int(study.data["pairs"].sel(layer=layer, head=head)))
            assert difference <= int(study.data["near_threshold"].sel(layer=layer, head=head))
    reading.save(tmp_path / "reading.nc")
    assert headscope.open_reading(tmp_path / "reading.nc").manifest["similarity"] == similarity


def test_centering_is_of_each_window_without_its_padding() -> None:
    model = tiny.model("bert")
    together = study_tiny(model, "centered", batch_size=4)
    apart = study_tiny(model, "centered", batch_size=1)
    near = int(together.data["near_threshold"].sum()) + int(apart.data["near_threshold"].sum())
    difference = np.abs(together.data["pairs"].values - apart.data["pairs"].values).sum()
    assert difference <= 2 * near
    np.testing.assert_allclose(together.data["common_share"], 0, atol=1e-9)
    with_mean = study_tiny(model)
    assert float(with_mean.data["common_share"].min()) > 1e-6


class TestRefused:
    def test_another_value(self) -> None:
        with pytest.raises(StudyError, match="similarity is 'cosine': choose one of dot, centered, projected, projec"):
            study_tiny(tiny.model("bert"), "cosine")
        with pytest.raises(StudyError, match="similarity is 'cosine'"):
            headscope.read(tiny.model("bert"), TEXTS[0], similarity="cosine")  # type: ignore[arg-type]

    def test_a_model_without_a_known_projection(self, tmp_path: Path) -> None:
        model = watched("xlnet")
        with pytest.raises(ModelError, match="Choose the similarity dot or centered"):
            study_tiny(model, "projected", checkpoint_dir=tmp_path / "checkpoints")
        assert not (tmp_path / "checkpoints").exists()
        assert study_tiny(model, "centered").texts == len(TEXTS)

    def test_studies_of_different_similarities(self) -> None:
        first = make_random_study(1, corpus_hash=f"{1:032x}", similarity="centered")
        second = make_random_study(2, corpus_hash=f"{2:032x}")  # made before there was a choice
        with pytest.raises(StudyError, match="cannot be merged; they differ in similarity: centered here, dot there"):
            first.merge(second)
        with pytest.raises(StudyError, match=r"imilarity of outputs: centered .* with the same --similarity"):
            headscope.compare([first, second], ["a", "b"])
        third = make_random_study(1, corpus_hash=f"{1:032x}", similarity="dot")
        assert third.merge(second).texts == third.texts + second.texts

    def test_a_saved_reading_of_another_similarity(self, headscope_command: Any, tmp_path: Path) -> None:
        headscope.read(tiny.model("bert"), TEXTS[0], length=24, similarity="centered").save(tmp_path / "saved.nc")
        page = str(tmp_path / "page.html")
        result = headscope_command("read", str(tmp_path / "saved.nc"), "--similarity", "dot", "--output", page)
        assert result.code == 1
        assert "holds outputs for the similarity centered: read the text again for dot" in result.err
        assert not Path(page).exists()


class TestSpread:
    """Effective rank and common share, from sums that are set by hand."""

    @staticmethod
    def make_study(tokens: int, sums: list[float], products: list[list[float]]) -> Study:
        data = make_random_study(0, layers=1, heads=1).data
        data["output_tokens"] = ((), np.int64(tokens))
        data["output_sums"] = (("layer", "head", "width"), np.array(sums).reshape(1, 1, 4))
        data["output_products"] = (("layer", "head", "width", "other_width"), np.array(products).reshape(1, 1, 4, 4))
        from headscope.studies.labels import add_derived_variables

        return Study(add_derived_variables(data))

    @pytest.mark.parametrize(
        ("sums", "squares", "rank", "share"),
        [
            ([0, 0, 0, 0], [10, 10, 10, 10], 4.0, 0.0),  # equally much in four directions
            ([0, 0, 0, 0], [10, 10, 0, 0], 2.0, 0.0),
            ([0, 0, 0, 0], [30, 10, 0, 0], np.exp(-0.75 * np.log(0.75) - 0.25 * np.log(0.25)), 0.0),
            ([20, 0, 0, 0], [40, 10, 0, 0], 1.0, 40 / 50),  # the first direction is the same for all tokens
            ([10, 0, 0, 0], [10, 0, 0, 0], np.nan, 1.0),  # all outputs are equal
            ([0, 0, 0, 0], [0, 0, 0, 0], np.nan, np.nan),  # nothing is written
        ],
    )
    def test_by_hand(self, sums: list[float], squares: list[float], rank: float, share: float) -> None:
        study = self.make_study(10, sums, np.diag(squares).tolist())
        np.testing.assert_allclose(study.data["effective_rank"].values, [[rank]])
        np.testing.assert_allclose(study.data["common_share"].values, [[share]])
        table = study.heads()
        np.testing.assert_allclose(table[["effective_rank", "common_share"]].values, [[rank, share]])

    def test_they_are_of_all_tokens_of_the_texts(self) -> None:
        model = tiny.model("bert")
        study = study_tiny(model)
        outputs = [headscope.read(model, text, length=24).output(1, 2) for text in TEXTS]
        every = np.concatenate(outputs)
        eigenvalues = np.linalg.eigvalsh(np.cov(every.T, bias=True))
        shares = eigenvalues / eigenvalues.sum()
        at = {"layer": 1, "head": 2}
        rank, common = (float(study.data[name].sel(at)) for name in ("effective_rank", "common_share"))
        assert rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-4)
        assert common == pytest.approx((every.mean(0) ** 2).sum() / (every**2).sum(1).mean(), rel=1e-4)
        assert int(study.data["output_tokens"]) == len(every)

    def test_they_merge_and_older_studies_have_none(self) -> None:
        model = tiny.model("bert")
        whole = study_tiny(model)
        parts = [headscope.study(model, TEXTS[half], length=24) for half in (slice(2), slice(2, None))]
        merged = parts[0].merge(parts[1])
        np.testing.assert_allclose(merged.data["effective_rank"], whole.data["effective_rank"], rtol=1e-6)
        np.testing.assert_allclose(merged.data["common_share"], whole.data["common_share"], rtol=1e-6)
        names = [name for name in whole.data if str(name).startswith("output_")] + ["effective_rank", "common_share"]
        assert Study(whole.data.drop_vars(names)).heads()["effective_rank"].isna().all()
