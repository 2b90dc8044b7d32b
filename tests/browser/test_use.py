"""What a person does with the page, and datasets that have little to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.row import Row
from tests.helpers.datasets import MAIN
from tests.helpers.shown import Shown
from tests.helpers.timed_rows import made

Show = Callable[..., Shown]
Exported = Callable[[Path], str]
OfRows = Callable[[Sequence[Row]], str]
VIEWS = ("best", "lines", "roofline", "crossover", "compare", "table")
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"


def test_the_view_is_in_the_address(show: Show, exported: Exported):
    shown = show(exported(MAIN))
    shown.click('[id="f-s_qo-4"]')
    shown.choose("over", "fa2_tc")
    shown.choose("x", "batch_size")
    same = show(shown.page.url.partition("#")[0])
    same.do(lambda: same.page.goto(shown.page.url))
    assert same.charts() == shown.charts()

    before = shown.charts()
    shown.click("#tab-lines")
    shown.do(shown.page.go_back)
    assert shown.charts() == before


def test_hovering_and_clicking_a_cell_show_its_row_and_its_command(show: Show, exported: Exported):
    shown = show(exported(MAIN))
    box = shown.page.locator(".chart").first.bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown.page.mouse.move(*middle)
    shown.page.wait_for_selector(".tip .command")
    assert "mode=replay point=" in shown.text(".tip .command")

    shown.page.mouse.click(*middle)
    card = shown.text("#row")
    assert all(word in card for word in ("flashinfer_version", "run_id", "driver", "NVIDIA H200", "mode=replay point="))


def test_tooltips_say_what_columns_mean_in_the_table_and_on_a_card(show: Show, exported: Exported):
    shown = show(exported(MAIN), view="table")
    assert shown.page.get_attribute("th:has(#sort-median_us)", "title") == f"{COLUMNS['median_us'].meaning} Unit: µs."
    assert shown.page.get_attribute("legend:text-is('s_kv')", "title") == f"{COLUMNS['s_kv'].meaning} Unit: tokens."

    shown.page.locator("#rows button:text('show')").first.click()
    assert shown.page.get_attribute("#row dt:text-is('status')", "title") == COLUMNS["status"].meaning
    assert shown.page.get_attribute("#row dt:text-is('point')", "title") == COLUMNS["point_id"].meaning


def test_the_keyboard_reaches_views_filters_and_the_row_behind_a_number(show: Show, exported: Exported):
    shown = show(exported(MAIN))
    press = shown.page.keyboard.press
    shown.page.focus("#tab-best")
    shown.do(lambda: press("ArrowRight"))
    assert shown.page.get_attribute("#tab-lines", "aria-selected") == "true"
    shown.do(lambda: press("ArrowLeft"))

    shown.page.focus('[id="f-s_qo-8"]')
    shown.do(lambda: press("Space"))
    assert shown.page.get_attribute('[id="f-s_qo-8"]', "aria-pressed") == "true"
    assert shown.page.evaluate("document.activeElement.id") == "f-s_qo-8"

    shown.page.locator("summary").first.focus()
    press("Enter")
    shown.page.locator("details table button").first.focus()
    press("Enter")
    assert "mode=replay point=" in shown.text("#row")
    press("Escape")
    assert not shown.page.is_visible("#row")


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_the_page_is_dark_or_light_as_the_system_is_until_a_person_chooses(show: Show, exported: Exported, scheme: str, other: str):
    shown = show(exported(MAIN), color_scheme=scheme)
    grounds = []
    for _ in range(2):
        grounds.append(shown.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        shown.click("#theme")
    wanted = {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 26, 27)"}
    assert grounds == [wanted[scheme], wanted[other]]


def test_no_two_lines_differ_by_colour_alone(show: Show, exported: Exported):
    shown = show(exported(MAIN), view="lines")
    signs = shown.page.evaluate("""() => echarts.getInstanceByDom(document.querySelector('.chart')).getOption().series
        .filter(({ type }) => type === 'line').map(({ symbol, lineStyle }) => [symbol, String(lineStyle.type)])""")
    assert len({symbol for symbol, _ in signs}) == len({dash for _, dash in signs}) == len(signs) > 1


def test_text_of_a_dataset_stays_text(show: Show, of_rows: OfRows):
    rows = [made(HOSTILE, 10.0), made("b", 12.0), made("c", None, "failed", HOSTILE, s_kv=16384, model=HOSTILE)]
    url = of_rows(rows)
    for view in VIEWS:
        shown = show(url, view=view)
        assert shown.page.evaluate("[window.broken, document.images.length]") == [None, 0]
    assert HOSTILE in shown.text("#rows")
    shown.page.locator("#rows button:text('show')").last.click()
    assert shown.page.evaluate("[window.broken, document.images.length]") == [None, 0]
    assert HOSTILE in shown.text("#row")

    shown = show(url)
    failed, won = shown.page.locator(".chart").all()
    failed.hover(position={"x": 200, "y": 80})
    shown.page.wait_for_selector(".tip:has-text('none ok of 1')")
    assert HOSTILE in shown.text(".tip")
    won.hover(position={"x": 200, "y": 80})
    shown.page.wait_for_selector(f".tip:nth-child(n) .card:has-text('{HOSTILE[:9]}')")
    assert shown.page.evaluate("[window.broken, document.images.length]") == [None, 0]


FAILED = [made("a", None, "failed", "boom"), made("b", None, "unsupported", "needs: the SM100 family")]
NOT_OK = {
    "best": "No point in view is ok, so no backend is the fastest of any.",
    "lines": "No point in view is ok, so there is no time to draw.",
    "roofline": "No point in view is ok and has its FLOPs and bytes",
    "crossover": "paged_decode and paged_prefill has no ok point in view",
    "compare": "There is nothing to compare",
}


@pytest.mark.parametrize("view", NOT_OK)
def test_a_dataset_without_an_ok_point_says_what_became_of_them(show: Show, of_rows: OfRows, view: str):
    shown = show(of_rows(FAILED), view=view)

    assert NOT_OK[view] in shown.text()
    assert "boom" in shown.text() and "needs: the SM100 family" in shown.text()
    assert shown.charts() == []
    assert shown.text("#counts") == "2 points in view: 1 failed · 1 unsupported"


def test_a_lone_point_is_drawn_and_what_needs_two_says_so(show: Show, of_rows: OfRows):
    url = of_rows([made("a", 10.0)])
    (chart,) = show(url).charts()
    assert [cell["label"] for cell in chart["series"][0]["data"]] == ["a\n10"]
    (chart,) = show(url, view="lines").charts()
    assert [p["value"][1] for p in chart["series"][0]["data"]] == [10.0]
    assert NOT_OK["compare"] in show(url, view="compare").text()
    assert show(url, view="table").text("#count") == "1 to 1 of 1 rows"


def test_a_single_backend_has_no_margin_and_a_cell_without_ok_says_why(show: Show, of_rows: OfRows):
    (chart,) = show(of_rows([made("a", 10.0), made("a", 20.0, s_kv=16384), made("a", None, "oom", "no room", s_kv=32768)])).charts()

    assert [cell["label"] for cell in chart["series"][0]["data"]] == ["a\n10", "a\n20", "oom"]
    assert chart["series"][0]["data"][2]["words"] == "none ok of 1; 1 oom: no room"


def test_filters_that_leave_nothing_say_so(show: Show, exported: Exported):
    shown = show(exported(MAIN), **{"f.backend": "trtllm-gen"})
    assert NOT_OK["best"] in shown.text() and "SM100" in shown.text()
    shown.click("#tab-table")
    shown.do(lambda: (shown.page.fill("#q", "nowhere"), shown.page.press("#q", "Enter")))
    assert "No row fits the filters and the search." in shown.text()


def test_a_plot_of_very_many_points_is_fast_and_still_shows_each(show: Show, of_rows: OfRows):
    """8 backends of 3,200 points, a marker each: markers traced as one path would take minutes."""
    rate: dict[str, Any] = {"flops": 1e9, "bytes": 1e8, "tb_per_sec": 1.0}
    rows = [made(name, 10.0, **rate, s_kv=kv, tflops=5.0 + kv / 1e3) for name in "abcdefgh" for kv in range(1, 3201)]
    shown = show(of_rows(rows), view="roofline")
    seconds = shown.page.evaluate("performance.getEntriesByName('drawn-1')[0].startTime") / 1e3
    x, y = shown.page.evaluate("""() => {
        const place = document.querySelector(".chart"), box = place.getBoundingClientRect();
        const chart = echarts.getInstanceByDom(place);
        const [right, down] = chart.convertToPixel({ seriesIndex: 0 }, chart.getOption().series[0].data[1600]);
        return [box.x + right, box.y + down];
    }""")
    shown.page.mouse.click(x, y)

    assert seconds < 15
    assert "s_kv" in shown.text("#row") and "10 µs" in shown.text("#row")
