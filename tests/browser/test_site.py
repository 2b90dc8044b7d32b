"""A site in a browser: from a disk, and below a path of a web server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest

from orchestrator.reporting.site.build import build
from tests.helpers.datasets import RESULTS
from tests.helpers.shown import Shown

Show = Callable[..., Shown]
NAME = "h200_engines-flex_attention"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a site below it."""
    found = tmp_path_factory.mktemp("pages")
    build(f"{RESULTS}/h200_engines/[fv]l*n.parquet", {}, str(found / "some site"))
    return found


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(root: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}/"
        found.shutdown()


@pytest.mark.parametrize(
    ("place", "scheme", "back"), [("disk", "light", "rgb(255, 255, 255)"), ("server", "dark", "rgb(24, 26, 27)")]
)
def test_every_page_works_from_a_disk_and_below_a_path_of_a_server(
    place: str, scheme: str, back: str, root: Path, server: str, show: Show
):
    base = server if place == "server" else root.as_uri() + "/"
    shown = show(f"{base}some%20site/datasets/{NAME}.html", own=(base,), color_scheme=scheme)
    assert "fa2_tc" in str(shown.charts())

    page = shown.page
    page.click("text=all datasets")
    page.wait_for_selector("h2:text('Datasets')")
    links = page.eval_on_selector_all("a", "all => all.map((one) => one.href)")
    assert [link for link in links if link.endswith(".html") and "/history/" in link]
    for link in links:
        if link.endswith(".html"):
            page.goto(link)
            assert page.inner_text("h1")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == back
    with page.expect_download() as found:
        page.goto(f"{base}some%20site/index.html")
        page.evaluate(f"document.querySelector('a[href=\"data/{NAME}.parquet\"]').setAttribute('download', '')")
        page.click(f'a[href="data/{NAME}.parquet"]')
    assert len(pd.read_parquet(found.value.path())) == 24
