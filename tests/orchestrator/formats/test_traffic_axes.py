"""`traffic=FILE` with a sweep: its points in place of the axes of lengths, and what it does not go with."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.formats.import_config import resolve_files
from orchestrator.planning.expand import expand
from tests.helpers.command_line import composed

TRACE = (
    '{"timestamp": 0, "input_length": 1000, "output_length": 100}\n{"timestamp": 1, "input_length": 9000, "output_length": 100}\n'
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return f"traffic={path}"


def test_the_points_replace_the_lengths_and_the_other_axes_stay(trace: str):
    settings = load(resolve_files(composed("+sweep=specdec_long_ctx", trace, "traffic_points=2")))
    problems = [point.problem for point in expand(settings)]

    assert {p.s_kv for p in problems} == {1050, 9050}
    assert {p.batch_size for p in problems} == {1, 8, 32, 64}
    assert {p.s_qo for p in problems} == {1, 2, 4, 8}
    assert "s_kv 1,050 (50%), s_kv 9,050 (50%)" in settings.sweep.about


def test_batch_sizes_of_the_file_replace_those_of_the_sweep(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"batch_size": 3, "s_kv": 500}\n')
    problems = [p.problem for p in expand(load(resolve_files(composed("+sweep=specdec_long_ctx", f"traffic={path}"))))]

    assert {(p.batch_size, p.s_kv) for p in problems} == {(3, 500)}


def test_a_sweep_of_ragged_prefill_gets_prompts(trace: str):
    problems = [
        p.problem
        for p in expand(
            load(
                resolve_files(
                    composed(
                        "+sweep=specdec_long_ctx", "sweep.routine=ragged_prefill", "sweep.backend=[fa2]", trace, "traffic_points=2"
                    )
                )
            )
        )
    ]

    assert {(p.s_qo, p.s_kv) for p in problems} == {(1000, 1000), (9000, 9000)}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "type +sweep=NAME with it"),
        (["+sweep=specdec_long_ctx", "import=a.txt"], "allowed: one of them at a time"),
        (["+sweep=specdec_long_ctx", "export=rows.csv"], "traffic weighs flags alone; leave one of them out, or type export=vllm"),
        (["+sweep=specdec_long_ctx", "mode=dashboard"], "mode=dashboard measures nothing"),
        (["+sweep=specdec_long_ctx", "traffic_points=0"], "traffic_points=0: allowed: a whole number from 1"),
        (
            ["+sweep=specdec_long_ctx", "traffic_points=1001"],
            "traffic_points=1001: allowed: a whole number from 1 to 1,000, such as",
        ),
        (["mode=report", "results.path=x", "traffic_points=1001"], "traffic_points=1001: allowed: at most 1000"),
    ],
)
def test_what_traffic_does_not_go_with_is_named(trace: str, overrides: list[str], words: str):
    with pytest.raises(UserError) as caught:
        load(resolve_files(composed(trace, *overrides)))

    assert words in str(caught.value)


def test_steps_alone_are_no_prompts(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"s_kv": 500}\n')
    with pytest.raises(UserError, match="no input_length, which a sweep of ragged_prefill needs"):
        resolve_files(composed("+sweep=specdec_long_ctx", "sweep.routine=ragged_prefill", "sweep.backend=[fa2]", f"traffic={path}"))
