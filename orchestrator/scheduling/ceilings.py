"""Measures the ceilings of every device of a pool: memory bandwidth, arithmetic, and the time of a launch."""

from __future__ import annotations

from kernels.timing.ceilings import Ceilings
from orchestrator.config.settings import Settings
from orchestrator.errors import NoWorkers, WorkerDied
from orchestrator.scheduling.interfaces import Pool, Slot
from orchestrator.worker.messages import WorkerConfig


def measure_ceilings(pool: Pool, settings: Settings) -> list[tuple[Slot, Ceilings | None]]:
    """The ceilings of every device, measured anew; None for a device without any, such as a CPU.

    Raises NoWorkers if a worker cannot start.
    """
    config = WorkerConfig(settings.timing, settings.check.enabled, settings.adapters, {}, recalibrate=True)
    started = [(slot, *pool.start(slot, config)) for slot in pool.slots]
    try:
        return [(slot, ready.result().ceilings) for slot, _, ready in started]
    except WorkerDied as death:
        raise NoWorkers(str(death)) from None
    finally:
        for _, worker, _ in started:
            worker.kill()
