"""Reports and cards as text: their contents, and that no text in them becomes markup."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headscope.errors import StudyError
from headscope.page.formatting import compute_contrast, group_manifest, pick_color, pick_text_color
from headscope.page.notebook import render_study_card
from headscope.page.report import ReportFigure, build_receiver_bars, list_most_attended, render_report
from headscope.page.templates import embed_json
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally
from tests.helpers.hostile import ALL, EMPTY_HEAD, ENTRIES, HEADS, LAYERS, PLATES, SVG, make_findings, make_study
from tests.helpers.html_elements import Elements
from tests.helpers.synthetic import make_random_study, study_of


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study()


@pytest.fixture(scope="module")
def html(study: Study) -> str:
    return render_report(study, make_findings(), PLATES)


def test_no_text_becomes_an_element(html: str) -> None:
    elements = Elements(html)
    assert elements.count("script") == 2
    assert elements.count("img") == len(PLATES)
    assert not elements.count("b")
    assert not [tag for tag, attributes in elements.tags if any(name.startswith("on") for name in attributes)]
    assert elements.text.count(ALL) >= 12
    assert "49" not in re.findall(r"<h1>.*?</h1>", html, re.DOTALL)[0]


def test_policy_allows_the_one_script_only(html: str) -> None:
    import base64
    import hashlib

    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert policy is not None
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    allowed = policy[1].replace("&#39;", "'").split("; ")
    assert allowed[0] == "default-src 'none'"
    assert f"script-src 'sha256-{digest}'" in allowed
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("<script>")


def test_data_is_json_that_cannot_end_its_element(html: str, study: Study) -> None:
    element = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert element is not None
    assert not set("<>&\u2028\u2029") & set(element[1])
    data = json.loads(element[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    empty = EMPTY_HEAD[0] * HEADS + EMPTY_HEAD[1]
    assert data["rates"][0]["values"][empty] is None
    assert data["rates"][0]["values"][0] == pytest.approx(float(study.rate("repeat_rate")[0, 0]), rel=1e-9)


def test_any_text_survives_in_json_without_markup() -> None:
    text = str(embed_json({ALL: [ALL, 1.5, None]}))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {ALL: [ALL, 1.5, None]}


def test_surrogates_are_replaced() -> None:
    page = render_report(make_study(model="half \ud83d of a pair"), [], [])
    assert "half \ufffd of a pair" in page
    page.encode("utf-8")


def test_incomplete_studies_say_so() -> None:
    stopped = render_report(make_study(stopped_by="the disk is full"), [], [])
    assert "This study is incomplete" in stopped
    assert "Stopped by: <bdi>the disk is full</bdi>" in stopped
    assert "incomplete" not in Elements(render_report(make_study(complete=1, stopped_by=""), [], [])).text


def test_findings_stand_with_value_error_and_verdict(html: str) -> None:
    items = re.findall(r'<li class="finding (\w+)" id="finding-(\d+)">(.*?)</li>\n', html, re.DOTALL)
    assert [int(number) for _, number, _ in items] == list(range(1, 13))
    first, second, third = (Elements(text).text for _, _, text in items[:3])
    assert [kind for kind, _, _ in items[:3]] == ["no", "open", "yes"]
    assert "0.12 ± 0.01 tokens" in first
    assert "not consistent" in first
    assert "no value" in second
    assert "not measurable" in second
    assert "37.0 %" in third
    assert "criterion of 1" in first
    assert "0.25, –, –, 1" in " ".join(first.split())


def test_every_entry_of_the_manifest_is_shown(html: str, study: Study) -> None:
    text = Elements(html).text
    for value in ("ab" * 32, "cd" * 16, "1 min 15 s", "something new", "torch", "2026-01-02T03:04:05+00:00"):
        assert value in text
    assert "64 read, 4 of them skipped" in text


def test_tokens_and_receivers(html: str, study: Study) -> None:
    text = Elements(html).text
    assert "53.3 %" in text  # 8 of 15 texts
    assert "U+0020" in text  # a blank is visible
    assert "empty token" in text
    assert "3 others 20.0 %" in text
    share = float(study.data["attention_received_share"][0, 2]) * 100
    assert f'title="sentence end: {share:.1f} %"' in html
    assert f'title="rest: {100 * 7 / 28:.1f} %"' in html  # the evenly spread baseline


def test_selected_layers_and_absent_sections() -> None:
    selected = make_study().select(layers=[1, 3])
    page = render_report(Study(selected.data.drop_vars(["most_attended", "most_attended_blocks"])), [], [])
    text = Elements(page).text
    assert "L3H2" in text
    assert "L0H0" not in text
    assert "Attention received" in text
    for absent in ('id="findings"', 'id="figures"', "Most attended tokens"):
        assert absent not in page


def test_parts_missing_for_selected_heads_are_left_out() -> None:
    selected = make_study().select(heads=[2])
    assert list_most_attended(selected) == []
    assert build_receiver_bars(selected) == []
    page = render_report(selected, [], [])
    assert 'id="tokens"' not in page
    assert "L10H2" in Elements(page).text
    assert "L10H1" not in Elements(page).text


def test_nothing_counted_at_all() -> None:
    empty = Tally.zeros(Shape(2, 2, 16, maps=False))
    study = study_of(empty, **ENTRIES)
    assert render_report(study, [], []).count('class="nothing"') == 5 * 4
    assert render_study_card(study).count("nothing counted") >= 5 * 4


def test_ink_is_legible_on_every_colour() -> None:
    assert min(compute_contrast(pick_color(k / 500), pick_text_color(pick_color(k / 500))) for k in range(501)) >= 4.5


def test_page_stays_small() -> None:
    figures = [
        ReportFigure(str(k), "Title", "Caption", SVG.format(300) + "<!--" + "x" * 400_000 + "-->") for k in range(11)
    ]
    assert len(render_report(make_study(), make_findings(), figures)) < 8_000_000


def test_card_escapes_and_shows_values(study: Study) -> None:
    card = render_study_card(study)
    elements = Elements(card)
    assert {tag for tag, _ in elements.tags} <= {"div", "span", "strong", "bdi", "svg", "rect", "path", "title", "br"}
    assert not [tag for tag, attributes in elements.tags if "id" in attributes or "class" in attributes]
    assert elements.text.count(ALL) == 3  # model, corpus, why it stopped
    assert elements.count("rect") == 5 * (LAYERS * HEADS - 1)
    assert elements.count("path") == 5
    assert elements.text.count("L2H1: nothing counted") == 5
    value, error = (
        float(get(name)[3, 2]) for get, name in ((study.rate, "mean_distance"), (study.standard_error, "mean_distance"))
    )
    shown = re.search(r"L3H2: (\S+) ± (\S+) tokens", elements.text)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(value, abs=0.05)
    assert float(shown[2]) == pytest.approx(error, abs=0.05)
    assert "Incomplete" in card
    assert "Incomplete" not in render_study_card(make_study(complete=1))


def test_study_shows_its_card(study: Study) -> None:
    assert study._repr_html_() == render_study_card(study)


def test_empty_notes_are_not_shown():
    labels = {
        label for _, rows in group_manifest({"kernel": "numba", "kernel_note": "", "tf32": 0}) for label, _ in rows
    }
    assert labels == {"Kernel", "Products in TF32"}
    rows = dict(group_manifest({"kernel_note": "not numba: it is not installed", "tf32": 1})[0][1])
    assert rows == {"Why this kernel": "not numba: it is not installed", "Products in TF32": "yes"}


@pytest.mark.parametrize("name", ["signal_share", "position_share"])
def test_signal_and_position_have_maps_where_they_were_measured(name: str) -> None:
    study, label = make_random_study(texts=60), name.replace("_", " ")
    page = render_report(study, [], [])
    assert label in page
    value = 100 * float(study.signal_shares()[name][2, 1])
    shown = re.findall(r"L2H1[^<]*?: (\S+) ± (\S+) %", render_study_card(study))
    assert any(float(number.replace("−", "-")) == pytest.approx(value, abs=0.6) for number, _ in shown)
    assert label not in render_report(make_random_study(modality="image"), [], [])


def test_a_study_writes_its_report(tmp_path: Path) -> None:
    study = make_random_study(3, layers=2, heads=3, texts=40)
    assert study.report(tmp_path) == tmp_path / "report.html"
    page = (tmp_path / "report.html").read_text("utf-8")
    assert all(finding.title.split("'")[0] in page for finding in study.findings())
    assert study.report(str(tmp_path / "report.html")) == tmp_path / "report.html"  # our own page is replaced
    foreign = tmp_path / "mine.html"
    foreign.write_text("mine", "utf-8")
    for path, message in ((foreign, "is no page of headscope"), (tmp_path / "absent" / "a.html", "there is no folder")):
        with pytest.raises(StudyError, match=message):
            study.report(path)
    assert foreign.read_text("utf-8") == "mine"
