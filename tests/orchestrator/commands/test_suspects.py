"""rerun=suspects: what mode=compare suspects, measured again on one device into a dataset of its own."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.commands import run as suspects
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from orchestrator.storage import parquet
from orchestrator.storage.row import describe, finish, to_table
from tests.helpers.command_line import Invoke

SWEEP = ["+sweep=smoke", "cluster=inline", "timing=quick", "sweep.backend=[torch_sdpa]", "sweep.s_kv=[64]", "sweep.batch_size=[1]"]
HEADS = ["model.num_qo_heads=4", "model.num_kv_heads=1", "timing.max_seconds=0.05"]


@pytest.fixture
def sides(tmp_path: Path, invoke: Invoke) -> tuple[Path, Path]:
    """Two points that this machine measured, and a baseline in which one of them took a hundredth of that."""
    candidate, baseline = tmp_path / "new", tmp_path / "old"
    done = invoke(*SWEEP, *HEADS, f"results.path={candidate}")
    assert done.returncode == 0, done.stderr
    table = parquet.read(candidate)
    for side, factors in ((candidate, {1: 1.0, 4: 1.0}), (baseline, {1: 1.0, 4: 0.01})):
        rows = table.to_pylist()
        us = [row["median_us"] * factors[row["s_qo"]] for row in rows]
        samples = [[at * off for off in np.tile([0.9995, 1.0005], 10)] for at in us]
        found = {"samples_us": samples, "median_us": [float(np.median(of)) for of in samples], "block_sizes": [[10, 10]] * len(us)}
        changed = table
        for name, values in found.items():
            place = changed.schema.get_field_index(name)
            field = changed.schema.field(place)
            changed = changed.set_column(place, field, pa.array(values, field.type))
        side.mkdir(exist_ok=True)
        pq.write_table(changed, side / parquet.DATA)
    return baseline, candidate


def test_suspects_are_named_measured_again_on_one_device_and_compared(sides: tuple[Path, Path], invoke: Invoke):
    baseline, candidate = sides
    before = (candidate / parquet.DATA).read_bytes()
    compared = invoke("mode=compare", f"baseline={baseline}", f"candidate={candidate}")
    assert compared.returncode == 1, compared.stdout
    command = next(
        line.partition(": python")[2] for line in compared.stdout.splitlines() if line.startswith("to measure the suspects")
    )

    again = invoke(*shlex.split(command)[2:])
    rows = parquet.read(f"{candidate}_suspects").to_pandas()

    assert again.returncode == 0, again.stderr
    assert rows[["s_qo", "status"]].values.tolist() == [[4, "ok"]]
    assert (candidate / parquet.DATA).read_bytes() == before
    assert f"mode=compare baseline={baseline} candidate={candidate}_suspects" in again.stdout

    none = invoke(*SWEEP, *HEADS, "rerun=suspects", f"baseline={candidate}", f"candidate={baseline}")
    assert none.returncode == 0 and "no suspects" in none.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["+sweep=smoke", "rerun=suspects"], ["rerun=suspects", "baseline=none", "as mode=compare prints it"]),
        (["+sweep=smoke", "mode=plan", "device=h200", "rerun=suspects", "baseline=a", "candidate=b"], ["mode=plan"]),
        (["mode=compare", "baseline=a", "candidate=b", "missing=maybe"], ["missing", "allow"]),
    ],
)
def test_what_cannot_be_is_refused_in_words(args: list[str], words: list[str], invoke: Invoke):
    done = invoke(*args)

    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_a_point_is_found_among_rows_whose_columns_have_gaps(settings: Callable[..., Settings]):
    """pandas reads the window of some rows as 128.0 if others have none."""
    points = expand(settings("+sweep=smoke", "sweep.window=[null,128]"))
    table = to_table([finish({**describe(point), "median_us": 1.0}, "ok") for point in points]).to_pandas()
    rows = table.assign(tree=None).to_dict("records")

    assert {type(row["window"]) for row in rows} == {float}
    assert suspects._keys(rows) == suspects._keys([suspects._columns(point) for point in points])
