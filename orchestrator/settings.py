"""The one door for configuration: what Hydra composed becomes frozen, closed, typed data, or an error for a person."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from kernels.device import Device
from kernels.problem import PLAIN_MASKS
from kernels.timing import Timing
from kernels.trees import Tree
from orchestrator.axes import Sweep
from orchestrator.draft import Draft
from orchestrator.errors import UserError, explain
from orchestrator.frozen import Frozen, Scalar
from orchestrator.model import Model

Reading = Literal["report", "compare", "dashboard", "import", "export"]
Mode = Literal["run", "plan", "compile", "replay", "calibrate", "noise", "check_power", Reading]

Versions = Literal["same", "any"]

MUTANTS = "kernels.mutants"
BESIDE = ("noise", "check_power")  # modes whose rows lie in `<results.path>_<mode>`
NO_SWEEP_PATH = "results/none"  # what conf/config.yaml makes of results.path without a sweep
READERS = ("report", "dashboard", "export")  # modes that read a dataset and nothing else: results.path alone will do
CSV_TO_STDOUT = "flashinfer_csv"  # the value of export= that prints


def _as_words(given: Any) -> Any:
    """One condition or a list of them, where YAML may have made a number of a version."""
    values = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return tuple(str(value) if isinstance(value, Scalar) else value for value in values)


Conditions = Annotated[tuple[str, ...], BeforeValidator(_as_words)]  # which rows a side of a comparison holds


class Cluster(Frozen):
    """Where to run: `local` starts Ray here, `ray` joins one, `inline` stays in this process.

    A point runs on `any` of the kinds of devices that may run it, or on `each_device`, which are points of their own then.
    """

    name: str
    kind: Literal["local", "ray", "inline"]
    address: str | None = None
    workers: PositiveInt | None = None
    spread: Literal["any", "each_device"] = "any"
    wait_seconds: NonNegativeFloat = 0  # how long a run waits for a machine when none is left that could go on

    @model_validator(mode="after")
    def _address(self) -> Self:
        if (self.kind == "ray") != (self.address is not None):
            raise ValueError(
                f"cluster.address={self.address!r}: cluster=ray needs one and no other cluster takes one; "
                f"type cluster=ray cluster.address=HOST:6379"
            )
        return self


class Check(Frozen):
    """`force_unsupported` runs what the rules forbid as well: what then comes out right shows a rule that is too strict."""

    enabled: bool = True
    force_unsupported: bool = False


class Limits(Frozen):
    """Bounds on a point and on a worker; seconds of wall time."""

    point_seconds: PositiveFloat = 30
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    attempts: PositiveInt = 2
    start_seconds: PositiveFloat = 180


class Results(Frozen):
    path: Annotated[str, Field(min_length=1)]


def _where(given: Any) -> object:
    """Columns with a value, or several; nothing stands for every row."""
    columns = {} if given is None else given
    values = columns.values() if isinstance(columns, dict) else [None]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    if not all(isinstance(part, Scalar) for part in parts):
        raise ValueError(f"where={given!r}: allowed: columns with a value or several, such as {{s_qo: [1, 4], kv_dtype: bf16}}")
    return columns


class Dashboard(Frozen):
    """`port` on loopback, 0 for any free one."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8787


class Settings(Frozen):
    """Everything a run is told."""

    mode: Mode = "run"
    rerun: Literal["changed", "failed", "none", "all"] = "changed"
    versions: Versions = "same"
    point: str | None = None
    format: Literal["terminal", "markdown", "svg"] = "terminal"
    question: Literal["best", "crossover", "fp8", "q_len", "regret", "roofline", "draft", "odd"] | None = None
    where: Annotated[dict[str, Scalar | tuple[Scalar, ...]], BeforeValidator(_where)] = Field(default_factory=dict)
    draft: Draft = Draft()
    source: str | None = Field(None, alias="import")
    export: str | None = None
    adapters: tuple[str, ...] = ()
    modules: Annotated[str, Field(pattern=r"\.tar(\.gz|\.xz)?$")] | None = None
    baseline: Conditions = ()
    candidate: Conditions = ()
    noise: str | None = None
    same: Annotated[float, Field(gt=0, lt=1)] = 0.02
    sweep: Sweep
    model: Model
    cluster: Cluster
    device: Device | None = None
    trees: dict[str, Tree]
    timing: Timing
    check: Check
    results: Results
    limits: Limits
    dashboard: Dashboard = Dashboard()

    @model_validator(mode="after")
    def _trees(self) -> Self:
        if taken := sorted(self.trees.keys() & set(PLAIN_MASKS)):
            raise ValueError(f"trees.{taken[0]}: {taken[0]} is a mask already; give the tree another name")
        return self

    @model_validator(mode="after")
    def _modes(self) -> Self:
        if self.mode == "import" and (self.source is None or self.device is None):
            raise ValueError("import: mode=import takes a result file and its GPU; type import=results.csv device=h200")
        if self.mode == "export" and self.export is None:
            raise ValueError(f"export: mode=export needs one; type export={CSV_TO_STDOUT}, or export=PATH.csv")
        if self.mode == "replay" and self.point is None:
            raise ValueError("point: mode=replay needs one; type mode=replay point=ID with a point_id of the dataset")
        if self.mode == "check_power" and not self.check.enabled:
            raise ValueError("check.enabled=false: mode=check_power asks what the check can catch; leave it enabled")
        if self.where and self.mode not in READERS:
            raise ValueError(f"where: mode={self.mode} takes every row; leave where out, or type mode=report, dashboard or export")
        if self.device is not None and self.mode not in ("plan", "compile", "import"):
            raise ValueError(
                f"device={self.device.name!r}: mode={self.mode} takes the devices it finds; "
                f"leave device out, or type mode=plan or mode=compile"
            )
        return self


def load(config: dict[str, Any]) -> Settings:
    """Settings from Hydra's composed config as plain containers; UserError lists every wrong key."""
    if config.get("sweep") is None:
        config = {**config, "sweep": {"name": _nameless(config)}}
    try:
        return _for_its_mode(Settings.model_validate(config))
    except ValidationError as error:
        raise UserError(explain(error)) from None


def _nameless(config: dict[str, Any]) -> str:
    """What stands for a sweep's name where a mode needs none."""
    mode, path = config.get("mode"), (config.get("results") or {}).get("path")
    if mode in ("calibrate", "compare") or (mode in READERS and path != NO_SWEEP_PATH):
        return "none"
    instead = f", or results.path=DIR for mode={mode}" if mode in READERS else ""
    raise UserError(f"sweep: none given; type +sweep=NAME{instead}, where NAME is one of: {', '.join(sweep_names())}")


def _for_its_mode(settings: Settings) -> Settings:
    """Twins and mutants go to datasets of their own; a mutant runs eagerly, since it is checked and not timed."""
    if settings.mode not in BESIDE:
        return settings
    beside = {"results": Results(path=f"{settings.results.path}_{settings.mode}")}
    if settings.mode == "noise":
        return settings.model_copy(update=beside)
    once = Timing(name="check_power", timer="eager", warmup=0, min_samples=10, max_samples=20, max_seconds=0.01)
    return settings.model_copy(update={**beside, "timing": once, "adapters": (*settings.adapters, MUTANTS)})


def sweep_names() -> list[str]:
    """The sweeps that come with the project."""
    from importlib.resources import files

    return sorted(f.name.removesuffix(".yaml") for f in files("conf").joinpath("sweep").iterdir() if f.name != "base.yaml")
