"""The same command gives the same plan and the same rows as before the code was rearranged (commit 655287d).

Then the L2 held dirty lines before each sample, as it does with `timing.l2=dirty` today, and all was measured in full.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Plan
from tests.helpers.command_line import run

KNOWN: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
COMMANDS = {
    "smoke": ["+sweep=smoke", "cluster=inline", "timing=quick"],
    "bad backends": [
        "+sweep=smoke",
        "cluster=inline",
        "timing=quick",
        "adapters=[tests.backends.faulty,tests.backends.uncompilable]",
        "sweep.backend=[torch_sdpa,raises,wrong,nan,writes_once,raises_later,out_of_memory,uncompilable,nothing]",
        "sweep.dtype=[{q: bf16, kv: bf16},{q: bf16, kv: fp8_e4m3}]",
        "sweep.batch_size=[1]",
        "sweep.s_kv=[256]",
        "sweep.s_qo=[4]",
        "check.force_unsupported=true",
    ],
}
# What makes a sweep the one of that day, if it has more points today.
AS_THEN = {
    "specdec_long_ctx": ["sweep.backend=[fa2,fa2_tc,auto,cudnn,trtllm-native,trtllm-gen,torch_sdpa]"],
    "mla_mtp": ["sweep.include=[]"],
}
# Whether these are filled depends on the machine or on the samples, so they are not compared.
IGNORED = {"cuda", "within_block_rel", "between_blocks_rel", "lag1_autocorr", "ci95_rel"}
IGNORED |= {
    "rms_err",
    "check_max_error",
    "weight_over_limit",
    "check_min_tokens",
    "check_pairs_covered",
    "check_stale_covered",
    "inputs_checked",
    "launches_checked",
    "same_bits",
    "batch_invariant",
    "libraries",
    "kernel_config",
    "context",
    "shared_prefix",
    "return_lse",
    "graph_fill",
    "num_states",
    "own_us",
}  # later columns
# The values of these differ between machines or runs, so only whether they are filled is compared.
VARIABLE = {
    "run_id",
    "command",
    "resolved_backend",
    "host",
    "torch_version",
    "flashinfer_version",
    "ray_version",
    "orchestrator_version",
    "started_at",
    "finished_at",
    "rel_err",
    "max_abs_err",
    "err_over_tolerance",
    "num_samples",
    "stop_reason",
    "bimodal",
    "samples_us",
    "block_sizes",
    "compile_s",
}


def is_exact(column: str, value: object) -> bool:
    """Whether a value is the same in every run; of the numbers that are not whole only the tolerance is."""
    return column not in VARIABLE and (column == "tolerance" or not isinstance(value, float))


def facts_of(path: Path) -> dict[str, Any]:
    """What a dataset's rows have in common, and what each has beside it, by backend and point."""
    rows = pq.ParquetFile(path / "rows.parquet").read().to_pylist()
    facts = [fact_of({name: value for name, value in row.items() if value is not None and name not in IGNORED}) for row in rows]
    common = {name: value for name, value in facts[0].items() if all(fact.get(name) == value for fact in facts)}
    each = {
        f"{fact['backend']} {fact['point_id']}": {name: value for name, value in fact.items() if name not in common}
        for fact in sorted(facts, key=lambda fact: (fact["backend"], fact["point_id"]))
    }
    facts_of_all: dict[str, Any] = json.loads(json.dumps({"common": common, "each": each}))
    return facts_of_all


def fact_of(row: dict[str, Any]) -> dict[str, Any]:
    exact = {name: value for name, value in row.items() if is_exact(name, value)}
    # PyTorch's own words, which another version may change
    exact["reason"] = exact["reason"].partition("Expected query, key")[0].partition(", worst")[0]
    return exact | {"filled": " ".join(sorted(row.keys() - exact.keys()))}


def digest_of(plan: Plan) -> str:
    """A hash over every decision and every group of a plan, in order."""
    decisions = [
        [d.point.point_id, d.point.group_id, d.kind, d.reason, d.devices, [f"{arch} {module}" for arch, module in d.modules]]
        for d in plan.decisions
    ]
    costs = [f"{d.cost.total_s:.6g} {d.cost.memory_bytes}" for d in plan.decisions]
    groups = [[[point.point_id for point in group.points], group.devices, f"{group.cost_s:.6g}"] for group in plan.groups]
    return hashlib.sha256(json.dumps([decisions, costs, groups]).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sweep_on_the_cpu_gives_the_same_rows_as_before(name: str, tmp_path: Path):
    """The tolerance holds the roundings of log-sum-exps today, and how far values and splits of a row cancel, so it is wider."""
    done = run(*COMMANDS[name], "timing.l2=dirty", f"results.path={tmp_path / 'rows'}")
    found, known = facts_of(tmp_path / "rows"), copy.deepcopy(KNOWN["rows"][name])
    tolerances = [(now.pop("tolerance", 0), known["each"][key].pop("tolerance", 0)) for key, now in found["each"].items()]

    assert done.returncode == (0 if name == "smoke" else 1), done.stderr
    assert found["common"] == known["common"]
    assert found["each"] == known["each"]
    assert any(then for _, then in tolerances)
    assert all(then <= now <= 1.1 * then for now, then in tolerances)


@pytest.mark.parametrize("name", KNOWN["plans"])
def test_a_sweep_has_the_same_plan_as_before(name: str, settings: Callable[..., Settings]):
    sweep, device = name.split(" on ")
    asked = settings(f"+sweep={sweep}", "timing.l2=dirty", "timing.precision=full", *AS_THEN.get(sweep, []))

    later = ("batch_attention", "batch_pod")  # as requests without keys
    points = [p for p in expand(asked) if not (p.problem.batch_spec or "").endswith("s0") and p.backend not in later]

    assert digest_of(make_plan(points, [known_devices()[device]], asked)) == KNOWN["plans"][name]
