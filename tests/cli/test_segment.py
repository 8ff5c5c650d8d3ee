"""`headscope segment`: what it prints and writes, and its exit codes, above all when something is wrong."""

from __future__ import annotations

import io
import json
import sys
import webbrowser
from pathlib import Path
from types import SimpleNamespace

import pytest

import headscope
from headscope.model import loading
from headscope.model.model import Model
from tests.helpers import tiny
from tests.helpers.subjects import BANK, COOK, RAIN, TEXT

pytestmark = pytest.mark.usefixtures("shared_cache", "loaded_once")
PLAIN = f"{RAIN.strip()}\n==========\n{BANK.strip()}\n==========\n{COOK}\n"


@pytest.fixture
def article(tmp_path: Path) -> str:
    (tmp_path / "article.txt").write_text(TEXT, encoding="utf-8")
    return "article.txt"


def test_a_file_is_printed_in_segments(headscope_command, article: str, tmp_path: Path):
    result = headscope_command("segment", article)
    assert (result.code, result.out) == (0, PLAIN)
    assert [path.name for path in tmp_path.iterdir()] == [article]  # no page that nobody asked for
    assert headscope_command("segment", article, "--separator", "* * *").out == PLAIN.replace("=" * 10, "* * *")


def test_the_text_itself_and_standard_input(headscope_command, monkeypatch: pytest.MonkeyPatch):
    assert headscope_command("segment", TEXT).out == PLAIN
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(TEXT.encode()))))
    assert headscope_command("segment", "-").out == PLAIN


def test_one_sentence_is_said_to_be_one(headscope_command):
    """The paper's own input has no capital letters, by which the splitter knows where a sentence begins."""
    result = headscope_command("segment", "example:airport-policing")
    assert (result.code, "one sentence, in which no boundary is looked for; --level fine" in result.err) == (0, True)
    assert "one sentence" not in headscope_command("segment", "example:airport-policing", "--level", "fine").err


def test_json_has_offsets(headscope_command, tmp_path: Path):
    text = "\r\n  " + TEXT.replace(". ", ".\r\n") + " 😀 \r\n"
    (tmp_path / "odd.txt").write_bytes(text.encode())
    result = headscope_command("segment", "odd.txt", "--json")
    output = json.loads(result.out)
    assert output["document"] == "odd.txt"
    assert "".join(part["text"] for part in output["segments"]) == text
    assert all(text[part["start"] : part["end"]] == part["text"] for part in output["segments"])
    assert len(output["segments"]) == 3
    assert sum(head["weight"] for head in output["heads"]) == pytest.approx(1)
    assert "headscope segment odd.txt --json" in output["manifest"]["command"]
    assert result.err == ""


def test_a_sentence_that_is_read_in_part_is_named(headscope_command, tmp_path: Path):
    (tmp_path / "long.txt").write_text(TEXT + "The rain fell " + "and fell " * 130 + "on the hills. ")
    for options in ([], ["--json"]):
        result = headscope_command("segment", "long.txt", *options)
        assert result.code == 0
        assert result.err == (
            "long.txt: of 1 sentence, longer than this model reads at once, only the beginning was read; "
            "--level fine reads all of it\n"
        )
    assert json.loads(result.out)["manifest"]["sentences_read_in_part"] == 1
    assert headscope_command("segment", "long.txt", "--level", "fine").err == ""


def test_options_are_passed_on(headscope_command, minilm: Model, article: str):
    output = json.loads(headscope_command("segment", article, "--json", "--count", "5").out)
    assert len(output["segments"]) == 5
    coarse = json.loads(headscope_command("segment", article, "--json", "--granularity", "0.01").out)
    assert len(coarse["segments"]) == 1
    fine = json.loads(
        headscope_command("segment", article, "--json", "--level", "fine", "--length", "40", "--tau", "0.2").out
    )
    expected = headscope.segment(minilm, TEXT, level="fine", length=40, tau=0.2)
    assert fine["level"] == "fine"
    assert fine["edges"] == expected.edges.tolist()
    assert (fine["manifest"]["length"], fine["manifest"]["tau"]) == (40, 0.2)


def test_without_a_text_the_papers_is_cut(headscope_command):
    result = headscope_command("segment", "--json")
    assert json.loads(result.out)["document"] == "example:airport-policing"
    assert headscope_command("segment", "example:airport-policing", "--json").code == 0


def test_a_page_is_written(headscope_command, article: str, tmp_path: Path):
    pytest.importorskip("headscope.page.segmentation")
    result = headscope_command("segment", article, "--out", "segments.html")
    assert (result.code, result.out) == (0, PLAIN)
    assert "written: segments.html" in result.err
    page = (tmp_path / "segments.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "Investors sold their" in page
    assert headscope_command("segment", article, "--out", "segments.html").code == 0  # our own page is replaced


def test_the_page_is_opened(headscope_command, article: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("headscope.page.segmentation")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)))
    result = headscope_command("segment", article, "--open")
    assert opened == [(tmp_path / "segments.html").as_uri()]
    assert "no browser could be opened: open segments.html in one" in result.err


def test_a_file_that_is_no_page_is_not_written_over(headscope_command, article: str, tmp_path: Path):
    result = headscope_command("segment", "Rain fell.", "--out", article)
    assert (result.code, result.out) == (1, "")
    assert (tmp_path / article).read_text(encoding="utf-8") == TEXT


# Many documents


@pytest.fixture
def many_documents(tmp_path: Path) -> str:
    lines = [{"text": TEXT, "body": "Rain fell."}, {"text": " ", "body": ""}, {"text": COOK, "body": BANK}]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return "many.jsonl"


def test_many_documents_are_lines_of_json(headscope_command, many_documents: str):
    result = headscope_command("segment", many_documents, "--json")
    lines = result.out.splitlines()
    assert (result.code, len(lines)) == (0, 2)  # the empty one is left out
    outputs = [json.loads(line) for line in lines]
    assert ["".join(part["text"] for part in output["segments"]) for output in outputs] == [TEXT, COOK]
    assert outputs[0]["document"] != outputs[1]["document"]
    assert all(many_documents in output["document"] for output in outputs)
    bodies = [
        json.loads(line)
        for line in headscope_command("segment", many_documents, "--json", "--field", "body").out.split("\n")[:2]
    ]
    assert [output["characters"] for output in bodies] == [len("Rain fell."), len(BANK)]


def test_many_documents_as_text(headscope_command, minilm: Model, many_documents: str):
    result = headscope_command("segment", many_documents, "--separator", "---")
    first, second = PLAIN.replace("=" * 10, "---"), headscope.segment(minilm, COOK).to_text("---")
    assert result.out == f"--- {many_documents}:1 ---\n{first}--- {many_documents}:3 ---\n{second}"


def test_a_page_is_of_one_document(
    headscope_command, many_documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    for options in (("--out", "page.html"), ("--open",)):
        result = headscope_command("segment", many_documents, *options)
        assert (result.code, result.out) == (1, "")
        assert "there are several documents, and a page shows one" in result.err
    assert not list(tmp_path.glob("*.html"))


# What goes wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("",), "empty"),
        (("  ",), "empty"),
        (("empty.txt",), "empty.txt: there is no text in it"),
        (("blank.jsonl",), "blank.jsonl: there is no text in it"),
        (("binary.txt",), "binary.txt: not utf-8 text"),
        (("broken.jsonl",), "broken.jsonl"),
        ((TEXT, "--count", "0"), "count is 0: it is the number of segments wanted"),
        ((TEXT, "--count", "50"), "the text has 17 sentences"),
        ((TEXT, "--granularity", "0"), "a number from 0.01 to 100"),
        ((TEXT, "--granularity", "nan"), "a number from 0.01 to 100"),
        ((TEXT, "--level", "fine", "--length", "600"), "512"),
        ((TEXT, "--level", "fine", "--length", "40", "--count", "2"), "choose a larger --length"),
        ((TEXT, "--level", "fine", "--tau", "3"), "tau"),
        ((TEXT, "--out", "nowhere/page.html"), "no folder nowhere"),
        ((TEXT, "--model", "no/such/folder"), "no/such/folder"),
        (("example:nothing",), "airport-policing"),
        (("nofile.txt",), "nofile.txt: there is no such file"),
        (("no/article",), "no/article: there is no such file. If the word itself is the text, add --text"),
        (("no-such-word",), "no-such-word: there is no such file, and a single word cannot be cut"),
        ((".",), ".: a folder; name one file in it"),
        (("picture.png",), "picture.png: an image; only texts can be cut"),
    ],
)
def test_bad_input_is_explained(headscope_command, tmp_path: Path, arguments: tuple[str, ...], words: str):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.jsonl").write_text('{"text": ""}\n{"text": " "}\n')
    (tmp_path / "binary.txt").write_bytes(b"caf\xe9 \xff")
    (tmp_path / "broken.jsonl").write_text('{"text": "Rain')
    (tmp_path / "picture.png").write_bytes(_make_png())
    result = headscope_command("segment", *arguments)
    assert result.code == 1
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert result.out == ""


def test_a_word_that_looks_like_a_file_is_cut_on_request(headscope_command):
    result = headscope_command("segment", "notes.txt", "--text")
    assert (result.code, result.out) == (0, "notes.txt\n")


def _make_png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(tiny.pictures(1)[0]).save(buffer, "png")
    return buffer.getvalue()


def test_nothing_on_standard_input(headscope_command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(b""))))
    result = headscope_command("segment", "-")
    assert (result.code, result.out) == (1, "")
    assert "standard input: there is no text in it" in result.err


@pytest.mark.parametrize("arguments", [("--count", "many"), ("--no-such-option",), ("--granularity", "fine")])
def test_a_command_that_is_not_understood(headscope_command, arguments: tuple[str, ...]):
    result = headscope_command("segment", TEXT, *arguments)
    assert (result.code, result.out) == (2, "")


def test_progress_is_shown_on_stderr_alone(headscope_command, article: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    result = headscope_command("segment", article)
    assert result.out == PLAIN
    assert result.err != ""
    quiet = headscope_command("segment", article, "--quiet")
    assert (quiet.out, quiet.err) == (PLAIN, "")


def test_help_has_examples(headscope_command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = headscope_command("segment", "--help")
    assert result.code == 0
    assert "headscope segment article.txt --count 8 --output segments.html --open" in result.out
    for option in ("--granularity", "--level", "--json", "--separator"):
        assert option in result.out
    assert "segment" in headscope_command("--help").out


def test_a_file_in_another_encoding(headscope_command, tmp_path: Path):
    (tmp_path / "old.txt").write_bytes("Café noir. Thé vert.".encode("latin-1"))
    assert headscope_command("segment", "old.txt").code == 1
    result = headscope_command("segment", "old.txt", "--encoding", "latin-1")
    assert result.code == 0
    assert result.out == "Café noir. Thé vert.\n"
