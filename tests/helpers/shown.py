"""A dataset's page in headless chromium."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHARTS = """() => [...document.querySelectorAll('.chart')].map((place) => {
  const { series, xAxis, yAxis } = echarts.getInstanceByDom(place).getOption();
  const plain = (point) => {
    if (Array.isArray(point)) return { value: point.slice(0, 2), row: point[2] };
    const { value, row, label_, words, speedup } = point;
    return { value, row, label: label_, words, speedup };
  };
  return { title: place.closest('figure').querySelector('.title').textContent, x: xAxis[0].data, y: yAxis[0].data,
    series: series.map(({ name, type, color, symbol, lineStyle, data }) => (
      { name, type, color, symbol, dash: String(lineStyle?.type), data: data.map(plain) })) };
})"""


class Shown:
    """One page. `drawn` counts the drawings that are on its screen."""

    def __init__(self, page: Page, own: tuple[str, ...]) -> None:
        self.page, self.errors, self.asked = page, [], []  # type: Page, list[str], list[str]
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(own) else self.asked.append(request.url))

    def open(self, url: str, **state: str | list[str]) -> Shown:
        self.page.goto("about:blank")
        self.page.goto(f"{url}#{urlencode(state, doseq=True)}" if state else url)
        self.page.wait_for_selector("body[data-drawn]")
        return self

    def go(self, **state: str | list[str]) -> Shown:
        """Another view of the page that is open."""
        hash_ = f"#{urlencode(state, doseq=True)}" if state else ""  # as the browser has it
        if self.page.evaluate("location.hash") != hash_:
            self.do(lambda: self.page.evaluate("hash => { location.hash = hash }", hash_))
        return self

    def do(self, action: Callable[[], object]) -> None:
        """What a person does, until the page has drawn again."""
        before = self.drawn
        action()
        until = time.monotonic() + 10
        while self.drawn == before:
            assert time.monotonic() < until, "the page did not draw again"
            self.page.wait_for_timeout(10)

    @property
    def drawn(self) -> int:
        return int(self.page.get_attribute("body", "data-drawn") or 0)

    def click(self, selector: str) -> None:
        self.do(lambda: self.page.click(selector))

    def choose(self, name: str, value: str) -> None:
        self.do(lambda: self.page.select_option(f"#{name}", value))

    def charts(self) -> list[dict[str, Any]]:
        """Title, axes and series of every plot, after every plot was asked for."""
        while self.page.query_selector("#more"):
            self.click("#more")
        found: list[dict[str, Any]] = self.page.evaluate(CHARTS)
        return found

    def text(self, selector: str = "#view") -> str:
        return self.page.inner_text(selector)

    def table(self, selector: str) -> list[list[str]]:
        """The cells of a table, also of one that is folded away."""
        rows = "rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
        found: list[list[str]] = self.page.locator(f"{selector} tbody tr").evaluate_all(rows)
        return found

    def saved(self, selector: str, folder: Path) -> Path:
        with self.page.expect_download() as found:
            self.page.click(selector)
        found.value.save_as(folder / found.value.suggested_filename)
        return folder / found.value.suggested_filename
