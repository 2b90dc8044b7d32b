"""How carefully to measure: the keys of `conf/timing/*.yaml`, and the part of them that names a point."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PositiveFloat, model_validator

from kernels.data import Data
from kernels.timing.caches import Caches, ICacheState, L2State
from kernels.timing.sm_clock import MAX_STAMPS
from kernels.timing.stopping import CriterionName
from kernels.timing.timers import TimerName

Context = Literal["isolated", "step", "engine"]
Pace = Literal["bursts", "sustained"]
Precision = Literal["full", "decide"]

MIN_SAMPLES = 10  # of every point, whatever its budget
RENAMED_L2 = {"cold": "dirty"}  # states by the names that they had before there were two ways to flush


Seconds = Annotated[float, Field(gt=0, le=1e7)]  # four months: what waits needs an end
Wait = Annotated[float, Field(ge=0, le=1e7)]


class Timing(Data):
    """How to measure one point. Seconds are wall time unless a key says otherwise.

    In YAML and on the command line `criterion_limit` is called `limit`. Python code may use either name.
    Raises pydantic's ValidationError if a key is unknown or has a wrong value.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    name: str = "custom"
    timer: TimerName = "graph"  # of a CUDA device; a CPU always uses its wall clock
    l2: Annotated[L2State, BeforeValidator(lambda l2: RENAMED_L2.get(l2, l2) if isinstance(l2, str) else l2)] = "clean"
    l2_flush_factor: Annotated[float, Field(ge=2)] = 2.0  # bytes read or written before each sample, over the size of the L2
    icache: ICacheState = "warm"  # cold: other code runs before each sample, as an engine's kernels do between two layers
    # Calls before the first sample; with 0, the CPU's time for a call is not measured either.
    warmup: Annotated[int, Field(ge=0, le=10**6)] = 3
    # sustained: samples of a second's load without rests, in which a power cap counts (`sustained.py`), not in short blocks
    pace: Pace = "bursts"
    criterion: CriterionName = "ci95"
    # Relative half-width of the interval (ci95), relative standard deviation (stdrel), degrees a sample (entropy).
    criterion_limit: PositiveFloat = Field(0.005, alias="limit")
    min_samples: Annotated[int, Field(ge=MIN_SAMPLES)] = 20
    max_samples: Annotated[int, Field(ge=MIN_SAMPLES, le=10**6)] = 200
    min_seconds: Wait = 0.0  # of measured time, the sum of the samples
    max_seconds: Seconds = 0.5  # on sampling, and half as much again with idle time; MIN_SAMPLES are taken all the same
    block_samples: Annotated[int, Field(ge=2, lt=MAX_STAMPS)] = 10  # the most of one block
    block_seconds: Seconds = 0.006  # about the length of a block: short bursts keep a device from its power cap
    block_gap_seconds: Wait = 0.01  # the least between the first two blocks, if no other backend runs between them
    energy: bool = False  # adds a block of about a second to each point, from which the energy of a call is known
    host: bool = False  # also times plans and eager calls on the host, and counts what they ask of the GPU
    # decide: a backend that is certainly not the best of its problem stops early (`racing.py`), and two names of one call are
    # measured once. It is no part of a point's id: a row of full precision answers either request.
    precision: Precision = "full"
    throttled: Literal["keep", "refuse"] = "keep"  # what becomes of a point without enough unthrottled samples
    max_pause_seconds: Seconds = 1.0  # that one point waits for its clock to recover; it has one try left after that

    # step: attention is timed in a graph of layers too (`kernels/step`); engine: in steps of a running engine (`kernels/engines`)
    context: Context = "isolated"
    step_layers: Annotated[int, Field(ge=2, le=128)] | None = None  # None: as many as memory and precision need

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, keys: Any) -> Any:
        if isinstance(keys, dict) and {"limit", "criterion_limit"} <= keys.keys():
            raise ValueError("timing.limit and timing.criterion_limit are the same key; give only timing.limit")
        return keys

    @model_validator(mode="after")
    def _reachable(self) -> Timing:
        if self.energy and self.timer == "eager":
            raise ValueError("energy=true: the gaps between eager calls would count too; allowed: timer=graph or timer=cupti")
        if self.min_samples > self.max_samples:
            raise ValueError(f"min_samples={self.min_samples}: allowed: at most max_samples={self.max_samples}; give both")
        return self

    @model_validator(mode="after")
    def _of_a_step(self) -> Timing:
        if self.context == "step" and (self.timer, self.criterion) != ("graph", "ci95"):
            raise ValueError(
                f"context=step: timer={self.timer} and criterion={self.criterion}; allowed: timer=graph and criterion=ci95, since "
                f"a step is one graph, and its median is known to an interval; type timing.timer=graph timing.criterion=ci95"
            )
        if self.step_layers is not None and self.context == "isolated":
            raise ValueError(f"step_layers={self.step_layers}: allowed only with timing.context=step; leave it out, or type that")
        return self

    @model_validator(mode="after")
    def _without_pause(self) -> Timing:
        if self.pace == "sustained" and (self.timer, self.l2 == "warm", self.context == "engine") != ("graph", False, False):
            raise ValueError(
                f"pace=sustained: timer={self.timer}, l2={self.l2}, context={self.context}; allowed: timer=graph and l2=clean or "
                f"dirty, since the GPU spins before other samples, and context=isolated or step, since an engine never pauses"
            )
        return self

    @property
    def races(self) -> bool:
        """Whether backends race. Not where another time ranks them, nor by nvbench's criteria, nor without rounds."""
        ranks = self.context == "isolated" and self.pace == "bursts" and not self.host
        return self.precision == "decide" and ranks and self.criterion == "ci95"

    @property
    def caches(self) -> Caches:
        return Caches(self.l2, self.l2_flush_factor, self.icache)

    def identity(self) -> dict[str, Any]:
        """The keys that enter a point's id, under their YAML names.

        A key that was added later is left out if it asks for what was done before it existed: old ids stay the same. So does the
        old name of a state of the L2. `precision` never enters.
        """
        later = {"icache": "warm", "context": "isolated", "pace": "bursts", "step_layers": None, "energy": False, "host": False}
        former = {today: name for name, today in RENAMED_L2.items()}
        keys = self.model_dump(exclude={"name", "precision"}, by_alias=True)
        keys["l2"] = former.get(self.l2, self.l2)
        return {key: value for key, value in keys.items() if key not in later or later[key] != value}
