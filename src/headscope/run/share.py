"""Shares of a corpus: a study in parts, for instance by the jobs of a job array, which `Study.merge` joins."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.errors import StudyError

WHOLE = "all"
MAX_SHARES = 1_000_000
Share = tuple[int, int]
"""which share of the chunks, from 1, and how many there are"""


def parse_share(text: str) -> Share:
    """Return a share from its notation.

    >>> parse_share("3/16")
    (3, 16)
    """
    number, slash, total = text.partition("/")
    is_number = slash and all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, total))
    if not (is_number and 1 <= int(number) <= int(total) <= MAX_SHARES):
        raise StudyError(f"share is {text!r}: write NUMBER/TOTAL, for instance 3/16 for the third of sixteen")
    return int(number), int(total)


def check_limit(share: Share | None, limit: int | None) -> None:
    """Refuse a share of the first documents of a corpus: these are one chunk, which cannot be shared."""
    if share is not None and limit is not None:
        raise StudyError("a share is of a whole corpus: leave --limit out, or --share")


def format_share(share: Share | None) -> str:
    """Return the notation of a share; "all" without one."""
    return WHOLE if share is None else f"{share[0]}/{share[1]}"


def parse_shares(text: str) -> list[Share]:
    """Return the shares in a study, from the notation in its manifest; none for one of the whole corpus."""
    return [] if text == WHOLE else [parse_share(part) for part in text.split(",")]


def format_shares(shares: Iterable[Share]) -> str:
    """Return the notation of the shares of a study; "all" where no share is missing.

    >>> format_shares([(3, 3), (1, 3)]), format_shares([(2, 2), (1, 2)])
    ('1/3,3/3', 'all')
    """
    ordered = sorted(shares)
    return WHOLE if not ordered or len(ordered) == ordered[0][1] else ",".join(map(format_share, ordered))
