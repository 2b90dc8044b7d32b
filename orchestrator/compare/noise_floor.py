"""What two measurements of one kernel differ by beyond what their samples show: fitted to twins, or the default of an H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.compare.pairs import pair

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]

LEAST_TWINS = 20  # pairs from which two numbers can be fitted


@dataclass(frozen=True)
class Floor:
    """Standard deviation of the log of a ratio of two times: `us` microseconds of each time and `rel` of it, in squares.

    `us` is what a launch costs now more, now less, and matters to short kernels; `rel` is what clocks and placement do.
    """

    us: float
    rel: float

    def variance(self, times_us: Floats) -> Floats:
        """Of the log ratio at these times."""
        return (self.us / times_us) ** 2 + self.rel**2

    def __str__(self) -> str:
        return f"{self.us:.2g} µs and {self.rel:.2%}"


# Of H200s, rounded up. In turns: the twins of one (results/h200_specdec_long_ctx_noise) gave 0.18 µs and 0.01%, of another 0.18 µs
# and 0.04%. Between runs: what the same points differ by in two runs on two H200s, beyond that, 0.55 µs and 0.45%. docs/compare.md
# says how.
IN_TURNS = Floor(0.2, 0.0005)
BETWEEN_RUNS = Floor(0.6, 0.005)
# Of rows that kept no clocks of their samples, root mean squares of what the same points differed by in two runs on two H200s, one
# of which kept none: 4.6% where NVML named a cause that held the clock down, 1.4% where it did not.
HELD_DOWN_CLOCK, UNNOTED_CLOCK = 0.05, 0.015


@dataclass(frozen=True)
class Floors:
    """The floor in turns of each kind of device that has twins, where they were found; the default for every other."""

    by_device: Mapping[str, Floor]
    source: str = ""

    def of(self, device_names: pd.Series) -> tuple[Floats, Floats]:
        """`us` and `rel` for each row."""
        import numpy as np

        found = [self.by_device.get(str(name), IN_TURNS) for name in device_names]
        return np.array([floor.us for floor in found]), np.array([floor.rel for floor in found])


def from_twins(noise: pd.DataFrame, source: str) -> Floors:
    """Floors of the kinds of devices that have twins enough in `noise`."""
    import numpy as np

    twins = pair(noise[noise["twin"] == 0], noise[noise["twin"] == 1])
    twins = twins[(twins["status_a"] == "ok") & (twins["status_b"] == "ok") & twins["log_se_a"].notna() & twins["log_se_b"].notna()]
    found = {}
    for device, part in twins.groupby("device_name_a"):
        if len(part) >= LEAST_TWINS:
            time = np.exp((part["log_us_a"] + part["log_us_b"]).to_numpy() / 2)
            variance = (part["log_se_a"] ** 2 + part["log_se_b"] ** 2).to_numpy()
            found[str(device)] = fit((part["log_us_b"] - part["log_us_a"]).to_numpy(), variance, time)
    return Floors(found, source)


def fit(log_ratio: Floats, variance: Floats, times_us: Floats) -> Floor:
    """The floor under which the log ratios of twins are most likely, if normal with it beside `variance` of their samples."""
    import numpy as np

    def unlikeliness(floor: Floor) -> float:
        total = variance + floor.variance(times_us) + 1e-12  # equal twins without any spread leave some
        return float(np.sum(np.log(total) + log_ratio**2 / total))

    tried = (Floor(us, rel) for us in np.geomspace(0.01, 10, 61) for rel in np.geomspace(1e-4, 0.1, 61))
    best = min(tried, key=unlikeliness)
    return Floor(float(best.us), float(best.rel))
