"""Rows of the committed dataset that say nothing of a rule: their kernels were told less, or something else, than today's.

Rows name the code that ran them, so this is over as soon as the dataset is measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rows import problem_of
from kernels.problem.dtypes import FP8

BEFORE = frozenset({"unknown+g738fa0c06e7b", "0.1.0+g1dac4e884dce"})  # `orchestrator_version` of rows of that code


def is_void(row: Mapping[Any, Any]) -> bool:
    """Whether a row shows nothing of the rule: a mismatch that no kernel could have avoided."""
    if row["orchestrator_version"] not in BEFORE or "forced: " not in row["reason"]:
        return False
    p, backend = problem_of(row), row["backend"]
    return (
        p.sinks  # TensorRT-LLM's decode kernels were given them, and were right
        or (p.latent and p.mask != "causal")  # MLA was told `causal = s_qo > 1`
        or (p.routine == "paged_decode" and p.mask == "full")  # the wrapper of decode was not told of the mask
        or (p.routine != "paged_decode" and backend == "cudnn" and p.kv_dtype in FP8)  # cuDNN's prefill was given no scales
    )
