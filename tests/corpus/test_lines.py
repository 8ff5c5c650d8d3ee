"""Plain text files that hold one document per line get a note; files that are one document get none."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headscope.corpus.documents import documents

REVIEWS = [
    "The plot is thin, but the two leads carry the film with ease and the music is a delight.",
    "I left after an hour. Nothing happens, and what happens makes no sense at all!",
    '"Why?" asks the hero at the end, and so did everybody in the audience around me.',
    "A small film about a large family (and a dog), told with warmth and much patience.",
    "Would I see it again? On a rainy day, with friends, certainly; alone I would rather read.",
] * 3
PROSE = """\
It was the first warm day of the year, and the people of the town had come
down to the harbor to see the ships. Nobody spoke of the winter. The old
captain sat on his barrel, as he did every spring, and told the children
about the island where the lamps burn through the night, and about the
keeper who had lived there alone for thirty years. One of the boys asked
whether the keeper had been afraid. The captain thought about it. He said
that he had asked the same question once, long ago, and that the keeper
had only laughed and pointed at the sea. Then he lit his pipe. The wind
had turned, and the first sails were already on their way out of the bay,
past the rocks and the white tower, toward the open water and the sun."""
PARAGRAPHS = "\n\n".join(REVIEWS)
POEM = """\
Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall Death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee."""
CODE = (
    "\n".join(
        f"    result_{k} = compute_the_value(first_argument, second_argument, number={k})  # adds a value."
        for k in range(9)
    )
    + "\n# The rest of the program is left to the reader of this file, as an exercise.\n" * 5
)
CSV = "\n".join(f'{k},positive,"The plot is thin, but the two leads carry the film with ease."' for k in range(20))
TSV = "\n".join(
    f"positive\tThe plot is thin, but the two leads carry the film with ease, number {k}." for k in range(20)
)
MARKDOWN = "\n".join(
    f"- The item number {k} of this list is a whole sentence, and a rather long one." for k in range(20)
)
NUMBERED = "\n".join(
    f"{k}. The item number {k} of this list is a whole sentence, and a rather long one." for k in range(20)
)
HEADLINES = "\n".join(f"Ravens return to the old tower for the {k}th time" for k in range(20))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["reviews.txt", "reviews.txt.gz", "REVIEWS.TXT"])
def test_one_document_per_line_gets_a_note(tmp_path: Path, name: str, end: str):
    raw = (end.join(REVIEWS) + end).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    (note,) = documents(path).notes
    assert note.startswith(f"{path}: every line looks like a text of its own, and the file is read as one document")
    assert "--format lines" in note
    assert len(list(documents(path))) == 1
    assert not documents(path, format="text").notes
    assert not documents(path, format="lines").notes
    assert documents(tmp_path).notes == (note,)


def test_a_large_file_is_judged_by_its_beginning(tmp_path: Path):
    path = tmp_path / "reviews.txt"
    path.write_text("\n".join(REVIEWS * 1000), encoding="utf-8")
    assert len(documents(path).notes) == 1
    path.write_text("\n".join(REVIEWS * 10) + "\n\n" + PROSE * 10, encoding="utf-8")
    assert not documents(path).notes


def test_other_encodings(tmp_path: Path):
    path = tmp_path / "reviews.txt"
    path.write_text("\n".join(REVIEWS), encoding="utf-16")
    assert len(documents(path, encoding="utf-16").notes) == 1
    assert not documents(path).notes


def test_json_lines_named_txt(tmp_path: Path):
    path = tmp_path / "articles.txt"
    path.write_text('{"text": "Two ravens met."}\n{"text": "The ravens left."}\n', encoding="utf-8")
    assert "a JSON object, and the file is read as one document: --format jsonl" in documents(path).notes[0]


@pytest.mark.parametrize(
    "text",
    [PROSE, PARAGRAPHS, POEM, CODE, CSV, TSV, MARKDOWN, NUMBERED, HEADLINES, "", "\n",
     REVIEWS[0], "\n".join(REVIEWS[:9]), " ".join(REVIEWS * 1000),
     '{\n"text": "Two ravens met."\n}', PROSE.replace("\n", " ") + "\n" + PROSE, "\0\n" * 20],
)  # fmt: skip
def test_one_document_gets_no_note(tmp_path: Path, text: str):
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    assert not documents(path).notes
    (tmp_path / "a.md").write_text("\n".join(REVIEWS), encoding="utf-8")
    assert not documents(tmp_path / "a.md").notes
