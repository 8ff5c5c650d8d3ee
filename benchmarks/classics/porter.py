"""Word stems after Porter, so that "recovered" and "recovering" count as the same word.

M. F. Porter 1980, An algorithm for suffix stripping, Program 14(3). The authors of C99 and of Utiyama & Isahara's
method stem with it, so a lighter one would weaken them. In each step the longest suffix that fits decides alone: if
its condition does not hold, the word stays as it is.
"""

from __future__ import annotations

from functools import lru_cache

VOWELS = "aeiou"

PLURALS = {"sses": "ss", "ies": "i", "ss": "ss", "s": ""}
DERIVED = {  # step 2, where the rest has a measure above 0
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "abli": "able", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
}  # fmt: skip
SHORTER = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}  # step 3
ENDINGS = (  # step 4, where the rest has a measure above 1
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of a word in small letters; words of one or two letters have none.

    >>> [stem(word) for word in ("recovered", "recovering", "relational", "ponies", "hopping", "sky")]
    ['recov', 'recov', 'relat', 'poni', 'hop', 'sky']
    """
    if len(word) < 3:
        return word
    word = _replaced(word, PLURALS, least=-1)
    word = _past(word)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, DERIVED)
    word = _replaced(word, SHORTER)
    word = _without_ending(word)
    return _tidied(word)


def _shape(word: str) -> str:
    """v for every vowel and c for every consonant; a y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        shape += "v" if letter in VOWELS or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant: roughly, the syllables after the first letters."""
    return _shape(word).count("vc")


def _short(word: str) -> bool:
    """Ends in consonant, vowel, consonant, as "hop" does, which was "hope" before -ing; w, x and y do not count."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word).endswith("c")


def _replaced(word: str, endings: dict[str, str], least: int = 0) -> str:
    """The word with its longest ending exchanged, where the rest has a measure above `least`."""
    fitting = max((ending for ending in endings if word.endswith(ending)), key=len, default=None)
    if fitting is None or _measure(rest := word[: -len(fitting)]) <= least:
        return word
    return rest + endings[fitting]


def _past(word: str) -> str:
    """Without -ed and -ing, and with the e or the single consonant that the word had before them."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        rest = word[: -len(ending)]
        if word.endswith(ending):
            if "v" not in _shape(rest):
                return word
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if _doubled(rest) and rest[-1] not in "lsz":
                return rest[:-1]
            return rest + "e" if _measure(rest) == 1 and _short(rest) else rest
    return word


def _without_ending(word: str) -> str:
    fitting = max((ending for ending in ENDINGS if word.endswith(ending)), key=len, default=None)
    if fitting is None or _measure(rest := word[: -len(fitting)]) < 2:
        return word
    return word if fitting == "ion" and not rest.endswith(("s", "t")) else rest


def _tidied(word: str) -> str:
    """Without a last e, and with one l for two, where enough is left."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
