"""Text from files and datasets, made harmless for the medium that shows it: a terminal, Markdown, CSV or JSON.

What is escaped stays readable: a control character becomes `\\x1b`, and the rest of the text is as it was.
(The dashboard sets such text as text of the document, never as HTML; an SVG is drawn from what a terminal would show.)
"""

from __future__ import annotations

import re

# C0 without tab and line feed, DEL and C1, which a terminal obeys; what reorders or hides text; halves of surrogate pairs,
# which cannot be printed.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_STARTS_A_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_CODE = re.compile(r"((?<![\\`])`(?!`)[^`]+`(?!`))")  # between single backticks, where Markdown takes everything as it is
_CREDENTIALS = re.compile(r"://[^/\s@'\"]+@")
_FORMULA = re.compile(r"[=+\-@\t]")
_NUMBER = re.compile(r"[-+][\d.,]+(e[-+]?\d+)?%?")
_ENTITY = re.compile(r"&(?=#?\w+;)")


def without_credentials(text: str) -> str:
    """The text with the user and the password of each URL as ***."""
    return _CREDENTIALS.sub("://***@", text)


def for_terminal(text: str) -> str:
    """The text with every character that a terminal would obey, or that hides text, in Python's escaped form."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def for_line(text: str) -> str:
    """As `for_terminal`, on one line."""
    return " ".join(for_terminal(text).split("\n"))


def for_markdown(text: str) -> str:
    """Text for one line of Markdown outside a table: no HTML, no link and no picture comes of it. Code in `backticks` stays."""
    parts = _CODE.split(for_line(text))
    parts[::2] = [_STARTS_A_TAG.sub("&lt;", _ENTITY.sub("&amp;", part)).replace("](", "]\\(") for part in parts[::2]]
    return "".join(parts)


def for_markdown_cell(text: str) -> str:
    """As `for_markdown`, in a cell of a table, which a bar would end."""
    return for_markdown(text).replace("|", "\\|")


def for_csv(cell: object) -> object:
    """A cell of a CSV file on one line; an apostrophe stands before text that a spreadsheet would run as a formula."""
    if not isinstance(cell, str):
        return cell
    line = for_line(cell)
    return f"'{line}" if _FORMULA.match(line) and not _NUMBER.fullmatch(line) else line


def for_json(text: str) -> str:
    """A text in JSON, in which what a terminal would obey is escaped as JSON has it."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
