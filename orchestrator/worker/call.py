"""A backend's call, prepared in this process or in that of an environment, and its properties."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import gc_pause
from orchestrator.worker.environments import EnvironmentInputs, Environments
from orchestrator.worker.shared_inputs import SharedInputs

if TYPE_CHECKING:
    from kernels.adapter import Adapter
    from kernels.device import Device
    from kernels.timed_call import Outputs
    from kernels.timing.config import Timing
    from kernels.timing.timers import Timer


@dataclass(frozen=True)
class PreparedCall:
    """`forget` gives back what it has in another process. `peak_mem_bytes` is what it took there while it was prepared."""

    timer: Timer
    outputs: Outputs
    kernel_config: str
    peak_mem_bytes: int | None = None
    forget: Callable[[], object] = lambda: None


def prepared_call(
    adapter: Adapter, shared: SharedInputs, device: Device, timing: Timing, environments: Environments
) -> PreparedCall:
    """Prepares a backend on inputs where these are. Whatever the backend raises comes through."""
    from kernels.timed_call import LocalOutputs, prepare_timer

    problem = shared.inputs.problem
    if isinstance(shared, EnvironmentInputs):
        call, timer, outputs, about = environments.prepare(shared, adapter.name)
        return PreparedCall(timer, outputs, about["kernel_config"], about["peak_mem_bytes"], lambda: call.ask("drop"))
    here = prepare_timer(adapter, shared.inputs, device, timing)
    return PreparedCall(here, LocalOutputs(here, problem.return_lse), adapter.config_of(here.runner, problem))


def load_ahead(packages: Iterable[str]) -> None:
    """Loads what the first point would otherwise wait for. An import that fails here fails again there, and becomes its row."""
    from kernels.timing.sm_clock import clock_of_device

    with gc_pause.paused():
        for package in packages:
            with suppress(Exception):
                importlib.import_module(package)
    clock_of_device()
