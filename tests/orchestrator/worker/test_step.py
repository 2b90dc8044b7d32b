"""Points that are timed in a step too, on a CPU: their rows, and wrong backends that a step alone shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.problem import Problem
from kernels.step import series as step_series
from kernels.step.graph import Step
from kernels.step.shapes import LayerShape
from kernels.timing import sustained, timers
from kernels.timing.config import Timing
from kernels.timing.nvml import Telemetry
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from orchestrator.worker.step_part import StepCheck
from tests.backends.in_steps import _prepared
from tests.helpers.steps import DENSE, EXPERTS, MLA

STEP_COLUMNS = ("step_us", "stand_in_us", "in_step_us", "in_step_low_us", "in_step_high_us", "step_layers", "in_step_samples_us")
PLUGINS = ("tests.backends.faulty", "tests.backends.in_steps")


def timing(**keys: object) -> Timing:
    short = {"min_samples": 10, "max_samples": 12, "max_seconds": 0.05, "warmup": 1, "context": "step", "step_layers": 3}
    return Timing.model_validate({**short, **keys})


def worker(shape: LayerShape = DENSE, check: bool = True, **keys: object) -> PointRunner:
    _prepared.clear()
    return PointRunner.create(WorkerConfig(timing(**keys), check, PLUGINS, {}, layer=shape), cpu())


def ran(on: PointRunner, problem: Problem, *backends: str) -> dict[str, Row]:
    prepared = [on.prepare(Task(Point(problem, backend, "how"), "replay")) for backend in backends]
    return {row["backend"]: row for result in (*prepared, on.measure()) for row in result.rows}


@pytest.mark.parametrize(
    ("keys", "shape"),
    [({}, DENSE), ({"q_dtype": "fp16", "kv_dtype": "fp16"}, EXPERTS), (MLA, DENSE)],
    ids=["heads", "experts", "mla"],
)
def test_a_row_has_the_isolated_time_and_the_one_in_a_step(
    problem: Callable[..., Problem], keys: dict[str, object], shape: LayerShape
):
    row = ran(worker(shape), problem(**keys), "torch_sdpa")["torch_sdpa"]

    assert (row["status"], row["check"], row["context"], row["step_layers"]) == ("ok", "passed", "step", 3)
    assert row["median_us"] > 0
    assert row["in_step_low_us"] <= row["in_step_us"] <= row["in_step_high_us"]
    assert row["in_step_us"] in [pytest.approx(us) for us in row["in_step_samples_us"]] or len(row["in_step_samples_us"]) % 2 == 0
    assert len(row["in_step_samples_us"]) >= 10
    assert row["step_us"] > 0 and row["stand_in_us"] > 0


def test_without_a_pause_backends_take_turns_and_then_in_reverse_and_share_the_stand_in_s(
    problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    turns: list[str] = []

    def spread_samples(
        count: int, before: object, call: Callable[[], object], *rest: object, **how: object
    ) -> tuple[list[float], list[float], list[Telemetry]]:
        call()
        step = isinstance(call, Step)
        turns.append(names.setdefault(id(call), f"step {len(names)}") if step else "call")
        return [float(len(turns))] * count, [], []

    names: dict[int, str] = {}
    for module in (timers, step_series):
        monkeypatch.setattr(module, "spread_samples", spread_samples)
    rows = ran(worker(pace="sustained", max_samples=20), problem(), "torch_sdpa", "right")

    assert turns == ["call"] * 4 + ["step 0", "step 1", "step 2", "step 2", "step 1", "step 0"]
    for row in rows.values():
        assert (row["status"], row["pace"], row["num_samples"], row["num_set_aside"]) == ("ok", "sustained", 20, 0)
    assert [row["step_us"] for row in rows.values()] == [(5 + 10) / 2, (7 + 8) / 2]
    assert [row["stand_in_us"] for row in rows.values()] == [7.5, 7.5]


def test_a_row_without_a_pause_has_as_many_samples_as_fit_and_is_checked(
    problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sustained, "HALF_S", 0.02)
    row = ran(worker(pace="sustained"), problem(), "torch_sdpa")["torch_sdpa"]

    assert (row["status"], row["check"], row["pace"], row["context"]) == ("ok", "passed", "sustained", "step")
    assert 10 <= row["num_samples"] <= 12 and len(row["block_sizes"]) == 2 and row["rest_s"] == 0
    assert row["step_us"] > row["in_step_us"] and row["stand_in_us"] > 0


def test_an_isolated_row_has_no_columns_of_a_step(problem: Callable[..., Problem]):
    row = ran(worker(context="isolated", step_layers=None), problem(), "torch_sdpa")["torch_sdpa"]

    assert (row["status"], row["context"]) == ("ok", "isolated")
    assert [row[name] for name in STEP_COLUMNS] == [None] * len(STEP_COLUMNS)


@pytest.mark.parametrize(
    ("backend", "status", "words"),
    [
        ("wrong", "mismatch", "off by more than"),  # alone already
        ("wrong_in_layer_2", "mismatch", "in layer 2 of 3 of the step: "),
        ("forgets_a_page_in_layer_3", "mismatch", "in layer 3 of 3 of the step: "),
        ("first_layer_s_cache", "mismatch", "in layer 2 of 3 of the step: "),
        ("reads_queries_too_early", "mismatch", "hold NaN"),
        ("raises_in_layer_2", "failed", "no second workspace"),
        ("another_kernel_in_layer_3", "failed", "layer 3 runs another, layer 1 torch_sdpa_cpu"),
        ("writes_to_the_next_cache", "mismatch", "in the step, it wrote to the inputs"),
    ],
)
def test_a_backend_that_is_wrong_in_a_step_is_caught_and_the_others_are_not(
    problem: Callable[..., Problem], backend: str, status: str, words: str
):
    rows = ran(worker(), problem(), "right", backend, "torch_sdpa")

    assert (rows[backend]["status"], words in rows[backend]["reason"]) == (status, True), rows[backend]["reason"]
    assert {name: row["status"] for name, row in rows.items() if name != backend} == {"right": "ok", "torch_sdpa": "ok"}
    assert all(rows[backend][name] is None for name in STEP_COLUMNS)


def test_such_a_backend_is_right_alone(problem: Callable[..., Problem]):
    names = ("wrong_in_layer_2", "forgets_a_page_in_layer_3", "first_layer_s_cache", "writes_to_the_next_cache")
    rows = ran(worker(context="isolated", step_layers=None), problem(), *names)

    assert {row["status"] for row in rows.values()} == {"ok"}


def test_a_backend_that_goes_wrong_while_steps_are_timed_is_caught(problem: Callable[..., Problem]):
    on = worker()
    problems = problem()
    assert on.prepare(Task(Point(problems, "right", "how"), "replay")).rows == ()
    (one,) = on._prepared
    assert one.step is not None and one.step.check is not None
    second, timer = one.step.check.step.runners[1], one.step.series.timer
    step = timer.step

    def later() -> None:
        step()
        second.out[:, 0] = 7.0

    timer.step = later
    (row,) = on.measure().rows

    assert row["status"] == "mismatch"
    assert "right before it was timed, and then: in layer 2 of 3 of the step" in row["reason"]


def prepared_with_lse(problem: Callable[..., Problem]) -> StepCheck:
    """A backend that gives a log-sum-exp, checked once in a step."""
    on = worker()
    assert on.prepare(Task(Point(problem(return_lse=True), "torch_chunks", "how"), "replay")).rows == ()
    (one,) = on._prepared
    assert one.step is not None and one.step.check is not None
    return one.step.check


def in_launch(check: StepCheck, number: int, fault: Callable[[torch.Tensor], object]) -> None:
    """Makes one launch of the step do something to the second layer's log-sum-exp. All later ones write it anew."""
    step, launches = check.step.timer.step, []

    def launch() -> None:
        step()
        launches.append(1)
        lse = check.step.runners[1].lse
        assert isinstance(lse, torch.Tensor)
        if len(launches) == number:
            fault(lse)

    check.step.timer.step = launch


def after_the_end(lse: torch.Tensor) -> None:
    torch.empty(0).set_(lse.untyped_storage(), lse.storage_offset() + lse.numel(), (1,)).fill_(1.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda lse: lse[0].add_(0.5), "in layer 2 of 3 of the step: the log-sum-exp of 8 of"),
        (lambda lse: lse[0].fill_(float("nan")), "in layer 2 of 3 of the step: 8 of"),
        (after_the_end, "in the step, it wrote outside its output"),
    ],
    ids=["wrong", "nan", "outside"],
)
def test_a_log_sum_exp_that_is_wrong_in_one_launch_of_a_step_is_caught(
    problem: Callable[..., Problem], fault: Callable[[torch.Tensor], object], words: str
):
    check = prepared_with_lse(problem)
    in_launch(check, 2, fault)
    verdict = check.judge_all()

    assert verdict is not None and not verdict.passed
    assert words in verdict.reason


def test_a_right_log_sum_exp_passes_in_every_launch_of_a_step(problem: Callable[..., Problem]):
    check = prepared_with_lse(problem)
    check.after_block()
    check.inputs_were_damaged = True  # so that the first output is taken anew
    verdict = check.judge_all()

    assert verdict is not None and verdict.passed, verdict
    assert {log.count for log in check._lse_logs} == {log.count for log in check._logs} != {1}


def test_an_exception_while_steps_are_timed_ends_that_backend_alone(problem: Callable[..., Problem]):
    on = worker()
    for backend in ("right", "torch_sdpa"):
        assert on.prepare(Task(Point(problem(), backend, "how"), "replay")).rows == ()
    broken = on._prepared[0].step
    assert broken is not None

    def fails() -> None:
        raise RuntimeError("lost a stream")

    broken.series.timer.step = fails
    rows = {row["backend"]: row for row in on.measure().rows}

    assert (rows["right"]["status"], rows["torch_sdpa"]["status"]) == ("failed", "ok")
    assert "lost a stream" in rows["right"]["reason"]


def test_without_the_check_a_step_is_timed_all_the_same(problem: Callable[..., Problem]):
    row = ran(worker(check=False), problem(), "wrong_in_layer_2")["wrong_in_layer_2"]

    assert (row["status"], row["check"]) == ("ok", "not_checked: check.enabled is false")
    assert row["in_step_us"] is not None


def test_every_layer_reads_queries_and_cache_of_its_own(problem: Callable[..., Problem]):
    on = worker()
    on.prepare(Task(Point(problem(), "right", "how"), "replay"))
    assert on._shared is not None and on._shared.step is not None
    layers = [layer.inputs for layer in on._shared.step.layers]
    memory = {tensor.untyped_storage().data_ptr() for inputs in layers for tensor in (inputs.q, inputs.kv[0])}

    assert len(memory) == 2 * 3
    assert all(torch.equal(inputs.page_table, layers[0].page_table) for inputs in layers)


def test_a_cost_that_is_not_told_from_zero_is_said(problem: Callable[..., Problem]):
    on = worker()
    on.prepare(Task(Point(problem(), "right", "how"), "replay"))
    (one,) = on._prepared
    assert one.step is not None
    one.step.series.timer.step = one.step.series.timer.stand_in  # a backend that costs what the stand-in does
    one.step.check = None
    (row,) = on.measure().rows

    assert row["status"] == "ok"
    assert row["in_step_low_us"] > 0 or "cannot be distinguished from zero" in row["reason"]
