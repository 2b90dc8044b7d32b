"""Validates the configuration: what Hydra composed becomes immutable, typed `Settings`, or an error that says what to type.

`load` is the only way from YAML and the command line into the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

import conf
import kernels
from kernels.check.trial import MAX_INPUTS
from kernels.device import Device
from kernels.problem import PLAIN_MASKS
from kernels.problem.trees import Tree
from kernels.timing.config import RENAMED_L2, Timing
from orchestrator.config import exports
from orchestrator.config.backend_names import todays
from orchestrator.config.base import Frozen, Scalar
from orchestrator.config.best import Best
from orchestrator.config.companions import companion
from orchestrator.config.draft_cost import Draft
from orchestrator.config.keys import nearest
from orchestrator.config.model import Model
from orchestrator.config.modes import MODES
from orchestrator.config.sweep import Sweep
from orchestrator.config.weights import Weights, checked_weights
from orchestrator.errors import UserError, explain
from orchestrator.plain_files import expanded

Versions = Literal["same", "any"]

MUTANTS, DRAWN, DRAWN_OF_EACH = (f"{kernels.__name__}.{name}" for name in ("mutants", "mutants.drawn", "mutants.of_backends"))
MAX_DRAWS = 200  # mutants that `DRAWN` has
NO_SWEEP_PATH = "results/none"  # results.path in conf/config.yaml if there is no sweep
PARQUET = ".parquet"  # of a result file that names its GPU itself


def _as_texts(given: Any) -> Any:
    """One value or a list of them as a tuple of strings: YAML reads a version such as 0.8 as a number."""
    values = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return tuple(str(value) if isinstance(value, Scalar) else value for value in values)


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_texts)]
Place = Annotated[str, AfterValidator(expanded)]  # a path, in which ~ is the home folder
Places = Annotated[Texts, AfterValidator(lambda texts: tuple(map(expanded, texts)))]
Backends = Annotated[Texts, AfterValidator(lambda names: tuple(map(todays, names)))]


def _known_mode(mode: str) -> str:
    if mode not in MODES:
        *names, last = map(repr, MODES)
        raise ValueError(f"mode={mode!r}: allowed: {', '.join(names)} or {last}")
    return mode


class Cluster(Frozen):
    """Where to run: `local` starts Ray on this machine, `ray` joins a Ray cluster, `inline` runs in this process.

    With `spread=any` a point runs on one of the kinds of devices that support it; with `each_device` it runs on each of them,
    as a separate row. `wait_seconds` is how long a run waits for a machine if none is left. A run stops
    once Ray's head has not answered for `head_seconds`.
    """

    name: str
    kind: Literal["local", "ray", "inline"]
    address: str | None = None
    workers: PositiveInt | None = None
    spread: Literal["any", "each_device"] = "any"
    wait_seconds: NonNegativeFloat = 0
    head_seconds: PositiveFloat = 15

    @model_validator(mode="after")
    def _address(self) -> Self:
        if (self.kind == "ray") != (self.address is not None):
            raise ValueError(
                f"cluster.address={self.address!r}: cluster=ray needs one and no other cluster takes one; "
                f"type cluster=ray cluster.address=HOST:6379"
            )
        return self


class Check(Frozen):
    """Whether results are checked. `force_unsupported` also runs unsupported points: one that passes shows a rule that is too
    strict. `draws` is how many randomly drawn faults mode=check_power tries at each problem, instead of the listed ones.
    `max_inputs` is how many inputs a point may be checked on, if one does not show a lost page of 64 tokens.
    `tolerance` says how it judges them: once at the widest tolerance that any backend has, or in each backend at its own.
    """

    enabled: bool = True
    force_unsupported: bool = False
    max_inputs: Annotated[int, Field(ge=1, le=MAX_INPUTS)] = 4
    draws: Annotated[int, Field(ge=0, le=MAX_DRAWS)] = 0
    tolerance: Literal["widest", "each"] = "widest"

    @model_validator(mode="after")
    def _drawn(self) -> Self:
        if self.tolerance == "each" and not self.draws:
            raise ValueError("check.tolerance=each: only drawn faults are made of each backend; add check.draws=20, for example")
        return self


class Limits(Frozen):
    """Limits on a point and on a worker: seconds of wall time, a fraction of device memory, a number of attempts."""

    point_seconds: PositiveFloat = 30
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    attempts: PositiveInt = 2
    start_seconds: PositiveFloat = 180


class Results(Frozen):
    """Where the dataset is: a folder, or `s3://BUCKET/PREFIX`."""

    path: Annotated[str, Field(min_length=1), AfterValidator(expanded)]


def _where(given: Any) -> object:
    """Columns, each with one value or several. None selects every row."""
    columns = {} if given is None else given
    values = columns.values() if isinstance(columns, dict) else [None]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    if not all(isinstance(part, Scalar) for part in parts):
        raise ValueError(f"where={given!r}: allowed: columns with a value or several, such as {{s_qo: [1, 4], kv_dtype: bf16}}")
    return columns


class Dashboard(Frozen):
    """`port` on the loopback address; 0 takes a free one."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8787


Question = Literal[
    "best", "crossover", "fp8", "q_len", "regret", "engine_default", "one_backend", "roofline", "draft", "energy",
    "step", "padding", "odd", "columns",
]  # fmt: skip


class Settings(Frozen):
    """The whole configuration of one command. Raises ValidationError for keys that contradict each other."""

    mode: Annotated[str, AfterValidator(_known_mode)] = "run"
    rerun: Literal["changed", "failed", "none", "all", "suspects"] = "changed"
    versions: Versions = "same"
    point: str | None = None
    format: Literal["terminal", "markdown", "svg", "csv", "json"] = "terminal"
    question: Question | None = None
    where: Annotated[dict[str, Scalar | tuple[Scalar, ...]], BeforeValidator(_where)] = Field(default_factory=dict)
    best: Best = Best()
    weights: Annotated[Weights, BeforeValidator(checked_weights)] = ()
    draft: Draft = Draft()
    source: Place | None = Field(None, alias="import")
    export: Place | None = None
    traffic: Place | None = None
    traffic_points: PositiveInt = 5
    adapters: Texts = ()
    backend: Backends = ()
    env: dict[str, dict[str, Any]] = Field(default_factory=dict)
    modules: Annotated[Place, Field(pattern=r"\.tar(\.gz|\.xz)?$")] | None = None
    baseline: Places = ()
    candidate: Places = ()
    noise: Place | None = None
    same: Annotated[float, Field(gt=0, lt=1)] = 0.02
    missing: Literal["fail", "allow"] = "fail"
    cards: str | None = None
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
    def _step(self) -> Self:
        if self.timing.context == "step" and self.model.layer is None:
            raise ValueError(
                f"timing.context=step: model {self.model.name} does not say how large the matrix products of a layer are; give "
                f"'+model.layer={{hidden_size: 4096, intermediate_size: 14336}}' with its own sizes, or type another model=..."
            )
        return self

    @model_validator(mode="after")
    def _suspects(self) -> Self:
        if self.rerun == "suspects" and (self.mode != "run" or not self.baseline or not self.candidate):
            raise ValueError(
                f"rerun=suspects: it runs the points that a comparison suspects, and this is mode={self.mode} with baseline="
                f"{','.join(self.baseline) or 'none'} and candidate={','.join(self.candidate) or 'none'}; type +sweep=NAME "
                f"rerun=suspects baseline=... candidate=... as mode=compare prints it"
            )
        return self

    @model_validator(mode="after")
    def _modes(self) -> Self:
        names_its_gpu = str(self.source).endswith(PARQUET)
        if self.mode == "import" and (self.source is None or (self.device is None and not names_its_gpu)):
            raise ValueError("import: mode=import takes a result file and its GPU; type import=results.csv device=h200")
        if self.mode == "export":
            if self.export is None:
                raise ValueError(f"export: mode=export needs one; type export={exports.CSV}, export=vllm, or export=PATH.csv")
            exports.parse(self.export)
        if self.traffic is not None and self.mode == "report" and self.question != "best":
            raise ValueError(f"traffic={self.traffic!r}: mode=report weighs the answer to question=best alone; type question=best")
        if self.mode == "replay" and self.point is None:
            raise ValueError("point: mode=replay needs one; type mode=replay point=ID with a point_id of the dataset")
        if self.mode == "check_power" and not self.check.enabled:
            raise ValueError("check.enabled=false: mode=check_power asks what the check can catch; leave it enabled")
        if self.where and not MODES[self.mode].reads_dataset and self.mode != "compare":
            raise ValueError(
                f"where: mode={self.mode} takes every row; leave where out, or type mode=report, dashboard or export, "
                f"or mode=compare"
            )
        if self.backend and self.mode != "conformance":
            raise ValueError(f"backend: mode={self.mode} takes the backends of its sweep; type sweep.backend=[...]")
        if self.device is not None and not MODES[self.mode].takes_device:
            raise ValueError(
                f"device={self.device.name!r}: mode={self.mode} uses the devices it finds; "
                f"leave device out, or type mode=plan or mode=compile"
            )
        return self


def nearest_key(key: str) -> str:
    """The key that was probably meant by one that there is not; empty if none is near."""
    return nearest(key, Settings)


def load(config: dict[str, Any]) -> Settings:
    """Settings from Hydra's composed configuration as plain containers. Raises UserError that lists every wrong key."""
    if config.get("sweep") is None:
        _require_no_sweep(config)
        config = {**config, "sweep": {"name": "none"}}
    try:
        return _adapt_to_mode(Settings.model_validate(config))
    except ValidationError as error:
        raise UserError(explain(error, nearest=nearest_key)) from None


def renamed_values(config: Mapping[str, Any]) -> list[str]:
    """A sentence for each value that has another name today. It works under the old one."""
    timing = config.get("timing")
    typed = timing.get("l2") if isinstance(timing, Mapping) else None
    if typed not in RENAMED_L2:
        return []
    return [f"timing.l2={typed} is now called {RENAMED_L2[typed]}; type timing.l2={RENAMED_L2[typed]} (docs/timing.md)"]


def _require_no_sweep(config: Mapping[str, Any]) -> None:
    """Raises UserError if the mode needs a sweep, or a dataset instead, and neither is named. An unknown mode is found later."""
    mode, path = str(config.get("mode")), (config.get("results") or {}).get("path")
    rules = MODES.get(mode)
    if rules is not None and (rules.needs == "nothing" or (rules.reads_dataset and path != NO_SWEEP_PATH)):
        return
    if mode == "report" and config.get("question") == "columns":  # of every dataset
        return
    if extra := sorted(config.keys() - {field.alias or name for name, field in Settings.model_fields.items()} - {"hydra"}):
        near = nearest_key(extra[0])
        hint = f"did you mean '{near}'?" if near else "type python -m orchestrator --help for those there are"
        raise UserError(f"{extra[0]}: there is no such key; {hint}")
    instead = f", or results.path=DIR for mode={mode}" if rules is not None and (rules.reads_dataset or mode == "replay") else ""
    raise UserError(f"sweep: none given; type +sweep=NAME{instead}, where NAME is one of: {', '.join(sweep_names())}")


def _adapt_to_mode(settings: Settings) -> Settings:
    """A/A pairs and mutants go to their own datasets. Mutants run eagerly and briefly, since they are checked and not timed."""
    if not MODES[settings.mode].own_dataset:
        return settings
    own = {"results": Results(path=companion(settings.results.path, settings.mode))}
    if settings.mode == "noise":
        return settings.model_copy(update=own)
    once = Timing(name="check_power", timer="eager", warmup=0, min_samples=10, max_samples=20, max_seconds=0.01)
    return settings.model_copy(update={**own, "timing": once, "adapters": (*settings.adapters, mutants_of(settings))})


def mutants_of(settings: Settings) -> str:
    """The module of the wrong kernels that mode=check_power runs."""
    if not settings.check.draws:
        return MUTANTS
    return DRAWN_OF_EACH if settings.check.tolerance == "each" else DRAWN


def sweep_names() -> list[str]:
    """The sweeps that come with the project."""
    from importlib.resources import files

    return sorted(f.name.removesuffix(".yaml") for f in files(conf).joinpath("sweep").iterdir() if f.name != "base.yaml")
