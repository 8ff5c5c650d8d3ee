"""Check that relative links, images and anchors in the Markdown pages of the repository resolve."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """List the anchors that GitHub gives to the headings of a page."""
    found: dict[str, int] = {}
    names = set()
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        again = found.get(slug, 0)
        found[slug] = again + 1
        names.add(f"{slug}-{again}" if again else slug)
    return frozenset(names | set(re.findall(r"\b(?:id|name)=\"([^\"]+)\"", text)))


def problems(page: Path) -> list[str]:
    """Name every link of a page that leads nowhere."""
    wrong = []
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in (first or second for first, second in LINK.findall(text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            wrong.append(f"{page.relative_to(ROOT)}: {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            wrong.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    return wrong


def main() -> int:
    """Print what is wrong, and return the exit status."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "fuzz").glob("*.md"))]
    wrong = [line for page in pages for line in problems(page)]
    print("\n".join(wrong) if wrong else f"{len(pages)} pages: every relative link resolves")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
