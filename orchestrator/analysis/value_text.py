"""The value of a column as one text, whatever read it: pandas makes floats of whole numbers if the column has gaps."""

from __future__ import annotations


def text_of(value: object, nothing: str = "") -> str:
    """A value of a row as text; `nothing` for one that is missing."""
    if value is None or value != value:  # noqa: PLR0124  # NaN, as pandas reads null
        return nothing
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
