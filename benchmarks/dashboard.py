"""Size of an exported dashboard and time until it is drawn: `python benchmarks/dashboard.py [--points N ...] [--runs N]`.

For the committed dataset of 1,920 points and for synthetic ones (those of questions_at_scale.py). Drawn is when every plot of the
view that opens first is on the screen, in milliseconds since the browser began to load the file. Needs what make test-browser
installs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import questions_at_scale
from playwright.sync_api import Browser, sync_playwright

from orchestrator import ROOT
from orchestrator.reporting.dashboard import page as dashboard

COMMITTED = ROOT / "results" / "h200_main/specdec_long_ctx"
VIEWS = ("answer", "best", "lines", "roofline", "crossover", "compare", "table")


def drawn_ms(browser: Browser, url: str) -> float:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("body[data-drawn]")
    found: float = page.evaluate("performance.getEntriesByName('drawn-1')[0].startTime")
    context.close()
    return found


def measure(browser: Browser, name: str, path: Path, target: Path, runs: int) -> None:
    started = time.perf_counter()
    size = dashboard.export(path, {}, str(target))
    exported = time.perf_counter() - started
    print(f"{name}: {size / 1e6:.2f} MB, written in {exported:.1f} s; ms from opening to drawn, {runs} runs:")
    for view in VIEWS:
        times = sorted(drawn_ms(browser, f"{target.as_uri()}#view={view}") for _ in range(runs))
        print(f"  {view:10} median {statistics.median(times):6.0f}   all {' '.join(f'{t:.0f}' for t in times)}", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--points", type=int, nargs="*", default=[100_000])
    asked.add_argument("--runs", type=int, default=3)
    args = asked.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium; type make test-browser, which installs it")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        measure(browser, "1,920 points", COMMITTED, Path(folder) / "report.html", args.runs)
        for points in args.points:
            synthetic = Path(folder) / str(points)
            synthetic.mkdir()
            questions_at_scale.write(synthetic, points, points)
            measure(browser, f"{points:,} synthetic points", synthetic, Path(folder) / f"{points}.html", args.runs)
        browser.close()


if __name__ == "__main__":
    main()
