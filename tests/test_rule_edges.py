"""The sweeps of rule edges have points on both sides of every condition of a rule that depends on the problem."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels import registry
from kernels.device import Device
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.expand import expand

H200 = known_devices()["h200"]
SWEEPS = {"paged_decode": "paged", "paged_prefill": "paged", "ragged_prefill": "ragged", "mla": "mla"}
OF_THE_DEVICE = ("SM", "a CUDA device of SM80", "a CPU, or", "on a CPU")  # a sweep runs on one GPU
# A ragged cache has no pages and is small, and no tree is allowed there. FP8 queries have outputs of another dtype, and no model
# has another latent.
NEVER_ALONE = {
    "ragged_prefill": ("on CUDA a page_size", "on CUDA a cache of up to 2^31 elements", "no log-sum-exp over a draft tree"),
    "mla": ("fp16 or bf16 queries", "a latent of 512 + 64"),
}
IN_SWEEPS = ("flash_attn_3", "flex_attention", "flash_attn_3_vllm", "flash_attn_3_sglang", "flash_attn_2_vllm")
SUBJECTS = [key for key in registry.adapters() if key[0] in SWEEPS and key[1] in IN_SWEEPS]


def conditions(routine: str, backend: str, sweep: Settings, device: Device) -> tuple[set[str], set[str]]:
    """The backend's own conditions at the points of a sweep, and all that are the only ones unmet at some point."""
    adapter, said, alone = registry.get(routine, backend), set(), set()
    for point in expand(sweep):
        if (point.problem.routine, point.backend) == (routine, backend):
            said |= {need.sentence for need in adapter.needs(point.problem, device)}
            unmet = adapter.unmet(point.problem, device)
            alone |= set(unmet) if len(unmet) == 1 else set()
    return said, alone


@pytest.mark.parametrize(("routine", "backend"), SUBJECTS, ids=["-".join(key) for key in SUBJECTS])
def test_every_condition_is_crossed_by_itself(routine: str, backend: str, settings: Callable[..., Settings]):
    said, alone = conditions(routine, backend, settings(f"+sweep=rule_edges_{SWEEPS[routine]}"), H200)
    elsewhere = (*OF_THE_DEVICE, *NEVER_ALONE.get(routine, ()))
    expected = {sentence for sentence in said if not sentence.startswith(elsewhere)}

    assert len(expected) >= 3
    assert expected - alone == set()
    if backend == "flex_attention":
        assert alone >= {"no attention sinks", "no log-sum-exp as a second output"}
