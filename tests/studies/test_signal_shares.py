"""Signal shares of heads: worked out by hand, planted in synthetic heads, and zero where there is no signal."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus.windows import BLOCKS, Batch, Window, WindowSpec
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies.result import Study
from headscope.tally.quantities import CONTRASTS, MAX_PLACES, Shape
from headscope.tally.reference import compute_contrasts
from headscope.tally.signal_shares import PairWeights
from headscope.tally.tally import Tally, TallySettings
from tests.helpers.synthetic import CLS, SEP, TALLIERS, make_random_study, study_of, tally, window

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from measuring.planting import plant_head, study_heads

MIXTURE = {"equal": 0.2, "same": 0.2, "near": 0.2}


@pytest.fixture(scope="module")
def windows(minilm: Model) -> list[Window]:
    cut = WindowSpec(windows="all", min_tokens=60)
    documents = [minilm.windows(document, cut) for document in headscope.documents()]
    return [text for texts in documents if not isinstance(texts, str) for text in texts][:100]


def make_study(windows: list[Window], *heads: dict[str, float], **how: float | bool) -> Study:
    return study_heads(windows, [plant_head(windows, shares, k, **how) for k, shares in enumerate(heads)])  # type: ignore[arg-type]


def assert_close(study: Study, expected: list[float], *, relative: float = 0.1) -> None:
    """Assert that signal shares are within four errors of the expected ones, and within a fraction of them."""
    shares = study.signal_shares()
    value, error = shares["signal_share"].values[0], shares["signal_share_error"].values[0]
    np.testing.assert_array_less(np.abs(value - expected), 4 * error + 1e-6)
    np.testing.assert_array_less(np.abs(value - expected), relative * np.array(expected) + 0.02)


class TestByHand:
    """One sentence, `[CLS] a b a c [SEP]`, for which a head outputs 9, 1, 1, 3, 5, −7. Special tokens take no part.

    ½|oᵢ−oⱼ|² of the pairs 01 02 03 12 13 23 is 0 2 8 2 8 2. The weights of a contrast are its marks without the effects
    of tokens, aᵢ = (rᵢ − Σr/6)/2, where rᵢ is the number of marked pairs of token i:

        adjacent    marks 01 12 23, r = 1 2 2 1, a = 0 ½ ½ 0; weights ½ −½ 0 0 −½ ½
        second      marks 02 13, r = 1 1 1 1, a = 1/6; weights 2/3 for 02 and 13, −1/3 for the others
        equal       marks 02, r = 1 0 1 0, a = 1/3 −1/6 1/3 −1/6; weights 1/3 for 02 and 13, −1/6 for the others

    Over all four tokens, distances and tokens leave nothing of six pairs to equal tokens and to sentences.
    """

    text = window([CLS, 3, 6, 3, 7, SEP])

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_contrasts(self, kernel: str):
        counting = TallySettings(Shape(1, 1, 6, width=1), 0.3, 0.3, 1.0)
        output = torch.tensor([9.0, 1, 1, 3, 5, -7], dtype=torch.float64).view(1, 6, 1, 1)
        sums = tally(kernel, counting, [self.text], [output], [torch.full((1, 1, 6, 6), 1 / 6).double()])
        expected = [22, 2, 0, 0, 0 - 1 - 4 + 1, 2 / 3 * 10 - 12 / 3, 10 / 3 - 12 / 6]
        np.testing.assert_allclose(sums["contrast_sums"].sum(0)[0, 0], expected, atol=1e-12)
        products = sums["contrast_products"].sum(0)
        np.testing.assert_allclose(products[:2], [[6, 1, 1, 6, 3, 2, 1], [1, 1, 1, 1, 0, 1, 1]], atol=1e-12)
        np.testing.assert_allclose(products[4:, 4:], [[1, -1, -0.5], [-1, 4 / 3, 2 / 3], [-0.5, 2 / 3, 1 / 3]])
        assert np.count_nonzero(sums["contrast_products"].sum((1, 2))) == 1
        np.testing.assert_allclose(sums["pair_weights"].sum(0)[4, 1], [0, 0, 0.5, -0.5, 0, 0], atol=1e-12)
        assert sums["position_counts"].sum(0).tolist() == [0, 1, 1, 1, 1, 0]
        assert sums["position_sums"].sum(0)[0, 0, :, 0].tolist() == [0, 1, 1, 3, 5, 0]

    def test_shares(self):
        """Unrelated tokens are 10 apart, and those that are repeated 20. Equal ones are 3 nearer, those of a sentence
        2, and adjacent ones 1, second ones ½, so that the neighbourhood adds 2·1 − ½."""
        study = study_of(make_sums())
        shares = study.signal_shares()
        assert shares["relation_share"].values[0, 0].tolist() == pytest.approx([0.15, 0.2, 0.15])
        assert float(shares["signal_share"][0, 0]) == pytest.approx(0.5)
        assert float(shares["position_share"][0, 0]) == 0
        assert float(shares["signal_share_error"][0, 0]) == pytest.approx(0, abs=1e-9)
        assert float(study.signal_to_noise()[0, 0]) == pytest.approx(0, abs=1e-9)

    def test_position_is_apart(self):
        """Means of 0 and 4 at two positions, whose pairs are half of all: they are 8 apart there, so 4 on average."""
        sums = make_sums()
        sums["pair_weights"][:, 0, 0, 1] = sums["pair_weights"][:, 0, 1, 0] = 50
        sums["position_sums"][:, 0, 0, 1] = 4 * sums["position_counts"][0, 0]
        sums["contrast_sums"][:, 0, 0, 0] += 50 * 8
        shares = study_of(sums).signal_shares()
        assert float(shares["position_share"][0, 0]) == pytest.approx(4 / 14)
        assert float(shares["signal_share"][0, 0]) == pytest.approx(0.5)


def make_sums(blocks: int = BLOCKS) -> Tally:
    """Return the sums of 100 pairs in each of some blocks: 10 equal, 20 in a sentence, 5 adjacent, 4 second.

    Of the equal pairs, which are 20 apart when unrelated, 2 are in a sentence.
    """
    sums = Tally.zeros(Shape(1, 1, 2, width=1))
    used = slice(blocks)
    sums["texts"][used] = sums["sample_texts"][used] = 1
    sums["contrast_products"][used] = np.diag([100.0, 10, 8, 15, 4, 3, 2])
    sums["contrast_products"][used, 0] = [100, 10, 10, 20, 5, 4, 2]
    sums["contrast_products"][used, 1] = [10, 10, 10, 2, 0, 0, 2]
    sums["contrast_sums"][used, 0, 0] = [1000 - 30 - 40 - 5 - 2, 200 - 30 - 4, -24, -30, -4, -1.5, 0]
    sums["position_counts"][:] = 10
    return sums


class TestWeights:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(st.integers(1, 8), min_size=2, max_size=14), min_size=1, max_size=4))
    def test_equal_those_of_least_squares(self, texts: list[list[int]]):
        windows = [window(ids) for ids in texts]
        weights = PairWeights.from_batch(Batch.of(windows), np.arange(len(windows)), "cpu")
        for row, text in enumerate(windows):
            expected = np.zeros(weights.weights.shape[1:])
            pairs, marks, values = compute_contrasts(text)
            for (i, j), value in zip(pairs, values.T, strict=True):
                expected[:, i, j] = expected[:, j, i] = value
            np.testing.assert_allclose(weights.weights[row].numpy(), expected, atol=1e-9)
            np.testing.assert_allclose(weights.products[row].numpy(), values @ marks.T, atol=1e-9)

    def test_sum_to_zero_over_tokens_and_distances(self, windows: list[Window]):
        weights = PairWeights.from_batch(Batch.of(windows[:4]), np.arange(4), "cpu")
        matrices = weights.weights.numpy()
        np.testing.assert_allclose(matrices[:, 2:].sum(3), 0, atol=1e-9)
        for distance in range(1, matrices.shape[3]):
            np.testing.assert_allclose(matrices[:, 2:4].diagonal(distance, 2, 3).sum(2), 0, atol=1e-9)

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_of_a_long_window_the_first_tokens_take_part(self, kernel: str):
        if kernel == "reference":
            pytest.skip("plain loops are slow, and cut in the same function")
        ids = np.random.default_rng(0).integers(3, 9, MAX_PLACES + 40).tolist()
        outputs = torch.randn((1, len(ids), 1, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        sums = []
        for length in (MAX_PLACES, len(ids)):
            shape, maps = Shape(1, 1, len(ids), maps=False, width=2), torch.full((1, 1, length, length), 1 / length)
            text = window(ids)
            text = Window(*(array[:length] for array in (text.ids, text.special, text.sentence, text.end, text.comma)))
            counting = TallySettings(shape, 0.3, 0.3, 1.0)
            sums.append(tally(kernel, counting, [text], [outputs[:, :length]], [maps.double()]))
        for name in ("contrast_sums", "contrast_products", "pair_weights"):
            np.testing.assert_allclose(sums[1][name].sum(0), sums[0][name].sum(0), rtol=1e-9, atol=1e-9)
        assert sums[1]["position_counts"].shape == (2, MAX_PLACES)


class TestPlanted:
    """The measured share is the planted one, whatever else is there."""

    @pytest.mark.parametrize("relation", ["equal", "same", "near"])
    def test_one_relation(self, windows: list[Window], relation: str):
        planted = [0.05, 0.2, 0.5, 0.95]
        assert_close(make_study(windows, *({relation: share} for share in planted)), planted)

    def test_mixtures(self, windows: list[Window]):
        heads = [{"equal": 0.3, "same": 0.2}, {"equal": 0.2, "near": 0.3}, {"same": 0.3, "near": 0.3}, MIXTURE]
        study = make_study(windows, *heads)
        assert_close(study, [0.5, 0.5, 0.6, 0.6])
        relations = study.signal_shares()["relation_share"].values[0, 3]
        np.testing.assert_allclose(relations, 0.2, atol=0.03)

    def test_position_signal_and_noise(self, windows: list[Window]):
        heads: list[dict[str, float]] = [{**MIXTURE, "position": share} for share in (0.3, 0.6, 0.9)]
        study = make_study(windows, *heads)
        assert_close(study, [0.6, 0.6, 0.6])
        np.testing.assert_allclose(study.signal_shares()["position_share"].values[0], [0.3, 0.6, 0.9], atol=0.02)

    def test_ten_decibels_are_ten_decibels(self, windows: list[Window]):
        study = make_study(windows, {"equal": 5 / 11, "same": 5 / 11}, {"same": 0.5})
        np.testing.assert_allclose(study.signal_to_noise().values[0], [10, 0], atol=0.8)

    @pytest.mark.parametrize("how", [{"offset": 3.0}, {"tail": 0.7}, {"constant": True}], ids=str)
    def test_common_vector_lengths_and_table_of_tokens(self, windows: list[Window], how: dict[str, float]):
        shares = make_study(windows, MIXTURE, **how).signal_shares()
        assert float(shares["signal_share"][0, 0]) == pytest.approx(0.6, rel=0.1)

    def test_scale_and_rotation_do_not_matter(self, windows: list[Window]):
        outputs = plant_head(windows[:40], MIXTURE, 0, offset=1.0)
        rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))[0]
        heads = [outputs, [1e4 * o for o in outputs], [1e-4 * o for o in outputs], [o @ rotation for o in outputs]]
        shares = study_heads(windows[:40], heads).signal_shares()
        for name in ("signal_share", "signal_share_error", "snr_db"):
            np.testing.assert_allclose(shares[name].values[0], shares[name].values[0, 0], rtol=1e-6)


class TestNoSignal:
    """No signal is zero within two errors, but for a few of twenty heads by chance, and has no ratio."""

    @pytest.mark.parametrize(
        ("shares", "how"),
        [
            ({}, {}),
            ({}, {"tail": 0.7}),
            ({"position": 0.5}, {}),
            ({"position": 0.95}, {}),
            (MIXTURE, {"shuffle": True}),
            ({"equal": 0.3, "same": 0.3, "near": 0.35}, {"shuffle": True}),
        ],
        ids=str,
    )
    def test_noise_position_and_shuffled_texts(self, windows: list[Window], shares: dict[str, float], how: dict):
        study = make_study(windows, *[shares] * 20, **how)
        result = study.signal_shares()
        value, error = result["signal_share"].values[0], result["signal_share_error"].values[0]
        assert (np.abs(value) < 2 * error).sum() >= 16
        assert abs(value.mean()) < 3 * value.std() / np.sqrt(len(value))
        assert np.isnan(result["snr_db"].values[0]).sum() >= 18

    def test_a_head_that_writes_only_its_position(self, windows: list[Window]):
        shares = make_study(windows, {"position": 1.0}).signal_shares()
        assert float(shares["position_share"][0, 0]) == pytest.approx(1)
        assert float(shares["signal_share"][0, 0]) == 0
        assert np.isnan(shares["snr_db"][0, 0])

    def test_a_head_that_writes_nothing_or_always_the_same(self, windows: list[Window]):
        zeros = [np.zeros((len(text), 2)) for text in windows[:30]]
        shares = study_heads(windows[:30], [zeros, [output + 1 for output in zeros]]).signal_shares()
        assert np.isnan(shares["signal_share"]).all()
        assert np.isnan(shares["snr_db"]).all()


class TestStudies:
    def test_every_study_has_them_with_errors(self):
        study = make_random_study(texts=60)
        shares = study.signal_shares()
        for name in ("signal_share", "position_share"):
            assert shares[name].dims == ("layer", "head")
            assert np.isfinite(shares[name]).all()
            assert np.isfinite(shares[f"{name}_error"]).all()
        assert study.signal_to_noise().attrs["units"] == "dB"
        table = study.heads()
        np.testing.assert_array_equal(table["signal_share"], shares["signal_share"].values.ravel())
        np.testing.assert_array_equal(table["snr_db"], study.signal_to_noise().values.ravel())

    def test_errors_are_those_of_the_jackknife(self):
        study = make_random_study(texts=60)
        data, values = study.data, []
        for block in np.flatnonzero(data["sample_texts_blocks"].values):
            kept = data["block"].values != block
            changed = {
                name: data[name].where(data["block"] == np.where(kept, data["block"], -1), 0)
                for name in ("contrast_sums_blocks", "contrast_products_blocks", "pair_weights_blocks")
            }
            values.append(Study(data.assign(changed)).signal_shares()["signal_share"].values)
        spread = ((np.array(values) - np.mean(values, 0)) ** 2).sum(0) * (len(values) - 1) / len(values)
        np.testing.assert_allclose(study.signal_shares()["signal_share_error"], np.sqrt(spread))

    def test_few_blocks_have_no_errors_and_no_ratio(self):
        study = study_of(make_sums(blocks=9))
        shares = study.signal_shares()
        assert float(shares["signal_share"][0, 0]) == pytest.approx(0.5)
        assert np.isnan(shares["signal_share_error"]).all()
        assert np.isnan(shares["snr_db"]).all()

    def test_less_noise_is_not_told_from_none(self):
        sums = make_sums()
        sums["contrast_sums"][:, 0, 0] = [1000 - 200, 0, -160, 0, 0, 0, 0]
        assert float(study_of(sums).signal_to_noise()[0, 0]) == pytest.approx(30, abs=0.01)

    def test_one_document_has_no_position_share(self):
        """Means of one half cannot be told from noise: a share of 0 would be wrong."""
        shares = make_random_study(texts=1).signal_shares()
        assert np.isnan(shares["position_share"]).all()
        assert np.isnan(shares["signal_share"]).all()

    def test_the_largest_ratio_has_no_error(self):
        sums = make_sums()
        sums["contrast_sums"][:, 0, 0] = [1000 - 200, 0, -160, 0, 0, 0, 0]
        shares = study_of(sums).signal_shares()
        assert np.isnan(shares["snr_db_error"][0, 0]) == (float(shares["snr_db"][0, 0]) > 29.9)

    def test_without_equal_tokens_or_sentences_nothing_is_measured(self):
        texts = [window(np.random.default_rng(k).permutation(30)[:12].tolist(), [0] * 12) for k in range(40)]
        outputs = [np.random.default_rng(k).normal(size=(12, 2)) for k in range(40)]
        shares = study_heads(texts, [outputs]).signal_shares()
        assert np.isnan(shares["signal_share"]).all()

    def test_studies_made_apart_add_up(self):
        first = make_random_study(seed=1, texts=50)
        second = make_random_study(seed=2, texts=50, corpus_hash=f"{2:032x}")
        merged = first.merge(second)
        for name in ("contrast_sums_blocks", "pair_weights_blocks", "position_sums", "position_counts"):
            np.testing.assert_allclose(merged.data[name], first.data[name].values + second.data[name].values)

    def test_selected_heads_are_those_of_the_study(self):
        study = make_random_study(texts=60)
        selected = study.select(layers=[1, 3], heads=2).signal_shares()
        np.testing.assert_allclose(selected["signal_share"], study.signal_shares()["signal_share"].values[[1, 3], 2:])

    def test_a_study_of_an_earlier_version_says_so(self):
        old = Study(make_random_study().data.drop_vars("position_sums"))
        with pytest.raises(StudyError, match="did not measure signal shares: run it again"):
            old.signal_to_noise()
        assert old.heads()["signal_share"].isna().all()

    def test_a_saved_study_has_the_same(self, tmp_path: Path):
        study = make_random_study(texts=40)
        opened = headscope.open_study(study.save(tmp_path / "study.nc"))
        np.testing.assert_array_equal(opened.signal_shares()["signal_share"], study.signal_shares()["signal_share"])

    def test_images_have_no_sentences(self):
        study = make_random_study(modality="image")
        assert np.isnan(study.signal_shares()["signal_share"]).all()
        assert np.isnan(study.signal_to_noise()).all()


def test_contrasts_have_names():
    assert make_random_study(layers=1, heads=1, texts=3).data["contrast"].values.tolist() == list(CONTRASTS)
