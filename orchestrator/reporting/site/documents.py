"""The documents of a site: each Markdown file of a folder as a page, with its links to the others."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.reporting.site.datasets import Page, joined, link
from orchestrator.untrusted.files import read_text
from orchestrator.untrusted.text import for_markdown_cell

LINK = re.compile(r"!?\[((?:`[^`]*`|[^`\]])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def texts(folder: str | None) -> dict[str, str]:
    """The Markdown files below a folder, by their paths in it. Raises UserError if there are none."""
    if folder is None:
        return {}
    found = {path.relative_to(folder).as_posix(): read_text(path, "document") for path in sorted(Path(folder).rglob("*.md"))}
    if not found:
        raise UserError(f"document={folder!r}: mode=site takes a folder with Markdown files, such as document=docs")
    return found


def pages(found: Mapping[str, str], code: str, page: Page) -> list[list[str]]:
    """Writes a page for each text. Returns the cells of the index's lines: a link to each, and how its text begins."""
    cells = []
    for path, text in found.items():
        title, _, rest = text.partition("\n")
        title, key = title.lstrip("# "), joined([code, *found, text])
        body = LINK.sub(partial(_link, path=path, found=found), rest)
        page(_address(path), title, key, lambda body=body: (body, {}))  # type: ignore[misc]
        begins = LINK.sub(r"\1", rest.strip().partition("\n")[0])
        cells.append([link(_address(path), title), for_markdown_cell(begins)])
    return cells


def _address(path: str) -> str:
    return f"documents/{path.removesuffix('.md').replace('/', '-')}.html"


def _link(link: re.Match[str], path: str, found: Mapping[str, str]) -> str:
    """A link to another page of the site, or elsewhere on the web; of any other file, or of a picture, its text alone."""
    words, to, section = link[1], link[2], link[3] or ""
    if link[0].startswith("!"):
        return words
    if "://" in to or not to:
        return link[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(path), to))
    return f"[{words}]({Path(_address(there)).name}{section})" if there in found else words
