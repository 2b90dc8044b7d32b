"""How the page shows times that were not measured in full: stopped early, or credited with another backend's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from orchestrator.storage.row import Row
from tests.helpers.shown import Shown
from tests.helpers.timed_rows import made

Show = Callable[..., Shown]
AddressOf = Callable[[Sequence[Row]], str]
ROUGH = {"stop_reason": "decided", "ci95_rel": 0.1}


@pytest.fixture
def address(of_rows: AddressOf) -> str:
    """A shape whose runner-up is rough, and one whose only backend is."""
    keys = {"compute_capability": "9.0", "routine": "paged_decode", "timer": "cuda_graph_events"}
    rows = [
        made("fa2_tc", 100.0, resolved_backend="fa2_tc", stop_reason="ci95", ci95_rel=0.004, **keys),
        made("auto", 100.0, resolved_backend="fa2_tc", stop_reason="ci95", measured_as="fa2_tc", **keys),
        made("cudnn", 103.0, resolved_backend="cudnn", **ROUGH, **keys),
        made("cudnn", 200.0, resolved_backend="cudnn", s_kv=16384, **ROUGH, **keys),
    ]
    return of_rows(rows)


def test_the_map_marks_rough_times_and_no_lead_over_one_counts_that_is_within_5_percent(show: Show, address: str):
    (chart,) = show(address, view="best").charts()
    contested, alone = (cell["label"] for cell in chart["series"][0]["data"])

    assert contested.split() == ["fa2_tc", "100", "≈~3.0%", "unchecked"]
    assert alone.split() == ["cudnn", "~200", "unchecked"]


def test_a_point_says_how_rough_it_is_and_whose_time_it_has(show: Show, address: str):
    shown = show(address, view="table", sort="median_us")
    shown.page.locator("#rows tbody tr").nth(2).get_by_role("button").click()
    card = shown.page.locator("#row")
    rows = card.locator(".ranking tbody tr")

    assert rows.all_inner_texts()[2].split() == ["3", "cudnn", "~103", "~1.03×", "unchecked"]
    assert "auto(fa2_tc) (measured as fa2_tc)" in rows.all_inner_texts()[1] + rows.all_inner_texts()[0]
    told = "~ rough: 92.7 to 113.3 µs; stopped early, since it cannot be the fastest"
    assert rows.nth(2).locator("td").nth(2).get_attribute("title") == told
    assert told in card.inner_text()


def test_the_table_marks_the_time_with_its_interval_and_has_both_columns(show: Show, address: str):
    shown = show(address, view="table", sort="median_us")
    head = shown.page.locator("#rows thead th").all_inner_texts()
    at = next(i for i, name in enumerate(head) if name.startswith("median_us"))
    cells = shown.page.locator(f"#rows tbody td:nth-child({at + 1})")

    assert cells.all_inner_texts() == ["100", "100", "~103", "~200"]
    assert "180 to 220 µs" in (cells.nth(3).get_attribute("title") or "")
    assert {"stop_reason", "measured_as"} <= {*head}


def test_other_views_mark_what_rests_on_a_rough_time(show: Show, address: str):
    shown = show(address, view="lines", x="s_kv")
    assert "~ 2 points are rough" in shown.text(".panel .note")
    bars = [p["value"] for s in shown.charts()[0]["series"] if (s["name"], s["type"]) == ("cudnn", "custom") for p in s["data"]]
    assert bars[0] == pytest.approx([8192, 0.927, 1.133])  # its interval

    shown.go(view="compare", by="backend", base="fa2_tc", cand="cudnn")
    assert "beyond the noise of both 0 slower" in shown.text("#summary") and "~ 1 ratios are of a rough time" in shown.text(
        "#summary"
    )

    shown.go(view="answer")
    tables = shown.page.text_content("#tables") or ""
    assert "~1.0" in tables and "~ of times known within 5%" in tables


def test_a_lead_in_a_step_counts_if_the_intervals_do_not_overlap(show: Show, of_rows: AddressOf):
    keys = {"compute_capability": "9.0", "routine": "paged_decode", "timer": "cuda_graph_events", "context": "step"}

    def cost(backend: str, us: float, half_us: float, s_kv: int) -> Row:
        interval = {"in_step_us": us, "in_step_low_us": us - half_us, "in_step_high_us": us + half_us}
        return made(backend, 50.0, resolved_backend=backend, s_kv=s_kv, **interval, **keys)

    rows = [
        cost(name, us, half_us, s_kv) for s_kv, half_us in ((8192, 1.0), (16384, 4.0)) for name, us in (("a", 50.0), ("b", 55.0))
    ]
    (chart,) = show(of_rows(rows), view="best").charts()
    apart, overlapping = (cell["label"] for cell in chart["series"][0]["data"])

    assert "+10%" in apart.split() and "≈10%" in overlapping.split()
