"""python -m tools.pictures: draws the dashboard's pictures in docs/ again, in Debian's chromium (requirements-browser.txt)."""

from __future__ import annotations

import shutil
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from orchestrator import ROOT
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.questions.deployments import HERE, parts
from orchestrator.reporting.dashboard import page as dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATASET = ROOT / "results" / "h200_main/servers"
NAME, SERVER = "dashboard_best", {"model": "llama_3_1_70b", "tp": 8, "kv_dtype": "fp8_e4m3"}
HEADER = 33  # bytes of a PNG before its second chunk


def main(folder: str = str(ROOT / "docs")) -> int:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        draw(browser, Path(folder))
        browser.close()
    return 0


def draw(browser: Browser, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.html"
        dashboard.export(DATASET, {}, str(report))
        shown = browser.new_page(viewport={"width": 1200, "height": 960}, color_scheme="light")
        shown.goto(f"{report.as_uri()}#{urlencode({f'f.{name}': value for name, value in SERVER.items()})}")
        shown.wait_for_selector("body[data-drawn]")
        drawn = shown.screenshot(animations="disabled")
        data = b"iTXt" + b"Description\0\0\0\0\0" + answers().encode()  # a chunk with a text: https://www.w3.org/TR/png/#11iTXt
        chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
        (folder / f"{NAME}.png").write_bytes(drawn[:HEADER] + chunk + drawn[HEADER:])
        shown.close()


def answers() -> str:
    """What the picture shows as text, which lies in its file too: a test finds a picture of other answers."""
    found = parts(open_views(DATASET, where=SERVER))
    return "\n".join(f"{part.who}, {part.what}: {part.answer.words}" for part in found if part.who != HERE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
