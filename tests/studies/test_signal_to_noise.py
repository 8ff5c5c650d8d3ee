"""Signal-to-noise ratios of heads: worked out by hand, planted in synthetic heads, and 0 dB where there is no
signal."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.windows import Batch, Window, WindowSpec
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies import signal_to_noise
from headscope.studies.result import Study
from headscope.tally.quantities import PAIR_KINDS, Shape
from headscope.tally.relations import compute_kinds, compute_relations
from headscope.tally.signal_to_noise import Structure
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import draw_position_order
from tests.helpers.synthetic import STOP, TALLIERS, make_random_study, study_of, tally, window

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from measuring.planting import lines_at_ends, planted, stacked


@pytest.fixture(scope="module")
def windows(minilm: Model) -> list[Window]:
    cut = WindowSpec(windows="all", min_tokens=40)
    documents = [minilm.windows(document, cut) for document in headscope.documents()]
    return [text for texts in documents if not isinstance(texts, str) for text in texts][:120]


def make_planted_study(windows: list[Window], heads: list[dict[str, object]], seed: int = 0) -> Study:
    random = np.random.default_rng(seed)
    return make_written_study(windows, [[planted(text, random=random, **head) for head in heads] for text in windows])  # type: ignore[arg-type]


def make_written_study(windows: list[Window], outputs: list[list[np.ndarray]]) -> Study:
    """Return a study of one layer with these outputs of heads, text by text."""
    stacked_outputs, heads = stacked(outputs), len(outputs[0])
    counting = TallySettings(Shape(1, heads, stacked_outputs.shape[1], maps=False), 0.3, 0.3, 1.0)
    return study_of(tally("numba", counting, windows, [stacked_outputs], [lines_at_ends(windows, heads)]))


def compute_all_ratios(study: Study) -> np.ndarray:
    return np.stack([study.signal_to_noise(name).values for name in signal_to_noise.DEFINITIONS])


def tally_one_head(kernel: str, text: Window, output: list[float], strong: list[int]) -> Tally:
    """Tally a head of width 1 that attends to the strong positions."""
    n = len(text)
    maps = torch.full((1, 1, n, n), 0.01)
    maps[..., strong] = 1
    outputs = torch.tensor(output, dtype=torch.float64).view(1, n, 1, 1)
    return tally(kernel, TallySettings(Shape(1, 1, n), 0.3, 0.3, 1.0), [text], [outputs], [maps.double()])


class TestByHand:
    """Two sentences, `a . | a b`, for which a head outputs 1, 1, 3, 5: its power is 9."""

    text = window([3, STOP, 3, 6])

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_distances_by_kind_of_pair(self, kernel: str):
        sums = tally_one_head(kernel, self.text, [1, 1, 3, 5], [1])
        # (0,1) and (2,3) are neighbours in a sentence, (0,2) equal tokens, (0,3) and (1,3) unrelated; (1,2) is none.
        assert sums["output_power"].sum() == 9
        assert sums["kind_share"].sum(0).tolist() == pytest.approx([2 / 6, 1 / 6, 0, 0, 2 / 6])
        apart = sums["apart_sum"].sum(0)[0, 0]
        assert (apart * 6 * 9).tolist() == pytest.approx([16, 2, 0, 0, 2])
        assert sums["within_sum"].sum() == pytest.approx((0 + 2) / 2 / 9)
        assert sums["across_sum"].sum() == pytest.approx((2 + 2 + 8 + 8) / 4 / 9)
        assert sums["sentence_texts"].sum() == 1

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_explained_pairs(self, kernel: str):
        sums = tally_one_head(kernel, self.text, [1, 1, 3, 5], [1])
        # C: 1, 3, 5 / 3, 5 / 15; above 0.3 · 15 are (0,3), (1,3), (2,3), and only the last is explained.
        assert (sums["sample_pairs"].sum(), sums["explained"].sum()) == (3, 1)
        order, kinds = draw_position_order(self.text), compute_relations(self.text)
        shuffled = sum(bool(kinds[:, order[i], order[3]].any()) for i in range(3))
        assert sums["shuffled_explained"].sum() == shuffled

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_energy_in_blocks(self, kernel: str):
        sums = tally_one_head(kernel, self.text, [1, 1, 3, 5], [1])
        # The line at place 1 cuts two blocks of two: C² is 1 and 225 inside, 9, 25, 9, 25 outside.
        assert sums["block_texts"].sum() == 1
        assert sums["inside_energy_sum"].sum() == pytest.approx((1 + 225) / 2 / 81)
        assert sums["outside_energy_sum"].sum() == pytest.approx((9 + 25 + 9 + 25) / 4 / 81)
        inside, outside = sums["shuffled_inside_energy_sum"].sum(), sums["shuffled_outside_energy_sum"].sum()
        assert 2 * inside + 4 * outside == pytest.approx((1 + 225 + 68) / 81)

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_a_text_without_lines_inside_or_of_one_sentence_is_not_compared(self, kernel: str):
        sums = tally_one_head(kernel, window([3, 6, 7]), [1, 2, 3], [0, 1, 2])
        assert sums["block_texts"].sum() == sums["sentence_texts"].sum() == 0
        assert not any(sums[name].any() for name in ("within_sum", "across_sum", "inside_energy_sum"))

    @pytest.mark.parametrize("kernel", TALLIERS)
    def test_a_head_that_writes_nothing_adds_nothing(self, kernel: str):
        sums = tally_one_head(kernel, self.text, [0, 0, 0, 0], [1])
        study = study_of(sums)
        assert all(np.isnan(study.signal_to_noise(name)).all() for name in signal_to_noise.DEFINITIONS)

    def test_the_ratio_is_what_is_left_where_all_is_shared(self):
        shape = Shape(1, 1, 4)
        sums = Tally.zeros(shape)
        sums["texts"][0] = sums["sample_texts"][0] = 1
        sums["kind_share"][0] = [0.5, 0.1, 0.2, 0.1, 0.1]
        sums["apart_sum"][0, 0, 0] = [0.5, 0.1, 0.16, 0.02, 0.04]
        sums["shuffled_apart_sum"][0, 0, 0] = [0.5, 0.1, 0.2, 0.1, 0.1]
        study = study_of(sums)
        # Means: 1 unrelated, 0.8 in a sentence, 0.2 equal there, 0.4 neighbours: noise is 0.2 · 0.4/0.8 of it all.
        assert float(study.signal_to_noise()[0, 0]) == pytest.approx(10)
        assert signal_to_noise.compute_reductions(study.data).values[0, 0].tolist() == pytest.approx([0, 0.2, 0.5])


class TestPlanted:
    """The measured ratio is the planted one."""

    @pytest.mark.parametrize("signal", ["sentence", "token", "both"])
    @pytest.mark.parametrize("offset", [0.0, 2.0])
    def test_structure_recovers_it(self, windows: list[Window], signal: str, offset: float):
        ratios = (0.0, 0.3, 1.0, 10.0)
        study = make_planted_study(windows, [{"signal": signal, "ratio": r, "offset": offset} for r in ratios])
        value, error = study.jackknife(lambda part: part.signal_to_noise().values)
        expected = 10 * np.log10(1 + np.array(ratios))
        np.testing.assert_array_less(np.abs(value[0] - expected), 4 * error[0] + 0.01)
        assert error.max() < 0.3

    def test_of_neighbours_it_finds_the_half_that_both_share(self, windows: list[Window]):
        study = make_planted_study(windows, [{"signal": "neighbour", "ratio": 1.0}])
        assert float(study.signal_to_noise()[0, 0]) == pytest.approx(-10 * np.log10(1 - 0.25), abs=0.3)
        assert signal_to_noise.compute_reductions(study.data).values[0, 0, 2] == pytest.approx(0.25, abs=0.03)

    def test_contrast_recovers_sentences_and_is_blind_to_tokens(self, windows: list[Window]):
        heads = [{"signal": "sentence", "ratio": 1.0, "offset": 2.0}, {"signal": "token", "ratio": 10.0}]
        study = make_planted_study(windows, heads)
        ratios = study.signal_to_noise("contrast").values[0]
        assert ratios[0] == pytest.approx(3.01, abs=0.1)
        assert abs(ratios[1]) < 0.1

    def test_more_signal_is_more(self, windows: list[Window]):
        study = make_planted_study(windows, [{"signal": "sentence", "ratio": r} for r in (0.1, 0.3, 1.0, 3.0)])
        for name in signal_to_noise.DEFINITIONS:
            assert (np.diff(study.signal_to_noise(name).values[0]) > 0.1).all(), name

    @pytest.mark.parametrize("offset", [0.0, 1.0])
    def test_noise_alone_is_at_zero(self, windows: list[Window], offset: float):
        study = make_planted_study(windows, [{"signal": "sentence", "ratio": 0.0, "offset": offset}] * 6, seed=3)
        value, error = study.jackknife(compute_all_ratios)
        assert (np.abs(value) < 4 * error).all()
        assert error.max() < 0.25

    def test_a_signal_at_shuffled_places_is_none(self, windows: list[Window]):
        """The planted signal vanishes when each text's positions are permuted, whatever its strength."""
        random = np.random.default_rng(1)
        outputs = [planted(text, "both", 3.0, random)[random.permutation(len(text))] for text in windows]
        value, error = make_written_study(windows, [[text] for text in outputs]).jackknife(compute_all_ratios)
        assert (np.abs(value) < 4 * error).all()

    def test_the_scale_of_outputs_does_not_matter(self, windows: list[Window]):
        random = np.random.default_rng(2)
        outputs = [planted(text, "both", 1.0, random) for text in windows[:30]]
        ratios = compute_all_ratios(
            make_written_study(windows[:30], [[text, 1000 * text, 1e-3 * text] for text in outputs])
        )
        np.testing.assert_allclose(ratios, np.broadcast_to(ratios[..., :1], ratios.shape), rtol=1e-3)


class TestStudies:
    def test_every_study_has_them_with_errors(self):
        study = make_random_study(texts=60)
        for name in signal_to_noise.DEFINITIONS:
            ratios = study.signal_to_noise(name)
            assert ratios.dims == ("layer", "head")
            assert ratios.attrs["units"] == "dB"
            assert np.isfinite(ratios).all()
        assert signal_to_noise.compute_output_norm(study.data).shape == (4, 3)

    def test_studies_made_apart_add_up(self):
        first, second = (
            make_random_study(seed=1, texts=50),
            make_random_study(seed=2, texts=50, corpus_hash=f"{2:032x}"),
        )
        merged = first.merge(second)
        mean = (first.data["apart_sum"] + second.data["apart_sum"]) / (
            first.data["kind_share"] + second.data["kind_share"]
        )
        np.testing.assert_allclose(signal_to_noise.compute_distances(merged.data), mean)

    def test_an_unknown_name_says_which_there_are(self):
        with pytest.raises(StudyError, match=r"unknown signal-to-noise ratio 'loud'; there are: structure, contrast"):
            make_random_study().signal_to_noise("loud")

    def test_a_study_of_an_earlier_version_says_so(self):
        study = make_random_study()
        old = Study(study.data.drop_vars(["within_sum", "within_sum_blocks"]))
        with pytest.raises(StudyError, match="did not measure signal-to-noise: run it again"):
            old.signal_to_noise()

    def test_images_have_no_sentences(self):
        study = make_random_study(modality="image")
        assert np.isnan(study.signal_to_noise()).all()
        assert np.isfinite(study.signal_to_noise("energy")).all()

    def test_no_noise_at_all_is_called_thirty_decibels(self, windows: list[Window]):
        outputs = [[planted(text, "token", 1e12, np.random.default_rng(0))] for text in windows[:40]]
        assert float(make_written_study(windows[:40], outputs).signal_to_noise()[0, 0]) == pytest.approx(30, abs=0.5)


def test_places_are_shuffled_by_the_text_alone():
    text = window([3, 4, 5, 6, 7, 8] * 4)
    order = draw_position_order(text)
    assert sorted(order.tolist()) == list(range(24))
    assert order.tolist() != list(range(24))
    assert draw_position_order(window([3, 4, 5, 6, 7, 8] * 4)).tolist() == order.tolist()
    assert draw_position_order(window([3, 4, 5, 6, 7, 9] * 4)).tolist() != order.tolist()


def test_pairs_by_group_are_those_counted_one_by_one():
    random = np.random.default_rng(0)
    texts = [window(random.integers(3, 9, n).tolist()) for n in (2, 3, 17, 40)]
    structure = Structure.from_batch(Batch.of(texts), 1.0, "cpu")
    assert structure is not None
    for row, text in zip(structure.kind_counts.tolist(), texts, strict=True):
        kinds = np.triu(compute_kinds(compute_relations(text)), k=1).sum((1, 2)).tolist()
        assert row == [*kinds, int(np.triu(compute_relations(text)[1], k=1).sum())]
    assert len(PAIR_KINDS) == structure.kind_counts.shape[1] - 1
