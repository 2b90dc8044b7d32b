"""Published times beside measured ones: the same shapes, no verdict, and what differs is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis.compare import published
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke, composed
from tests.helpers.timed_rows import made

SHAPE: Row = {"routine": "paged_decode", "mask": "causal", "page_size": 64, "num_qo_heads": 64, "num_kv_heads": 8, "twin": 0}


def stored(folder: Path, *rows: Row) -> str:
    folder.mkdir()
    pq.write_table(to_table(rows), folder / "rows.parquet")
    return str(folder)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """An imported dataset with one kernel at pages of one token, and a measured one with two kernels."""
    there = {
        **SHAPE,
        "orchestrator_version": "aiconfigurator",
        "l2": "warm",
        "page_size": 1,
        "resolved_backend": "fa3",
        "cluster": "aic",
    }
    here = {**SHAPE, "orchestrator_version": "0.1.0", "l2": "clean"}
    theirs = stored(tmp_path / "theirs", made("flash_attn_3", 100.0, **there), made("flash_attn_3", 50.0, **{**there, "s_kv": 77}))
    times = {"flash_attn_3": 120.0, "fa2_tc": 90.0, "torch_sdpa": 1.0}
    return theirs, stored(tmp_path / "ours", *(made(backend, us, **here) for backend, us in times.items()))


@pytest.mark.parametrize("turned", [False, True])
def test_each_published_shape_stands_beside_its_own_backend_and_the_fastest(sides: tuple[str, str], turned: bool, invoke: Invoke):
    a, b = reversed(sides) if turned else sides
    summary, shapes = published.published_grids(load(composed("mode=compare", f"baseline={a}", f"candidate={b}")))

    assert summary.cells == (("aic", "H200", "H200", "fa3", "paged_decode", "bf16", "bf16", "1", "1.20 at 1", "0.90"),)
    assert "not judged: l2 warm there, clean here; page_size 1 there, 64 here" in summary.title
    assert shapes.cells == (("paged_decode", "bf16", "bf16", "8", "1", "8,192", "flash_attn_3 100.0", "120.0", "fa2_tc 90.0"),)
    assert turned or invoke("mode=compare", f"baseline={a}", f"candidate={b}").returncode == 0


def test_two_imported_sides_and_sides_without_a_common_shape_are_refused(sides: tuple[str, str], tmp_path: Path):
    theirs, _ = sides
    other = stored(tmp_path / "other", made("fa2", 1.0, **{**SHAPE, "orchestrator_version": "0.1.0", "s_kv": 5}))
    with pytest.raises(UserError, match="both are imported"):
        published.published_grids(load(composed("mode=compare", f"baseline={theirs}", f"candidate=[{theirs},device:H200]")))
    with pytest.raises(UserError, match="no shape is in both"):
        published.published_grids(load(composed("mode=compare", f"baseline={theirs}", f"candidate={other}")))


def test_two_measured_sides_are_compared_as_before(sides: tuple[str, str]):
    _, ours = sides
    assert published.published_grids(load(composed("mode=compare", f"baseline={ours}", f"candidate={ours}"))) == []
