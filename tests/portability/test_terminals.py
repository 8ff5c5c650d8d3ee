"""Output in any encoding of a terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headscope import cli
from headscope.cli import options
from tests.helpers.portability import LENGTH, run_python

ENCODINGS = ("ascii", "latin-1", "cp1252")


@pytest.fixture
def in_encoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `headscope …` with stdout and stderr in an encoding and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(encoding: str, *arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding, "strict") for _ in range(2))
        monkeypatch.setattr(sys, "argv", ["headscope", *map(str, arguments)])
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), encoding))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                cli.main()
            out.flush()
            err.flush()
        printed = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))
        return int(ended.value.code or 0), *printed  # type: ignore[return-value]

    return run


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "arguments", [("--help",), ("study", "--help"), ("paper", "--help"), ("models",)], ids=" ".join
)
def test_help_in_any_encoding(in_encoding: Any, encoding: str, arguments: tuple[str, ...]) -> None:
    code, out, err = in_encoding(encoding, *arguments)
    assert code == 0
    assert len(out) > 100
    assert not err


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", ["findings", "heads"])
def test_tables_and_json_in_any_encoding(in_encoding: Any, study_folder: Path, encoding: str, command: str) -> None:
    code, table, _ = in_encoding(encoding, command, study_folder)
    assert code == 0
    assert len(table) > 100
    code, escaped, _ = in_encoding(encoding, command, study_folder, "--json")
    assert code == 0
    assert escaped.isascii()
    plain = in_encoding("utf-8", command, study_folder, "--json")[1]
    assert json.loads(escaped) == json.loads(plain)


@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
def test_json_is_escaped_only_where_it_must_be(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    content = {"café": "θ 😀"}
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    options.show_json(json.dumps(content, ensure_ascii=False))
    printed = sys.stdout.buffer.getvalue()
    assert json.loads(printed) == content
    assert printed.isascii() == (encoding != "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_markdown_in_any_encoding(in_encoding: Any, study_folder: Path, encoding: str) -> None:
    code, out, _ = in_encoding(encoding, "findings", study_folder, "--markdown")
    assert code == 0
    assert "?" in out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_segments_and_errors_in_any_encoding(in_encoding: Any, model_folder: Path, encoding: str) -> None:
    command = ("segment", "-", "--level", "fine", "--model", model_folder, "--length", LENGTH, "--quiet")
    text = "a café θ b. the 雨 d e 😀 f."
    code, out, _ = in_encoding(encoding, *command, stdin=text.encode())
    assert code == 0
    assert "caf" + "é".encode(encoding, "replace").decode(encoding) in out
    code, out, _ = in_encoding(encoding, *command, "--json", stdin=text.encode())
    assert "".join(segment["text"] for segment in json.loads(out)["segments"]).strip() == text
    code, _, err = in_encoding(encoding, "study", "雨.txt")
    assert code == 1
    assert "no such file" in err


@pytest.mark.parametrize("command", ["segment", "read"])
def test_stdin_is_in_the_encoding_that_is_said(in_encoding: Any, model_folder: Path, command: str) -> None:
    options = ("--length", LENGTH, "--model", model_folder, "--json", "--quiet")
    arguments = (command, "-", *options, *(("--level", "fine") if command == "segment" else ()))
    raw = "a café b. the d e.".encode("latin-1")
    code, out, _ = in_encoding("ascii", *arguments, "--encoding", "latin-1", stdin=raw)
    assert code == 0
    assert json.loads(out)
    code, out, err = in_encoding("ascii", *arguments, stdin=raw)
    assert (code, out) == (1, "")
    assert "not utf-8 text (byte 0xe9 at position 5)" in err
    assert "--encoding" in err


def test_a_real_process_in_ascii() -> None:
    code = "import sys; sys.argv = ['headscope', 'study', '--help']; from headscope.cli import main; main()"
    ran = run_python(code, environment={"PYTHONIOENCODING": "ascii", "HOME": "/"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()
    assert "--theta" in ran.stdout
    assert not ran.stderr


@pytest.mark.parametrize(
    ("encoding", "errors", "expected"),
    [
        ("utf-8", "strict", "replace"),
        ("utf-8", "surrogateescape", "surrogateescape"),
        ("ascii", "surrogateescape", "replace"),
        ("ascii", "backslashreplace", "backslashreplace"),
    ],
)
def test_who_chose_a_way_to_print_keeps_it(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, expected: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", None)
    cli._replace_unencodable()
    assert stream.errors == expected
