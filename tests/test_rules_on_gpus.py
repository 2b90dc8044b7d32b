"""Today's support rules against what an H200 and an H100 did at both sides of every edge (`results/*_rules/rule_edges`)."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

from kernels import registry
from kernels.adapter import Adapter
from kernels.device import Device
from orchestrator import ROOT
from orchestrator.machines import known_devices
from tests.helpers.committed_rows import limit_of, problem_of
from tests.helpers.strict_rules import KNOWN_STRICT

CARDS = ("h200", "h100")
DEVICES = {known_devices()[card].name: known_devices()[card] for card in CARDS}
FILES = [ROOT / "results" / f"{card}_rules" / "rule_edges.parquet" for card in CARDS]
# Calls that are others today: vLLM's Triton kernel got no scales for FP8 queries, SGLang's fa3 no 16-bit copy of an FP8 latent.
OTHERS = {("vllm_triton", "paged_decode", "fp8_e4m3"), ("vllm_triton", "paged_prefill", "fp8_e4m3")}
OTHERS |= {("flash_attn_3_sglang", "mla", q_dtype) for q_dtype in ("bf16", "fp16", "fp8_e4m3")}
ROWS = [
    row
    for file in FILES
    for row in pd.read_parquet(file).to_dict("records")
    if (row["backend"], row["routine"], row["q_dtype"]) not in OTHERS or row["kv_dtype"] != "fp8_e4m3"
]
TRITON_OF_TORCH = {"2.11.0": "3.6.0"}
SWEEPS = ("rule_edges_paged", "rule_edges_ragged", "rule_edges_mla")


def was_right(row: dict[Any, Any]) -> bool:
    """Within today's tolerance of today's name for what the kernel computes; a crash, NaN and a refusal are not.

    A row's own tolerance is wider if its values cancel. A log-sum-exp that was asked for must be right too.
    """
    lse_is_wrong = row["lse_err"] > row["lse_tolerance"]  # both NaN if none was asked for
    return bool(row["rel_err"] <= max(limit_of(row), row["tolerance"])) and not lse_is_wrong


def unmet(row: dict[Any, Any]) -> list[str]:
    return adapter_of(row).unmet(problem_of(row), device_of(row))


def device_of(row: dict[Any, Any]) -> Device:
    return DEVICES[row["device_name"]]


def adapter_of(row: dict[Any, Any]) -> Adapter:
    """With the Triton of the row's torch, which one rule asks for; of the libraries the rules are those of the latest release."""
    return registry.get(row["routine"], row["backend"]).for_versions({"triton": TRITON_OF_TORCH[row["torch_version"]]})


def not_passed(row: dict[Any, Any]) -> tuple[str, ...]:
    return adapter_of(row).not_passed(problem_of(row), device_of(row))


@pytest.mark.parametrize("sweep", SWEEPS)
def test_what_the_rules_allow_was_right(sweep: str):
    allowed = [row for row in ROWS if row["sweep"] == sweep and not unmet(row)]

    assert len(allowed) > 70
    assert [row["point_id"] for row in allowed if not was_right(row)] == []


@pytest.mark.parametrize("sweep", SWEEPS)
def test_what_the_rules_forbid_failed_when_it_was_forced(sweep: str):
    forbidden = [row for row in ROWS if row["sweep"] == sweep and unmet(row) and not not_passed(row)]
    strict = [row for row in forbidden if was_right(row)]

    assert len(forbidden) > 40
    # A mismatch without that word was allowed when it ran, and is why its rule forbids it since.
    assert all("forced: " in row["reason"] or row["status"] == "mismatch" for row in forbidden if row not in strict)
    assert [row["reason"] for row in strict if not any(re.search(known, row["reason"]) for known in KNOWN_STRICT)] == []


def test_a_forced_row_says_what_its_kernel_was_not_told():
    forced = [row for row in ROWS if unmet(row) and "forced: " in row["reason"]]

    assert [row["reason"] for row in forced if ("not passed to the kernel" in row["reason"]) != bool(not_passed(row))] == []


@pytest.mark.parametrize("card", CARDS)
def test_the_page_counts_both_sides_of_the_rules(card: str):
    ran = [row for row in ROWS if row["device_name"] == known_devices()[card].name]
    allowed = sum(not unmet(row) for row in ran)
    told = [row for row in ran if unmet(row) and not not_passed(row)]
    strict, silent = sum(map(was_right, told)), len(ran) - allowed - len(told)
    line = f"| {card.upper()} | {len(ran):,} | {allowed:,} of {allowed:,} | {len(told) - strict} | {strict} | {silent} |\n"

    assert line in (ROOT / "docs" / "backends.md").read_text()


def test_fa2_is_refused_where_it_does_not_load_keys_whole_and_nowhere_else():
    rows = pd.read_parquet(ROOT / "results" / "h200_rules" / "rule_edges_fa2_keys.parquet").to_dict("records")

    assert {(bool(unmet(row)), was_right(row)) for row in rows} == {(True, False), (False, True)}
