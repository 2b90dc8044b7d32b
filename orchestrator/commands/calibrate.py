"""mode=calibrate: the measured ceilings of every device of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.settings import Settings
from orchestrator.errors import NoWorkers

if TYPE_CHECKING:
    from kernels.timing.ceilings import Ceilings


def execute(invocation: Invocation[Settings]) -> int:
    """Measures and prints them; 1 if a worker could not start."""
    from orchestrator.pools import connect
    from orchestrator.scheduling.ceilings import measure_ceilings
    from orchestrator.tables import Grid, draw

    try:
        with connect(invocation.settings.cluster) as pool:
            measured = measure_ceilings(pool, invocation.settings)
    except NoWorkers as error:
        invocation.say(f"stopped: {error}")
        return BAD_POINTS
    for slot, ceilings in measured:
        if ceilings is None:
            invocation.say(f"{slot.name}: {slot.device_name} has no ceilings to measure; a row's frac_of_peak stays empty there")
        else:
            title = f"measured ceilings · {slot.device_name} · {slot.name}"
            draw(invocation.console, [Grid(title, ("what", "at best", "by"), _cells(ceilings))])
    return OK


def _cells(ceilings: Ceilings) -> tuple[tuple[str, str, str], ...]:
    """Bandwidths, matrix rates by dtype, and the time of a launch; with what reached each."""
    rates = {"read": ceilings.tb_per_sec, "copy": ceilings.copy_tb_per_sec}
    return (
        *((name, f"{rate:.3f} TB/s", ceilings.reached_by[name]) for name, rate in rates.items()),
        *((f"matrix {dtype}", f"{rate:.1f} TFLOP/s", ceilings.reached_by[dtype]) for dtype, rate in ceilings.tflops.items()),
        ("launch", f"{ceilings.launch_us:.2f} µs", "a graph of one kernel"),
    )
