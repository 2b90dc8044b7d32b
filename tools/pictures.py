"""python -m tools.pictures: draws the dashboard's pictures in docs/ again, in Debian's chromium (requirements-browser.txt)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from orchestrator import ROOT
from orchestrator.reporting.dashboard import page as dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATASET = ROOT / "results" / "h200_main/specdec_long_ctx"
NAME, CHOSEN = "dashboard_best", {"f.kv_dtype": "fp8_e4m3"}


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
        shown.goto(f"{report.as_uri()}#{urlencode(CHOSEN)}")
        shown.wait_for_selector("body[data-drawn]")
        shown.screenshot(path=folder / f"{NAME}.png", animations="disabled")
        shown.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
