"""A page of a dataset in headless chromium, and what it drew. A page that logs an error or asks for anything fails its test."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from orchestrator import store
from orchestrator.dashboard import page as dashboard
from orchestrator.row import Row

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OWN = ("file:", "data:", "blob:", "about:")
CHARTS = """() => [...document.querySelectorAll('.chart')].map((place) => {
  const { series, xAxis, yAxis } = echarts.getInstanceByDom(place).getOption();
  const plain = (point) => {
    if (Array.isArray(point)) return { value: point.slice(0, 2), row: point[2] };
    const { value, row, label_, words, speedup } = point;
    return { value, row, label: label_, words, speedup };
  };
  return { title: place.closest('figure').querySelector('figcaption').textContent, x: xAxis[0].data, y: yAxis[0].data,
    series: series.map(({ name, type, data }) => ({ name, type, data: data.map(plain) })) };
})"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


class Shown:
    """One page. `drawn` counts the drawings that are on its screen."""

    def __init__(self, page: Page, own: tuple[str, ...]) -> None:
        self.page, self.errors, self.asked = page, [], []  # type: Page, list[str], list[str]
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(own) else self.asked.append(request.url))

    def open(self, url: str, **state: str | list[str]) -> Shown:
        self.page.goto("about:blank")
        self.page.goto(f"{url}#{urlencode(state, doseq=True)}")
        self.page.wait_for_selector("body[data-drawn]")
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

    def saved(self, selector: str, folder: Path) -> Path:
        with self.page.expect_download() as found:
            self.page.click(selector)
        found.value.save_as(folder / found.value.suggested_filename)
        return folder / found.value.suggested_filename


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is not installed: type make test-browser, which installs requirements-browser.txt")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("there is no chromium: type apt-get install -y chromium as root")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Shown]]:
    """Opens a page in a window of its own. The test fails where it logged an error, or asked for more than itself."""
    shown: list[Shown] = []

    def open_(url: str, *, own: tuple[str, ...] = OWN, color_scheme: Any = "light", **state: str | list[str]) -> Shown:
        context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True, color_scheme=color_scheme)
        shown.append(Shown(context.new_page(), (*OWN, *own)))
        return shown[-1].open(url, **state)

    yield open_
    for one in shown:
        one.page.context.close()
    assert [(one.errors, one.asked) for one in shown] == [([], [])] * len(shown)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """The address of a dataset's page, made once."""
    made: dict[Path, str] = {}

    def address(path: Path) -> str:
        if path not in made:
            target = tmp_path_factory.mktemp("page") / "report.html"
            dashboard.export(path, {}, str(target))
            made[path] = target.as_uri()
        return made[path]

    return address


@pytest.fixture
def of_rows(tmp_path: Path) -> Callable[[Sequence[Row]], str]:
    """The address of a page of these rows."""

    def address(rows: Sequence[Row]) -> str:
        written = store.Store(str(tmp_path / "some"))
        written.add(rows)
        written.close()
        dashboard.export(tmp_path / "some", {}, str(tmp_path / "some.html"))
        return (tmp_path / "some.html").as_uri()

    return address
