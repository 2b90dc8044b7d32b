"""What a person does with the page, and datasets that have little to show."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.row import Row
from tests.helpers.datasets import MAIN
from tests.helpers.shown import Shown
from tests.helpers.timed_rows import made

Show = At = Callable[..., Shown]
Exported = Callable[[Path], str]
OfRows = Callable[[Sequence[Row]], str]
VIEWS = ("answer", "best", "lines", "roofline", "crossover", "compare", "table")
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"


def test_the_view_is_in_the_address(show: Show, at: At, exported: Exported):
    shown = at(MAIN, view="best")
    shown.click('[id="f-s_qo-4"]')
    shown.choose("over", "fa2_tc")
    shown.choose("x", "batch_size")
    same = show(shown.page.url)
    assert same.charts() == shown.charts()

    before = shown.charts()
    shown.click("#tab-lines")
    shown.do(shown.page.go_back)
    assert shown.charts() == before


def test_hovering_and_clicking_a_cell_show_its_workload_and_its_command(at: At):
    shown = at(MAIN)
    box = shown.page.locator(".chart").first.bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown.page.mouse.move(*middle)
    shown.page.wait_for_selector(".tip .ranking")
    assert "over the fastest" in shown.text(".tip") and "NVIDIA H200" in shown.text(".tip")

    shown.page.mouse.click(*middle)
    assert "mode=replay point=" in shown.text("#row")
    shown.page.click("#row .provenance summary")
    assert all(word in shown.text("#row") for word in ("flashinfer_version", "run_id", "driver", "NVIDIA H200"))

    shown.page.locator("#row .ranking button").nth(1).click()  # the next backend of the shape
    assert shown.text("#row h3").split()[0] == shown.text("#row tr.chosen button").split()[0]
    shown.page.click("#close")


def test_tooltips_say_what_columns_mean_in_the_table_and_on_a_card(at: At):
    shown = at(MAIN, view="table")
    assert shown.page.get_attribute("th:has(#sort-median_us)", "title") == f"{COLUMNS['median_us'].meaning} Unit: µs."
    assert shown.page.get_attribute("legend:text-is('s_kv')", "title") == f"{COLUMNS['s_kv'].meaning} Unit: tokens."

    shown.page.locator("#rows button:text('show')").first.click()
    assert shown.page.get_attribute("#row dt:text-is('status')", "title") == COLUMNS["status"].meaning
    assert shown.page.get_attribute("#row strong", "title") == COLUMNS["point_id"].meaning
    shown.page.click("#close")


def test_the_keyboard_reaches_views_filters_and_the_row_behind_a_number(at: At):
    shown = at(MAIN)
    press = shown.page.keyboard.press
    shown.page.focus("#tab-answer")
    shown.do(lambda: press("ArrowRight"))
    assert shown.page.get_attribute("#tab-best", "aria-selected") == "true"
    shown.do(lambda: press("ArrowLeft"))

    shown.page.focus('[id="f-s_qo-8"]')
    shown.do(lambda: press("Space"))
    assert shown.page.get_attribute('[id="f-s_qo-8"]', "aria-pressed") == "true"
    assert shown.page.evaluate("document.activeElement.id") == "f-s_qo-8"

    shown.page.locator(".panel summary").first.focus()
    press("Enter")
    shown.page.locator(".panel details table button").first.focus()
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


def test_no_two_lines_differ_by_colour_alone_nor_share_a_colour(at: At):
    charts = at(MAIN, view="lines", metric="median_us").charts()
    lines = [series for series in charts[0]["series"] if series["type"] == "line"]
    signs = at(MAIN, view="lines", metric="median_us").page.evaluate("""() =>
        echarts.getInstanceByDom(document.querySelector('.chart')).getOption().series
        .filter(({ type }) => type === 'line').map(({ symbol, lineStyle, color }) => [symbol, String(lineStyle.type), color])""")

    assert all(len(set(of_one_kind)) == len(lines) > 1 for of_one_kind in zip(*signs, strict=True))
    of_backend = {
        (s["name"].partition("(")[0], s["color"], s["symbol"]) for c in charts for s in c["series"] if s["type"] == "line"
    }
    assert len({name for name, *_ in of_backend}) == len(of_backend)  # the same in every plot


def test_two_devices_share_a_plot_and_are_told_apart(show: Show, of_rows: OfRows):
    """Each over the fastest of its own GPU."""
    times = {("a", "H100"): (20.0, 40.0), ("b", "H100"): (30.0, 50.0), ("a", "H200"): (10.0, 30.0), ("b", "H200"): (15.0, 25.0)}
    rows = [
        made(name, us, device_name=device, cluster=f"of_{device}", s_kv=kv)
        for (name, device), both in times.items()
        for kv, us in zip((8192, 16384), both, strict=True)
    ]
    shown = show(of_rows(rows), view="lines", top="all")
    (chart,) = shown.charts()
    lines = [s for s in chart["series"] if s["type"] == "line"]
    drawn = {(s["name"], s["dash"]): [point["value"][1] for point in s["data"]] for s in lines}
    least = {"H100": (20, 40), "H200": (10, 25)}
    dashes = {"H100": "solid", "H200": "8,4"}
    assert drawn == {
        (name, dashes[device]): [both[0] / least[device][0], both[1] / least[device][1]] for (name, device), both in times.items()
    }
    assert shown.text(".panel .note").startswith("solid: H100, dashed: H200.") and "of_H" not in shown.text()  # no cluster
    assert len({s["color"] for s in lines}) == 2  # by backend

    by_device = {s["name"]: s["color"] for s in shown.go(view="lines", colour="device_name").charts()[0]["series"]}
    assert len({colour for name, colour in by_device.items() if name.startswith("H100")}) == 1 and len(set(by_device.values())) == 2
    apart = shown.go(view="lines", facet="device_name", top="all").charts()
    least = [min(p["value"][1] for s in chart["series"] if s["type"] == "line" for p in s["data"]) for chart in apart]
    assert ([chart["title"] for chart in apart], least) == (["device_name H100", "device_name H200"], [1, 1])


def test_environments_are_told_apart_and_can_be_picked(show: Show, of_rows: OfRows):
    """One backend at the same shapes in two environments: a plot of each."""
    times = {None: (20.0, 40.0), "flashinfer:0.6.16": (25.0, 30.0)}
    rows = [
        {**made("a", us, s_kv=kv, env=env), "point_id": f"{env} {kv}"}
        for env, both in times.items()
        for kv, us in zip((8192, 16384), both, strict=True)
    ]
    shown = show(of_rows(rows), view="lines", top="all")
    titles = [chart["title"] for chart in shown.charts()]
    assert titles[1] == "env flashinfer:0.6.16" and len(titles) == 2

    picked = shown.go(view="table", **{"f.env": "flashinfer:0.6.16"}).text("body")
    assert "2 points in view" in picked and "1 to 2 of 2 rows" in picked


def test_a_plot_is_saved_as_png_and_svg_and_its_numbers_copied_as_markdown(at: At, tmp_path: Path):
    shown = at(MAIN, **{"f.s_qo": "1", "f.kv_dtype": "bf16"})
    png = shown.saved(".panel .take:text('PNG')", tmp_path).read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and width > 900 and height > 600
    svg = ElementTree.parse(shown.saved(".panel .take:text('SVG')", tmp_path))
    texts = ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert any("NVIDIA H200" in text for text in texts) and "fa2_tc" in texts

    shown.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    shown.page.click(".panel .take:text('Markdown')")
    shown.page.click(".panel details summary")
    shown.page.wait_for_selector(".panel details table")
    title, _, header, rule, *rows = shown.page.evaluate("window.copied").strip().split("\n")
    assert title.startswith("**") and set(rule) == {"|", "-"} and header.count("|") == rule.count("|")
    cells = [[cell.strip().replace("\\", "") for cell in row.strip("|").split("|")] for row in rows]
    assert cells == [line[:-1] for line in shown.table(".panel details")]

    before = shown.page.evaluate("window.copied")
    shown.page.evaluate("""() => {
        Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.execCommand = () => { window.copied = document.activeElement.value + "again" };
    }""")  # as over http from another machine
    shown.page.locator(".panel .take").nth(2).click()
    assert shown.page.evaluate("window.copied") == before + "again"


def test_on_a_phone_filters_fold_and_nothing_is_wider_than_the_screen(show: Show, exported: Exported):
    shown = show(exported(MAIN), **{"f.kv_dtype": "bf16"})
    assert shown.page.is_visible("#clear")
    shown.page.evaluate("scrollTo(0, 900)")
    top = shown.page.locator("#filters").bounding_box()
    assert top is not None and abs(top["y"]) < 1  # stays in view

    shown.page.set_viewport_size({"width": 390, "height": 844})
    shown.page.reload()
    shown.page.wait_for_selector("body[data-drawn]")
    for view in VIEWS:
        shown.go(view=view, **{"f.kv_dtype": "bf16"})
        assert not shown.page.is_visible("#clear") and shown.text("#fold summary") == "Filters: 1 chosen"
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 390, view
    shown.page.click("#fold summary")
    shown.click("#clear")
    assert shown.page.is_visible("#clear") and shown.text("#fold summary") == "Filters"


def test_paper_is_light_and_without_what_only_a_screen_needs(show: Show, exported: Exported):
    shown = show(exported(MAIN), color_scheme="dark", **{"f.kv_dtype": "bf16", "f.phase": "drafts"})
    shown.do(lambda: shown.page.emulate_media(media="print"))
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not any(shown.page.is_visible(part) for part in ("#tabs", "#filters", "#theme", ".take", ".controls"))
    ink = "echarts.getInstanceByDom(document.querySelector('.chart')).getOption().xAxis[0].axisLabel.color"
    assert shown.page.evaluate(ink) == "#1b1b1b" and shown.page.is_visible("#facts")
    kinds = """[...document.querySelectorAll(".chart")].map((place) =>
        [place.querySelectorAll("canvas, svg").length, place.querySelector("svg") !== null])"""
    assert shown.page.evaluate(kinds) == [[1, True]] * 3  # a browser prints one canvas of several
    assert shown.page.locator(".chart svg path[fill='#b48400']").count() > 4  # cells of fa2_tc
    shown.do(lambda: shown.page.emulate_media(media="screen"))
    assert shown.page.evaluate(ink) == "#ececec" and shown.page.is_visible("#tabs")


def test_text_of_a_dataset_stays_text(show: Show, of_rows: OfRows, tmp_path: Path):
    rows = [made(HOSTILE, 10.0), made("b", 12.0), made("c", None, "failed", HOSTILE, s_kv=16384, model=HOSTILE)]
    shown = show(of_rows(rows))

    def unharmed() -> bool:
        return bool(shown.page.evaluate("[window.broken, document.images.length]") == [None, 0])

    assert unharmed()
    shown.go(view="best")  # the page opens on a deployment where nothing was right, so there is no plot to save
    svg = shown.saved(".take:text('SVG')", tmp_path).read_text()
    assert "&lt;/script&gt;" in svg and HOSTILE[:17] not in svg and "<img" not in svg
    for view in VIEWS:
        shown.go(view=view)
        assert unharmed()
    assert HOSTILE in shown.text("#rows")
    shown.page.locator("#rows button:text('show')").last.click()
    assert unharmed()
    assert HOSTILE in shown.text("#row h3") + shown.text("#row dl")
    shown.page.click("#close")

    shown.go(view="best")
    failed, won = shown.page.locator(".chart").all()
    failed.hover(position={"x": 200, "y": 80})
    shown.page.wait_for_selector(".tip:has-text('none ok of 1')")
    assert HOSTILE in shown.text(".tip")
    won.hover(position={"x": 200, "y": 80})
    shown.page.wait_for_selector(f".tip:nth-child(n) .card:has-text('{HOSTILE[:9]}')")
    assert unharmed()


FAILED = [made("a", None, "failed", "boom"), made("b", None, "unsupported", "needs: the SM100 family")]
NOT_OK = {
    "answer": "No point in view is ok, so no backend is the fastest of any.",
    "best": "No point in view is ok, so no backend is the fastest of any.",
    "lines": "No point in view is ok, so there is no time to draw.",
    "roofline": "No point in view is ok and has its FLOPs and bytes",
    "crossover": "paged_decode and paged_prefill has no ok point in view",
    "compare": "There is nothing to compare",
}


def test_a_dataset_without_an_ok_point_says_what_became_of_them(show: Show, of_rows: OfRows):
    shown = show(of_rows(FAILED))
    for view, words in NOT_OK.items():
        shown.go(view=view)
        assert words in shown.text()
        assert "boom" in shown.text() and "needs: the SM100 family" in shown.text()
        assert shown.charts() == []
        assert shown.text("#counts") == "2 points in view: 1 failed · 1 unsupported"


def test_a_lone_point_is_drawn_and_what_needs_two_says_so(show: Show, of_rows: OfRows):
    shown = show(of_rows([made("a", 10.0)]))
    (chart,) = shown.charts()
    assert [cell["label"] for cell in chart["series"][0]["data"]] == ["a\n10\nunchecked"]
    (chart,) = shown.go(view="lines").charts()
    assert [p["value"][1] for p in chart["series"][0]["data"]] == [1]
    assert NOT_OK["compare"] in shown.go(view="compare").text()
    assert shown.go(view="table").text("#count") == "1 to 1 of 1 rows"


def test_a_single_backend_has_no_margin_and_a_cell_without_ok_says_why(show: Show, of_rows: OfRows):
    rows = [made("a", 10.0), made("a", 20.0, s_kv=16384), made("a", None, "oom", "no room", s_kv=32768)]
    (chart,) = show(of_rows(rows), view="best").charts()

    assert [cell["label"] for cell in chart["series"][0]["data"]] == ["a\n10\nunchecked", "a\n20\nunchecked", "oom"]
    assert chart["series"][0]["data"][2]["words"] == "none ok of 1; 1 oom: no room"


def test_what_no_backend_served_makes_no_plot_and_is_counted(show: Show, of_rows: OfRows):
    """A row that never ran lacks its way of timing, and is drawn with the others of its problem."""
    cold = {"icache": "cold", "group_id": "b"}
    rows = [made("a", 10.0, icache="warm"), made("b", 10.0, **cold), made("c", None, "unsupported", group_id="b")]
    shown = show(of_rows([*rows, made("a", None, "unsupported", "needs: one query token", s_qo=2)]), view="best")

    assert len(shown.charts()) == 2
    assert shown.text(".apart summary") == "1 more point is of a workload that no backend served"
    shown.page.click(".apart summary")
    assert "needs: one query token" in shown.text(".apart")


def test_filters_that_leave_nothing_say_so(at: At):
    shown = at(MAIN, view="lines", **{"f.backend": "trtllm-gen"})
    assert NOT_OK["lines"] in shown.text() and "SM100" in shown.text()
    shown.click("#tab-table")
    shown.do(lambda: (shown.page.fill("#q", "nowhere"), shown.page.press("#q", "Enter")))
    assert "No row fits the filters and the search." in shown.text()


def test_a_plot_of_very_many_points_is_fast_and_still_shows_each(show: Show, of_rows: OfRows):
    """3 backends of 1,600 points, a marker each: markers traced as one path would take minutes."""
    rate: dict[str, Any] = {"flops": 1e9, "bytes": 1e8, "tb_per_sec": 1.0}
    rows = [made(name, 10.0, **rate, s_kv=kv, tflops=5.0 + kv / 1e3) for name in "abc" for kv in range(1, 1601)]
    shown = show(of_rows(rows), view="roofline")
    seconds = shown.page.evaluate("performance.getEntriesByName('drawn-1')[0].startTime") / 1e3
    x, y = shown.page.evaluate("""() => {
        const place = document.querySelector(".chart"), box = place.getBoundingClientRect();
        const chart = echarts.getInstanceByDom(place);
        const [right, down] = chart.convertToPixel({ seriesIndex: 0 }, chart.getOption().series[0].data[800]);
        return [box.x + right, box.y + down];
    }""")
    shown.page.mouse.click(x, y)

    assert seconds < 15
    assert "s_kv" in shown.text("#row") and "10 µs" in shown.text("#row")
