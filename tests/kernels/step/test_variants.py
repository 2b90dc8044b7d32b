"""Steps whose other kernels are changed, on a CPU: attention in them is as right, and what is measured of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from benchmarks import neighbours, neighbours_table, prepared, replays
from benchmarks.step_variants import CAUSES, EVERY, NEIGHBOURS, PRODUCT, Pair, reading_stand_in
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.check.oracle import reference
from kernels.inputs.generate import draw
from kernels.step.layer_inputs import as_first
from kernels.timing.config import Timing
from orchestrator.machines import cpu
from orchestrator.point import Point
from tests.helpers.steps import DENSE, EXPERTS, MLA, bench_of, layers_of, step_problem

SAME_SUMS = ("captured again", "PDL off", "L2 read before the MLP", "product at A in both", "product at B, with the copy at A")


@pytest.mark.parametrize("name", EVERY)
def test_attention_is_right_in_every_variant(name: str):
    bench = bench_of(layers_of(step_problem()), takes_pdl=True)
    pair = EVERY[name](bench)
    if name == "copy twice":
        return
    for layer, (_, out) in zip(bench.layers, pair.step.attention, strict=True):
        out.fill_(float("nan"))
        layer.planted.poison()
    pair.step()
    right = reference(bench.layers[0].inputs)

    for number, (_, out) in enumerate(pair.step.attention):
        assert torch.allclose(as_first(out, number).float(), right, atol=0.02)


@pytest.mark.parametrize("name", SAME_SUMS)
def test_a_variant_that_moves_no_product_computes_what_a_step_computes(name: str):
    bench = bench_of(layers_of(step_problem()), takes_pdl=True)
    usual, pair = bench.pair(), EVERY[name](bench)
    for ours, theirs in ((pair.step, usual.step), (pair.stand_in, usual.stand_in)):
        ours()
        theirs()
        assert torch.equal(ours.residual, theirs.residual)


def test_the_weights_of_the_product_move_and_keep_their_values():
    bench = bench_of(layers_of(step_problem()))
    before = [layer.weights[PRODUCT] for layer in bench.layers]
    EVERY["weights elsewhere"](bench)

    for old, layer in zip(before, bench.layers, strict=True):
        assert layer.weights[PRODUCT].data_ptr() != old.data_ptr() and torch.equal(layer.weights[PRODUCT], old)


@pytest.mark.parametrize("keys", [{}, {"kv_dtype": "fp8_e4m3"}, MLA, {"head_dim_vo": 32}])
def test_the_reading_stand_in_copies_the_queries_and_reads_the_cache(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    (layer,) = layers_of(step_problem(**keys), count=1)
    read: list[int] = []
    largest = torch.amax
    monkeypatch.setattr(torch, "amax", lambda view, *a, **k: read.append(view.nbytes) or largest(view, *a, **k))
    call, out = reading_stand_in(layer)
    call()
    width = min(out.shape[-1], layer.inputs.q.shape[-1])

    assert torch.equal(out[..., :width].float(), layer.inputs.q[..., :width].float())
    assert sum(read) == pytest.approx(layer.inputs.problem.kv_bytes, rel=0.01)


def test_a_variant_that_cannot_be_built_says_why():
    experts = bench_of(layers_of(step_problem(), EXPERTS), shape=EXPERTS)
    rows = list(neighbours.variants(experts, neighbours.Addresses(), ["PDL off", "product at A in both"], float("inf")))

    assert [row["reason"] for row in rows] == ["the backend does not take enable_pdl", "this variant needs a dense MLP"]
    assert [row["kind"] for row in rows] == ["neighbours", "causes"]
    assert not list(neighbours.variants(experts, neighbours.Addresses(), ["PDL off"], 0.0))


def test_the_addresses_of_the_product_are_those_of_the_graph():
    seen = neighbours.Addresses()
    bench = bench_of(layers_of(step_problem()), seen)
    EVERY["product at A, with the copy at B"](bench)
    row = seen.row(len(bench.layers))

    assert row["attention inputs"] == row["stand-in outputs"] == 1
    assert bench.arena is not None and int(row["attention input"], 16) == bench.arena.data_ptr()
    assert row["attention input"] != row["stand-in input"]


def test_a_row_has_the_cost_and_the_tables_show_it(tmp_path: Path):
    seen = neighbours.Addresses()
    bench = bench_of(layers_of(step_problem()), seen)
    what = {"backend": "fa2_tc", "batch_size": 1, "s_kv": 8192, "s_qo": 2, "q_dtype": "bf16", "kv_dtype": "bf16"}
    rows = [what | row for row in neighbours.variants(bench, seen, ["as today", "PDL on"], float("inf"))]
    rows[0] |= neighbours.kernels_of(*profile(), 2)
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    again = pd.read_parquet(tmp_path / "rows.parquet").to_dict("records")
    pd.DataFrame([*again, *rows]).to_parquet(tmp_path / "rows.parquet")
    costs, products, missing = neighbours_table.grids(pd.read_parquet(tmp_path / "rows.parquet"))

    assert rows[0]["layers"] == 3 and rows[0]["low_us"] <= rows[0]["cost_us"] <= rows[0]["high_us"]
    assert costs.cells[0][:5] == ("fa2_tc", "1 x 8,192", "2", "bf16", "as today")
    assert costs.cells[0][6:11] == ("20.0", "2.0", "+12.0", "-1.0", "+0.0")
    assert products.cells[0][5:9] == ("22.0", "20.0 to 24.0", "10.0", "10.0 to 10.0")
    assert missing.cells[0][5] == "the backend does not take enable_pdl" and len(missing.cells) == 2


def test_a_page_has_a_line_for_each_point_and_a_column_for_each_variant(tmp_path: Path):
    what = {"backend": "fa2_tc", "batch_size": 1, "s_kv": 8192, "s_qo": 2, "q_dtype": "bf16", "kv_dtype": "bf16", "reason": ""}
    figures = {"cost_us": 20.04, "attention product": 322.4, "stand-in product": 309.6}
    kinds = {"as today": "neighbours", "PDL off": "neighbours", "copy twice": "causes"}
    rows = [what | figures | {"variant": name, "kind": kind} for name, kind in kinds.items()]
    more = [row | {"s_qo": 4} for row in rows[:2]]
    pd.DataFrame([*rows, *more]).to_parquet(path := tmp_path / "rows.parquet")
    costs, products = neighbours_table.cost_by_variant(path), neighbours_table.product_by_variant(path)

    assert costs.header[4:] == ("as today", "PDL off") and [cells[2:] for cells in costs.cells] == [
        ("2", "bf16", "20.0", "20.0"),
        ("4", "bf16", "20.0", "20.0"),
    ]
    assert products.header[4:] == ("as today", "copy twice")
    assert [cells[2:] for cells in products.cells] == [("2", "bf16", "322 / 310", "322 / 310")]
    assert not neighbours_table.cost_by_variant(tmp_path / "none").cells


def profile() -> tuple[list[Any], list[Any]]:
    """Both graphs of two layers, three replays each: the product takes 10 µs with the stand-in, and 20 and 24 with attention."""

    def replay(*kernels: tuple[str, float]) -> list[tuple[str, float, float]]:
        ends = [sum(us for _, us in kernels[: i + 1]) for i in range(len(kernels))]
        return [(name, end - us, end) for (name, us), end in zip(kernels, ends, strict=True)]

    copy = replay(*[("norm", 3.0), ("copy", 2.0), ("gemm", 10.0)] * 2)
    attention = replay(*[("norm", 2.0), ("attn", 20.0), ("gemm", 20.0)], *[("norm", 2.0), ("attn", 20.0), ("gemm", 24.0)])
    return [copy] * 3, [attention] * 3


def test_a_profile_is_cut_where_the_replays_pause_and_each_graph_gets_its_own():
    spans = [(name, start, start + 10) for name, start in (("a", 0.0), ("a", 20.0), ("b", 5000.0), ("a", 9000.0), ("b", 13000.0))]

    assert [len(part) for part in replays.cut(spans)] == [2, 1, 1, 1]
    assert [[len(one) for one in graph] for graph in replays._by_graph(spans, 2, 2)] == [[2, 1], [1, 1]]
    assert replays.cut([]) == []
    with pytest.raises(RuntimeError, match="4 replays instead of 6"):
        replays._by_graph(spans, 2, 3)


def test_graphs_are_replayed_in_turns():
    calls: list[str] = []
    times = replays.timed([lambda: calls.append("a"), lambda: calls.append("b")], 3, on_gpu=False)

    assert "".join(calls) == "ababab" and [len(us) for us in times.us] == [3, 3]


def test_the_kernels_of_a_profile_keep_their_nanoseconds():
    class Event:
        def __init__(self, at: int, kind: Any) -> None:
            self.at, self.kind = at, kind

        def name(self) -> str:
            return "k"

        def start_ns(self) -> int:
            return 1_790_000_000_000_000_000 + self.at

        def duration_ns(self) -> int:
            return 1

        def device_type(self) -> Any:
            return self.kind

    class Seen:
        profiler = kineto_results = property(lambda self: self)

        def events(self) -> list[Event]:
            return [Event(7, DeviceType.CUDA), Event(5, DeviceType.CUDA), Event(1, DeviceType.CPU)]

    assert [(start, round(end - start, 6)) for _, start, end in replays._kernels(Seen())] == [(0.0, 0.001), (0.002, 0.001)]


def test_without_a_profile_the_cost_is_known_but_not_beside_a_stand_in_that_reads(monkeypatch: pytest.MonkeyPatch):
    bench = bench_of(layers_of(step_problem()))
    pair = bench.pair()
    pair.step.residual = SimpleNamespace(is_cuda=True)  # type: ignore[assignment]
    timed = replays.Times([[10.0, 12.0, 11.0], [40.0, 42.0, 44.0]], [[], []])
    monkeypatch.setattr(replays, "timed", lambda *_: timed)
    monkeypatch.setattr(replays, "profiled", lambda *_: [[[]], [[]]])
    row = neighbours.measured(pair, 3)

    assert row["cost_us"] == 10.0 and row["note"].startswith("no profile")
    monkeypatch.setattr(replays, "profiled", lambda *_: list(profile()))
    assert neighbours.measured(pair, 3)["attention own"] == pytest.approx(40 / 3)
    monkeypatch.setattr(replays, "profiled", lambda *_: (_ for _ in ()).throw(RuntimeError("none")))
    with pytest.raises(RuntimeError, match="none"):
        neighbours.measured(replace(pair, reads=True), 3)


def test_the_points_come_in_their_order_and_the_misleading_ones_have_every_variant():
    def point(backend: str, **keys: Any) -> Point:
        return Point(step_problem(**keys), backend, "how")

    fp8 = {"batch_size": 1, "s_kv": 8192, "s_qo": 2, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
    assert (neighbours.rank(point("flash_attn_3", **fp8)), neighbours.misleads(point("flash_attn_3", **fp8))) == (0, True)
    assert neighbours.rank(point("flash_attn_3", **{**fp8, "q_dtype": "bf16"})) is None
    assert neighbours.misleads(point("fa2_tc", batch_size=1, s_kv=8192, s_qo=4)) is False
    assert set(NEIGHBOURS).isdisjoint(CAUSES) and list(EVERY)[-1] == "weights elsewhere"


def test_the_read_of_a_stand_in_counts_as_attention_s():
    bench = bench_of(layers_of(step_problem()))
    pair = EVERY["stand-in reads the cache"](bench)

    assert pair.reads and not replace(pair, reads=False).reads and isinstance(pair, Pair)


def test_a_run_writes_its_rows_and_a_second_one_measures_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    point, timing = Point(step_problem(), "torch_sdpa", "how"), Timing.model_validate({"context": "step", "step_layers": 2})
    ready = prepared.Ready(TorchSdpa(routine="paged_decode"), cpu(), [draw(point.problem, "cpu")])
    model = SimpleNamespace(model=SimpleNamespace(layer=DENSE))
    monkeypatch.setattr(prepared, "settings_of", lambda _: model)
    monkeypatch.setattr(prepared, "points", lambda *_, **__: iter([(timing, point, ready)]))
    path = tmp_path / "rows.parquet"
    neighbours.run(path, -1.0, ["sweep"])
    assert "no time left" in capsys.readouterr().out and not path.exists()

    monkeypatch.setattr(neighbours, "EVERY", NEIGHBOURS)
    neighbours.run(path, 1e3, ["sweep"])
    rows = pd.read_parquet(path)
    monkeypatch.setattr(neighbours, "EVERY", EVERY)
    neighbours.run(path, 1e3, ["sweep"])
    more = pd.read_parquet(path)

    assert list(rows["variant"]) == [neighbours.TODAY, *NEIGHBOURS]
    assert list(more["variant"]) == [neighbours.TODAY, *EVERY] and set(more["layers"].dropna()) == {2}
    neighbours.run(path, 1e3, ["sweep"])
    assert "measured already" in capsys.readouterr().out
    assert neighbours.main("table", str(path)).count("torch_sdpa") == len(more)
