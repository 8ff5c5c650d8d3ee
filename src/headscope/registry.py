"""Functions that result objects call although their package comes later in the order of imports.

A result, such as a `Study`, is drawn by a page, and the page imports the class of the result. So that packages do not
import each other, a result calls the function by its name here, and it is imported then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

MODULES = {
    "draw": "headscope.figures",
    "draw_comparison_figure": "headscope.figures.comparison",
    "render_comparison_card": "headscope.page.notebook",
    "render_comparison_page": "headscope.page.comparison",
    "render_example": "headscope.page.examples",
    "render_explorer": "headscope.page.explorer",
    "render_reading_frame": "headscope.page.notebook",
    "render_segmentation_frame": "headscope.page.notebook",
    "render_segmentation_page": "headscope.page.segmentation",
    "render_study_card": "headscope.page.notebook",
    "segment_reading": "headscope.segmentation.fine",
    "show_progress": "headscope.cli.display.console",
    "show_study_progress": "headscope.cli.display.console",
    "write_comparison": "headscope.output_folder",
    "write_page": "headscope.output_folder",
    "write_report": "headscope.output_folder",
}


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Import a function by its name in `MODULES` and call it."""
    return getattr(import_module(MODULES[name]), name)(*arguments, **options)


@contextmanager
def open_progress(
    progress: bool | Callable[..., None] | None, display: str = "show_progress"
) -> Iterator[Callable[..., None] | None]:
    """Open what an argument `progress` asks for: with True a display on stderr, else the function given, or None.

    Args:
        progress: The argument.
        display: Name of the function in `MODULES` that shows progress.
    """
    if progress is True:
        with call(display, quiet=False) as on_progress:
            yield on_progress
    else:
        yield progress or None
