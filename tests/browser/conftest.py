"""Pages in headless chromium. A page that logs an error or sends a request to another server fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import open_views
from orchestrator.reporting.dashboard import data, packing
from orchestrator.reporting.dashboard import page as dashboard
from orchestrator.storage import folder
from orchestrator.storage.row import Row
from tests.helpers.datasets import ALL
from tests.helpers.shown import Shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OWN = ("file:", "data:", "blob:", "about:")


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
def pages(browser: Browser, exported: Callable[[Path], str]) -> Iterator[Callable[[Path], Shown]]:
    """The page of a dataset, opened once."""
    opened: dict[Path, Shown] = {}

    def page(path: Path) -> Shown:
        if path not in opened:
            context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True, color_scheme="light")
            opened[path] = Shown(context.new_page(), OWN).open(exported(path))
        return opened[path]

    yield page
    for one in opened.values():
        one.page.context.close()


@pytest.fixture
def at(pages: Callable[[Path], Shown]) -> Iterator[Callable[..., Shown]]:
    """A view of a dataset's page in the window where it is open already. The test fails as with `show`."""
    used: list[Shown] = []

    def go(path: Path, **state: str | list[str]) -> Shown:
        used.append(pages(path))
        return used[-1].go(**state)

    yield go
    assert [(one.errors, one.asked) for one in used] == [([], [])] * len(used)


@pytest.fixture(scope="session")
def everything() -> Dataset:
    """All committed datasets together, opened once for the page and for what it is compared with."""
    return open_views(ALL)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """The address of a dataset's page, made once."""
    made: dict[Path, str] = {}

    def address(path: Path) -> str:
        if path not in made:
            target = tmp_path_factory.mktemp("page") / "report.html"
            if path == ALL:
                table, header = data.rows_and_header(request.getfixturevalue("everything"), path)
                target.write_text(
                    dashboard.fill(packing.pack(table, {**header, "title": path.name, "path": str(path)}), None, path.name)
                )
            else:
                dashboard.export(path, {}, str(target))
            made[path] = target.as_uri()
        return made[path]

    return address


@pytest.fixture
def of_rows(tmp_path: Path) -> Callable[[Sequence[Row]], str]:
    """The address of a page of these rows."""

    def address(rows: Sequence[Row]) -> str:
        written = folder.FolderStore(str(tmp_path / "some"))
        written.add(rows)
        written.close()
        dashboard.export(tmp_path / "some", {}, str(tmp_path / "some.html"))
        return (tmp_path / "some.html").as_uri()

    return address
