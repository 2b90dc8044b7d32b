"""The questions against rows worked out by hand."""

from __future__ import annotations

from typing import Any

from orchestrator import questions
from tests.orchestrator.test_report import made, table


def verified(routine: str, backend: str, median_us: float, s_kv: int, **keys: Any) -> dict[str, Any]:
    row = made(backend, median_us, routine=routine, s_qo=4, s_kv=s_kv, **keys)
    return {**row, "point_id": f"{routine}-{row['point_id']}"}


def test_the_crossover_is_where_prefill_stays_ahead():
    rows = [
        verified("paged_decode", "xqa", 10.0, 1024),
        verified("paged_decode", "fa2_tc", 12.0, 1024),
        verified("paged_prefill", "fa2", 15.0, 1024),
        verified("paged_decode", "xqa", 30.0, 8192),
        verified("paged_prefill", "fa2", 24.0, 8192),
        verified("paged_decode", "xqa", 90.0, 50000),
        verified("paged_prefill", "fa2", 60.0, 50000),
        verified("paged_prefill", "fa3", 300.0, 50000),
    ]
    (grid,) = questions.grids(table(*rows))

    assert grid.header == ("s_qo", "batch", "s_kv 1,024", "s_kv 8,192", "s_kv 50,000", "prefill ahead from")
    assert grid.cells == (("4", "8", "decode xqa 10.0 (+50%)", "prefill fa2 24.0 (+25%)", "prefill fa2 60.0 (+50%)", "8,192"),)


def test_a_crossover_that_never_or_always_holds_says_so():
    never = [verified("paged_decode", "xqa", 10.0, 1024), verified("paged_prefill", "fa2", 15.0, 1024)]
    always = [verified("paged_decode", "xqa", 10.0, 1024), verified("paged_prefill", "fa2", 9.0, 1024)]

    assert questions.grids(table(*never))[0].cells[0][-1] == "never"
    assert questions.grids(table(*always))[0].cells[0][-1] == "always"


def test_only_equal_problems_cross_over():
    rows = [verified("paged_decode", "xqa", 10.0, 1024, page_size=16), verified("paged_prefill", "fa2", 9.0, 1024, page_size=64)]

    assert questions.grids(table(*rows)) == []


def test_the_regret_of_auto_is_its_time_over_the_best_s():
    rows = [
        made("auto", 30.0, routine="paged_prefill", resolved_backend="fa3", command="again 1"),
        made("fa2", 10.0, routine="paged_prefill", resolved_backend="fa2"),
        made("auto", 10.2, routine="paged_prefill", resolved_backend="fa2", s_kv=1024, command="again 2"),
        made("fa2", 10.0, routine="paged_prefill", resolved_backend="fa2", s_kv=1024),
        made("torch_sdpa", 1.0, routine="paged_prefill", resolved_backend="torch_sdpa_cuda"),
    ]
    summary, worst = questions.grids(table(*rows))

    assert summary.cells == (("paged_prefill", "bf16", "bf16", "H200", "2", "fa2, fa3", "50%", "2.01", "3.00"),)
    assert worst.cells == (("3.00", "fa3", "30.0", "fa2", "10.0", "again 1"),)


def test_a_draft_as_one_call_against_its_tokens_one_by_one():
    """4 tokens at batch 2 are 8 requests of one token."""
    rows = [
        made("fa3", 20.0, routine="mla", s_qo=4, batch_size=2, num_qo_heads=16),
        made("fa2", 25.0, routine="mla", s_qo=4, batch_size=2, num_qo_heads=16),
        made("fa2", 50.0, routine="mla", s_qo=1, batch_size=8, num_qo_heads=16),
        made("fa2", 10.0, routine="mla", s_qo=1, batch_size=2, num_qo_heads=16),
    ]
    (grid,) = questions.grids(table(*rows))

    assert grid.header == ("heads", "s_kv", "s_qo", "batch 2")
    assert grid.cells == (("16", "8192", "4", "2.50"),)


def test_a_dataset_without_such_rows_has_no_such_tables():
    assert questions.grids(table(made("fa2", 10.0, routine="paged_decode"))) == []
    assert questions.grids(table(made("fa2", None, "failed", "boom"))) == []


def test_two_kernels_within_two_percent_are_either():
    rows = [verified("paged_decode", "fa2_tc", 10.0, 1024), verified("paged_prefill", "fa2", 10.1, 1024)]

    assert questions.grids(table(*rows))[0].cells == (("4", "8", "either fa2_tc 10.0 (+1%)", "never"),)
