"""How every page is made: one file that needs no other, in which all that comes from outside is text."""

from __future__ import annotations

import functools
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

from vitrail import __version__, visuals
from vitrail.tasks.report_part import page_folders
from vitrail.text import shown

VISUALS = Path(visuals.__path__[0])  # has the template of charts, and the styles of every page


def render(template: str, **values: Any) -> str:
    """The template as HTML. Names of files and classes are text, whatever they contain."""
    return environment().get_template(template).render(values)


@functools.cache
def environment() -> Environment:
    """With every template that was read, as a compiled program: making them takes longer than rendering."""
    return Environment(
        loader=ChoiceLoader([PackageLoader("vitrail.report"), FileSystemLoader([str(VISUALS), *page_folders()])]),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def made() -> str:
    """By whom and when, for the foot of the page."""
    return f"vitrail {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"


def _printable(value: Any) -> Any:
    """Without what cannot be written as UTF-8 or would turn the text around. HTML that macros made stays as it is."""
    return shown(value) if type(value) is str else value
