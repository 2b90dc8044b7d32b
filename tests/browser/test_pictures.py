"""The dashboard's pictures in docs: `python -m tools.pictures` draws each of them, at the size that it has there."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import ROOT
from tools import pictures

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = ROOT / "docs"
MAX_BYTES = 400_000


def size(picture: Path) -> tuple[int, ...]:
    """Width and height of a PNG in pixels, from its first chunk."""
    return struct.unpack(">II", picture.read_bytes()[16:24])


def test_every_picture_of_the_dashboard_can_be_drawn_again(browser: Browser, tmp_path: Path):
    pictures.draw(browser, tmp_path)

    drawn = {picture.name: size(picture) for picture in tmp_path.glob("*.png")}
    assert drawn == {picture.name: size(picture) for picture in DOCS.glob("dashboard_*.png")}
    assert all(picture.stat().st_size < MAX_BYTES for picture in (*tmp_path.glob("*.png"), *DOCS.glob("*.png")))
