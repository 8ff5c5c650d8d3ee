"""What every page of ours shares: its parts as text, data it can carry, and a policy that lets nothing else run.

Model names, tokens and texts are other people's. The templates escape all of it, scripts get their data as JSON that
cannot end its element, and a content security policy allows the page's one script only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def environment() -> Environment:
    """Templates that escape what they are given, fail where something is missing, and may include each other."""
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(asset)
    )


def embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that no HTML parser takes for anything else.

    >>> print(embedded({"name": "</script>"}))
    {"name":"\\u003c/script\\u003e"}
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # U+2028 and U+2029 are escaped already, being no ASCII
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def slug(text: str) -> str:
    """A piece of a file name or address made of a name.

    >>> slug("6a"), slug("/models/BERT base"), slug("<>")
    ('6a', 'models-BERT-base', 'unnamed')
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:80] or "unnamed"


def policy(script: str) -> str:
    """The content security policy of a page with this one script: no network, nothing injected runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def asset(*names: str) -> str:
    """Parts of a page, one after the other."""
    return "\n".join(files("headscope.page").joinpath(name).read_text(encoding="utf-8") for name in names)


def whole(text: str) -> str:
    """The text with halves of surrogate pairs replaced, which some tokens and documents hold and no file can."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
