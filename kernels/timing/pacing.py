"""The duty cycle of a device: idle time that keeps it below its power cap, and waits until a cap that acted is gone.

On an H200 (700 W), kernels that draw 850 W brought the clock down from 1800 to between 1400 and 1590 MHz within 50 ms and took up
to 1.16 times as long. NVML reported the cap until the device had idled for 380 to 520 ms. In short blocks with idle time between
them, the same kernels met the cap seldom or never. docs/timing.md shows both.
"""

from __future__ import annotations

import time

from kernels.timing.nvml import DeviceMonitor

# Idle time after a block, over the time of the block: the duty cycle is at least a third.
FIRST_IDLE, IDLE_GROWTH, IDLE_DECAY, MAX_IDLE = 0.5, 1.3, 0.995, 2.0
FIRST_PAUSE_S, PAUSE_GROWTH, PAUSE_DECAY, MAX_PAUSE_S = 0.05, 1.5, 0.7, 0.5  # growth and maximum as in nvbench
MAX_PATIENCE_S, MIN_PATIENCE_S = 0.75, 0.05
POLL_S = 0.005


def _sleep(seconds: float) -> float:
    """Sleeps. Returns the time it really took, in seconds."""
    start = time.perf_counter()
    time.sleep(seconds)
    return max(seconds, time.perf_counter() - start)


class Pacer:
    """The duty cycle of a device, which outlives points. `idle_ratio`, over a block's time, grows if throttled, else shrinks."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self.monitor = monitor
        self.idle_ratio = 0.0
        self._pause_s = 0.0
        self._patience_s = MAX_PATIENCE_S
        self._idle_until = 0.0

    def idle_before_block(self) -> float:
        """Sleeps through what is left of the idle time after the last block. Returns the seconds it took."""
        left = self._idle_until - time.perf_counter()
        return _sleep(left) if left > 0 else 0.0

    def after_block(self, block_s: float, throttled: bool) -> float:
        """Learns from a block that took `block_s` seconds, and waits if it was throttled. Returns the seconds it waited."""
        if throttled:
            self.idle_ratio = min(MAX_IDLE, max(FIRST_IDLE, self.idle_ratio * IDLE_GROWTH))
            self._pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, self._pause_s * PAUSE_GROWTH))
            return self.wait_until_unthrottled(self._pause_s)
        self.idle_ratio *= IDLE_DECAY
        self._pause_s *= PAUSE_DECAY
        # A cap is gone within half a second, however long the block was.
        self._idle_until = time.perf_counter() + min(MAX_PAUSE_S, self.idle_ratio * block_s)
        return 0.0

    def wait_until_unthrottled(self, min_s: float = 0.0) -> float:
        """Waits until NVML names no cause, `min_s` at least, as it answers late; patience halves if in vain. The seconds."""
        waited = _sleep(min_s) if min_s else 0.0
        while throttled := bool(self.monitor.throttled_by()):
            if waited >= self._patience_s:
                break
            waited += _sleep(POLL_S)
        self._patience_s = max(MIN_PATIENCE_S, self._patience_s / 2) if throttled else MAX_PATIENCE_S
        return waited
