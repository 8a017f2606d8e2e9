"""Sphinx settings of the documentation site, which `make docs` builds in build/site."""

from __future__ import annotations

import re
from importlib.metadata import version as installed
from typing import Any

project = "llmir"
author = "the llmir authors"
version = release = installed("llmir")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["README.md"]  # the index of the pages as GitHub shows them
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

default_role = "code"  # docstrings mark names with single backticks
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

smartquotes = False  # which would turn `--option` into a dash

html_theme = "furo"
html_title = "llmir"
html_show_copyright = False
html_theme_options = {"source_edit_link": ""}


SITE_PAGES = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changes.md"}


def adapt_links(app: Any, name: str, text: list[str]) -> None:
    """Lead links to files that the site does not contain to their pages, or replace them by their labels."""
    up = name.count("/") + 1  # levels from the page to the root of the project
    for file, page in SITE_PAGES.items():
        text[0] = text[0].replace("](" + "../" * up + file, f"](/{page}")
    text[0] = re.sub(rf"(?<!!)\[([^\]]+)\]\((?:\.\./){{{up}}}[^)]*\)", r"\1", text[0])


def adapt_included_links(app: Any, path: Any, name: str, text: list[str]) -> None:
    """Do the same for files outside docs/ that a page includes."""
    text[0] = re.sub(r"\]\(docs/README\.md(#[^)]*)?\)", "](docs/index.md)", text[0])
    text[0] = re.sub(r"\[([^\]]+)\]\((?!docs/|#|https?:)[^)]*\)", r"\1", text[0])


def escape_asterisks(app: Any, ctx: Any, lines: list[str]) -> None:
    """Mark the asterisks of help texts, such as `*.csv`, as plain characters."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Any) -> None:
    """Register the handlers above."""
    app.connect("source-read", adapt_links)
    app.connect("include-read", adapt_included_links)
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", escape_asterisks)
