"""What the classic segmenters see of a sentence: the stems of its words, less those that say nothing of a subject."""

from __future__ import annotations

import re

import numpy as np

from classics.porter import stem
from headscope.array_types import Ints

LETTERS = re.compile(r"[^\W\d_]{2,}")
"""A word is a run of letters; a single one is mostly what "'s" and "n't" leave behind, or an initial."""

LITTLE = """
    the an this that these those such same other another each every either neither both all any some no none own
    much many more most few fewer less least several enough only else first last next

    he him his himself she her hers herself it its itself they them their theirs themselves one ones oneself who whom
    whose which what whatever whichever whoever somebody someone something anybody anyone anything nobody nothing
    everybody everyone everything

    am is are was were be been being do does did doing done have has had having can could may might must shall should
    will would ought need cannot don didn doesn hadn hasn haven isn aren wasn weren won wouldn couldn shouldn mustn
    ain ll ve re get gets got gotten getting go goes going gone went come comes came coming make makes made making
    take takes took taken taking give gives gave given giving say says said saying see sees saw seen seeing know knows
    knew known knowing think thinks thought want wants wanted seem seems seemed let lets put use used

    and or but nor so yet if unless because since while whereas although though whether than as until till once

    about above across after against along amid among amongst around at before behind below beneath beside besides
    between beyond by despite down during except for from in inside into like near of off on onto out outside over
    past per through throughout to toward towards under underneath up upon via with within without

    not very too also just even still again ever never always often sometimes usually perhaps maybe rather quite
    almost nearly already soon now then here there where when why how however therefore thus hence indeed instead
    otherwise meanwhile moreover furthermore nevertheless well back away together apart far long ago later
    sooner yes oh please really actually certainly probably possibly simply especially particularly

    way ways thing things lot kind sort bit mr mrs ms dr etc two three
"""
STOP_WORDS = frozenset(LITTLE.split())
"""Of the pronouns, "we" and "you" and theirs stay words: whether a text speaks of them tells it from others, and every
method that is measured here does better for it."""


def stems(sentence: str) -> list[str]:
    """The stems of a sentence, in order.

    >>> stems("The banks' recovery wasn't a flash in the pan.")
    ['bank', 'recoveri', 'flash', 'pan']
    """
    return [stem(word) for word in LETTERS.findall(sentence.lower()) if word not in STOP_WORDS]


def numbered(sentences: list[str]) -> list[Ints]:
    """The stems of every sentence as numbers 0, 1, … in the order in which the text brings them up."""
    known: dict[str, int] = {}
    return [
        np.array([known.setdefault(each, len(known)) for each in stems(sentence)], dtype=np.int64)
        for sentence in sentences
    ]


def counted(sentences: list[str]) -> Ints:
    """How often every sentence (row) has every stem (column)."""
    rows = numbered(sentences)
    stems_in_all = 1 + max((int(row.max()) for row in rows if len(row)), default=-1)
    return np.array([np.bincount(row, minlength=stems_in_all) for row in rows]).reshape(len(rows), stems_in_all)


def check(count: int | None, n: int) -> None:
    """Refuses to make of n sentences a number of segments that they cannot make."""
    if count is not None and not 1 <= count <= max(n, 1):
        raise ValueError(f"{n} sentences cannot make {count} segments")
