"""Building blocks of all pages: templates, style sheets and scripts, embedded data, and the content security policy.

Model names, tokens and texts come from outside and are not trusted. The templates escape all of them, scripts get their
data as JSON that cannot end its element, and a content security policy allows the page's one script only.
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


def make_environment() -> Environment:
    """Return an environment for templates that escape all values, fail on undefined ones, and may include others."""
    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(read_assets),
    )


def embed_json(data: Mapping[str, Any]) -> Markup:
    """Return data as JSON that is safe inside a script element.

    >>> print(embed_json({"name": "</script>"}))
    {"name":"\\u003c/script\\u003e"}
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # U+2028 and U+2029 are escaped already, as they are not ASCII
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def make_slug(text: str) -> str:
    """Return a name as part of a file name or address.

    >>> make_slug("6a"), make_slug("/models/BERT base"), make_slug("<>")
    ('6a', 'models-BERT-base', 'unnamed')
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:80] or "unnamed"


def build_policy(script: str) -> str:
    """Return the content security policy of a page with this one script: no network, and injected code does not run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def read_assets(*names: str) -> str:
    """Return files of this package, one after the other."""
    return "\n".join(files("headscope.page").joinpath(name).read_text(encoding="utf-8") for name in names)


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which some tokens and documents contain but which cannot be encoded in a file."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
