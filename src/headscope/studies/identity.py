"""What must not change while a study is under way (`Job.identity`), compared."""

from __future__ import annotations

from typing import Any

NAMED = 3
"""files that a message names"""


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed between two identities, in words."""
    words = [
        f"{name} ({before.get(name)} before, {value} now)"
        for name, value in now.items()
        if name != "texts" and before.get(name) != value
    ]
    return words + _other_texts(list(before.get("texts", [])), list(now.get("texts", [])))


def _other_texts(before: list[str], now: list[str]) -> list[str]:
    if before == now:
        return []
    gone, new = [name for name in before if name not in set(now)], [name for name in now if name not in set(before)]
    if not gone and not new:
        return ["texts (the same files in another order)"]
    said = [f"{_named(names)} {what}" for names, what in ((gone, "no longer there"), (new, "new")) if names]
    return [f"texts ({'; '.join(said)})"]


def _named(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
