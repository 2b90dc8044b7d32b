"""How fast a device may be loaded: rests that keep it from its power cap, and waits until a cap that acted is gone.

On an H200 (700 W) kernels that draw 850 W brought the clock down from 1800 to between 1400 and 1590 MHz within 50 ms and took up to
1.16 times their time, and NVML named the cap until the device had idled for 380 to 520 ms. In short blocks with rests between, the
same kernels met it seldom or never. `benchmarks/pacing.py` shows both.
"""

from __future__ import annotations

import time

from kernels.witness import Witness

FIRST_RATIO, RATIO_GROWTH, RATIO_DECAY, LARGEST_RATIO = 0.5, 1.3, 0.995, 2.0
FIRST_PAUSE_S, PAUSE_GROWTH, PAUSE_DECAY, LONGEST_PAUSE_S = 0.05, 1.5, 0.7, 0.5  # growth and longest as in nvbench
PATIENCE_S, LEAST_PATIENCE_S = 0.75, 0.05
POLL_S = 0.005


def _slept(seconds: float) -> float:
    """Sleeps; the seconds that passed, which are more."""
    start = time.perf_counter()
    time.sleep(seconds)
    return max(seconds, time.perf_counter() - start)


class Pace:
    """Of one device, whatever runs on it: what one group of points has taught, the next one starts with.

    `ratio` is the rest after a block over the time of that block: 0 until the device is first held down, larger each time that it
    is, and slowly smaller while it is not.
    """

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.ratio = 0.0
        self._pause_s = 0.0
        self._patience_s = PATIENCE_S
        self._rested_at = 0.0  # when the rest after the last block will have been long enough

    def rest(self) -> float:
        """Before a block: sleeps off what is left of the rest after the last one; seconds."""
        left = self._rested_at - time.perf_counter()
        return _slept(left) if left > 0 else 0.0

    def after(self, block_s: float, held_down: bool) -> float:
        """Learns from a block that took `block_s`, and waits where the device was held down; seconds."""
        if held_down:
            self.ratio = min(LARGEST_RATIO, max(FIRST_RATIO, self.ratio * RATIO_GROWTH))
            self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause_s * PAUSE_GROWTH))
            return self.recover(self._pause_s)
        self.ratio *= RATIO_DECAY
        self._pause_s *= PAUSE_DECAY
        # A cap forgets within half a second, however long the block was.
        self._rested_at = time.perf_counter() + min(LONGEST_PAUSE_S, self.ratio * block_s)
        return 0.0

    def recover(self, least_s: float = 0.0) -> float:
        """Waits until NVML names no cause, and `least_s` at least, since it answers late; seconds.

        Patience halves each time that it was not enough: no wait helps a device that is always held down.
        """
        waited = _slept(least_s) if least_s else 0.0
        while held_down := bool(self.witness.held_down_by()):
            if waited >= self._patience_s:
                break
            waited += _slept(POLL_S)
        self._patience_s = max(LEAST_PATIENCE_S, self._patience_s / 2) if held_down else PATIENCE_S
        return waited
