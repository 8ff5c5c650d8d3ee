"""Mutate the bytes of valid files."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = st.sampled_from(
    [
        *(
            b'{"text": ',
            b'"a"',
            b"}",
            b"\n",
            b"\r",
            b'"',
            b",",
            b"text\n",
            b"\xe9",
            b"\0",
            b"[" * 2000,
            b"1e999",
            b"NaN",
        ),
        *(b"\x1f\x8b\x08", b"PAR1", b"\\ud800", b"\xed\xa0\x80", b"\xff\xfe", b"\xef\xbb\xbf", "é😀".encode()),
        b'{"text": "\\u0000"}\n',
    ]
)


@st.composite
def mutate(draw: st.DrawFn, valid: bytes) -> bytes:
    raw = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(raw))] * 2)))
        way = draw(st.sampled_from(["flip", "cut", "repeat", "insert", "drop"]))
        if way == "flip" and at < len(raw):
            raw[at] ^= draw(st.integers(1, 255))
        elif way == "cut":
            del raw[at:]
        elif way == "repeat":
            raw[at:at] = raw[at:end]
        elif way == "insert":
            raw[at:at] = draw(st.one_of(st.binary(max_size=20), PIECES))
        else:
            del raw[at:end]
    return bytes(raw)
