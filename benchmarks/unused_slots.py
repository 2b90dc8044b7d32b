"""Does NaN in slots that hold no token reach a backend's answer? Decides `Adapter.skips_unused` and `skips_unused_in`.

    python benchmarks/unused_slots.py [BACKEND] [ROUTINE]

Runs on the GPU that is there, else on the CPU; a few seconds for a backend whose modules are compiled.
A kernel that leaves such keys out gives the right answer whatever they hold. One that only gives them the probability 0 multiplies
0 by NaN. FlashAttention-3 has both, by its source: it loads rows of pages one by one and fills the last tile up with zeros
(`paged_kv.h`), or whole pages by TMA if a page is a multiple of its tile of keys and the queries fill more than one tile
(`get_pagedkv_tma`). So there are problems for each. What an H200 said of it is in `benchmarks/data/h200_unused_slots.csv`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from kernels import registry
from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.device import Device
from kernels.inputs.generate import UNUSED_SLOT, draw, poison_unused_slots
from kernels.problem import Problem
from orchestrator import machines, tables
from orchestrator.tables import Grid

SHAPE = {"batch_size": 3, "s_kv": 1000, "num_qo_heads": 64, "num_kv_heads": 8}
FP8 = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
PROBLEMS: tuple[dict[str, Any], ...] = (
    {"s_qo": 1},
    {"s_qo": 4},
    {"s_qo": 4, "page_size": 16},
    {"s_qo": 4, "page_size": 128},
    {"s_qo": 4, "window": 200},
    {"s_qo": 4, "mask": "full"},
    {"s_qo": 4, **FP8},
    {"s_qo": 8, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2, 3)},
    {"s_qo": 64},
    {"s_qo": 64, "page_size": 128},
    {"s_qo": 64, "page_size": 176, "mask": "full"},
    {"s_qo": 64, "page_size": 128, "head_dim": 64},
    {"s_qo": 64, "page_size": 80, "head_dim": 256},
    {"s_qo": 64, "window": 200, "head_dim": 256},
    {"s_qo": 64, "page_size": 224, **FP8},
    {"s_qo": 64, "page_size": 128, "head_dim": 256, **FP8},
)


def problem(routine: str, keys: Mapping[str, Any]) -> Problem:
    given = {"page_size": 64, "head_dim": 128, **keys}
    dim = given.pop("head_dim")
    return Problem.model_validate({**SHAPE, "routine": routine, "head_dim_qk": dim, "head_dim_vo": dim, **given})


def answer_with(adapter: Adapter, device: Device, p: Problem, value: float) -> str:
    """right, or what is wrong, if unused slots hold `value`."""
    inputs = draw(p, device.kind)
    runner = adapter.prepare(inputs, device)
    right = oracle.reference(inputs)
    poison_unused_slots(inputs, value)
    runner.out.fill_(math.nan)
    runner.refresh()
    runner()
    found = runner.as_asked(runner.out)
    verdict = oracle.judge(found, right, p, runner.arithmetic)
    rows = int((~found.float().isfinite()).flatten(1).any(1).sum())
    return "right" if verdict.passed else f"{rows} of {len(found)} rows not finite" if rows else "wrong"


def main(backend: str = "flash_attn_3", routine: str = "paged_prefill") -> None:
    device, adapter = machines.describe().devices[0], registry.get(routine, backend)
    cells = []
    for keys in PROBLEMS:
        p = problem(routine, keys)
        if unmet := adapter.unmet(p, device):
            cells.append((spelled(keys), "unsupported", unmet[0], ""))
            continue
        declared = "skipped" if adapter.skips_unused_in(p) else "not skipped"
        cells.append((spelled(keys), declared, *(answer_with(adapter, device, p, value) for value in (UNUSED_SLOT, math.nan))))
    head = ("problem", "declared", f"with {UNUSED_SLOT:g}", "with NaN")
    print(tables.markdown([Grid(f"{routine} {backend} on {device.name}", head, tuple(cells))]))


def spelled(keys: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in keys.items() if key != "tree")


if __name__ == "__main__":
    main(*sys.argv[1:])
