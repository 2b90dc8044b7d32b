"""Which prepared backends of a problem are measured, and which again: with timing.precision=decide they depend on one another.

A backend that makes the same call as another one is credited with its time. Each keeps its own preparation and its own check. One
that is certainly slower than a rival stops early (`kernels/timing/racing.py`). Both are worth what the other one is: if that turns
out wrong, or fails, those that depended on it are measured themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from kernels.lazy import Tensor
from kernels.timing.config import Timing
from kernels.timing.racing import Race
from orchestrator.grouped import grouped
from orchestrator.worker.output_check import equal_bits
from orchestrator.worker.prepared import PreparedBackend


@dataclass
class Contest:
    """The prepared backends of one problem. `turn` are those that are to be measured now."""

    prepared: Sequence[PreparedBackend]
    timing: Timing
    turn: list[PreparedBackend] = field(init=False)
    race: Race | None = None

    def __post_init__(self) -> None:
        if self.races:
            credit(self.prepared)
        self.turn = [one for one in self.prepared if one.measured_as is None]
        self._start_race()

    @property
    def races(self) -> bool:
        """Not for an A/A pair, nor for backends in several environments: there the question is how far times differ."""
        points = [one.task.point for one in self.prepared]
        return self.timing.races and not any(point.twin for point in points) and len({point.env for point in points}) == 1

    def to_check(self) -> list[PreparedBackend]:
        """After a turn: those that were measured in it, and those that they stand for."""
        return [one for one in self.prepared if one in self.turn or (one.measured_as in self.turn)]

    def next_turn(self) -> None:
        """After the checks of a turn: what depended on a backend that has no time is measured itself; often nothing."""
        self.turn = [one for one in self.prepared if self._has_time(one) and not self._is_settled(one)]
        for one in self.turn:
            one.measured_as = None
            one.series.reopen()
        self._start_race()

    def finished(self, unchecked: Sequence[PreparedBackend]) -> list[PreparedBackend]:
        """Those that have been checked and depend on nobody without a time, if the turn ends early."""
        return [one for one in self.prepared if one not in unchecked and (not self._has_time(one) or self._is_settled(one))]

    def _is_settled(self, one: PreparedBackend) -> bool:
        """Whether those that its time depends on have theirs."""
        return all(self._has_time(other) for other in (one.measured_as, one.decided_by) if other is not None)

    def _has_time(self, one: PreparedBackend) -> bool:
        if one.series.error is not None or one.failed_check:
            return False
        refused = self.timing.throttled == "refuse" and one.series.stop_reason is not None
        return not refused or one.series.result().only_unthrottled

    def _start_race(self) -> None:
        if self.turn and self.races:
            racing = [one for one in self.prepared if one.measured_as is None and (one in self.turn or self._has_time(one))]
            contenders = [one.series for one in racing if not one.adapter.copies_cache]
            for one in racing:
                one.rivals = racing
            race = Race([one.series for one in racing], contenders)
            race.round = 0 if self.race is None else self.race.round
            self.race = race


def credit(prepared: Sequence[PreparedBackend]) -> None:
    """Sets `measured_as` where calls agree, by key and output, bit by bit; `auto` has the time of the kernel that it chose."""
    by_call = grouped((_call_of(one), one) for one in prepared)
    by_call.pop(None, None)
    for members in by_call.values():
        source = min(members, key=lambda one: one.task.point.backend != one.runner.resolved_backend)
        for one in members:
            if one is not source and all(map(equal_bits, _outputs_of(one), _outputs_of(source))):  # on the same inputs
                one.measured_as = source


def _call_of(one: PreparedBackend) -> Hashable | None:
    """All that two backends must share to be one call; None for one that is to be measured itself."""
    runner, timer, point = one.runner, one.series.timer, one.task.point
    if runner.call is None or runner.copies or point.env is not None or one.task.forced_rule:
        return None
    where = (one.row.get("kernel_config"), one.row.get("libraries"), point.plugin_code)
    return (runner.call, runner.resolved_backend, runner.arithmetic, timer.name, timer.l2, timer.icache, *where)


def _outputs_of(one: PreparedBackend) -> tuple[Tensor | None, Tensor | None]:
    lse = one.runner.written_lse()
    return one.runner.as_asked(one.runner.out), None if lse is None else one.runner.without_padding(lse)
