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
    ValidationError,
    model_validator,
)

import conf
import kernels
from kernels.device import Device
from kernels.problem import PLAIN_MASKS
from kernels.problem.trees import Tree
from kernels.timing.config import RENAMED_L2, Timing
from orchestrator.config.base import Frozen, Scalar
from orchestrator.config.best import Best
from orchestrator.config.companions import companion
from orchestrator.config.draft_cost import Draft
from orchestrator.config.keys import nearest
from orchestrator.config.mode_rules import contradiction
from orchestrator.config.model import Model
from orchestrator.config.modes import MODES
from orchestrator.config.parts import (
    BackendNames,
    Bisect,
    Check,
    Cluster,
    Dashboard,
    Limits,
    Results,
    Texts,
    UserPath,
    UserPaths,
    VersionRule,
)
from orchestrator.config.sweep import Sweep
from orchestrator.config.weights import WeightRules, checked_weights
from orchestrator.errors import UserError, as_typed, did_you_mean, explain

MUTANTS, DRAWN, DRAWN_OF_EACH = (f"{kernels.__name__}.{name}" for name in ("mutants", "mutants.drawn", "mutants.of_backends"))
MAX_TRAFFIC_POINTS = 1_000  # at each batch size: more are nearer to the traffic than any measurement
NO_SWEEP_PATH = "results/none"  # results.path in conf/config.yaml if there is no sweep


def unknown_mode(mode: str) -> str:
    """What is wrong with it, and what is allowed."""
    *names, last = map(repr, MODES)
    return f"mode={mode!r}:{did_you_mean(mode, MODES)} allowed: {', '.join(names)} or {last}"


def _known_mode(mode: str) -> str:
    if mode not in MODES:
        raise ValueError(unknown_mode(mode))
    return mode


def _where(given: Any) -> object:
    """Columns, each with one value or several. None selects every row."""
    columns = {} if given is None else given
    values = columns.values() if isinstance(columns, dict) else [None]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    if not all(isinstance(part, Scalar) for part in parts):
        raise ValueError(
            f"where={as_typed(given)}: allowed: columns with a value or several, such as {{s_qo: [1, 4], kv_dtype: bf16}}"
        )
    return columns


Question = Literal[
    "best", "crossover", "fp8", "q_len", "regret", "engine_default", "one_backend", "roofline", "draft", "energy",
    "step", "padding", "odd", "columns",
]  # fmt: skip


class Settings(Frozen):
    """The whole configuration of one command. Raises ValidationError for keys that contradict each other."""

    mode: Annotated[str, AfterValidator(_known_mode)] = "run"
    rerun: Literal["changed", "failed", "none", "all", "suspects"] = "changed"
    versions: VersionRule = "same"
    point: str | None = None
    format: Literal["terminal", "markdown", "svg", "csv", "json"] = "terminal"
    question: Question | None = None
    columns: Texts = ()
    where: Annotated[dict[str, Scalar | tuple[Scalar, ...]], BeforeValidator(_where)] = Field(default_factory=dict)
    best: Best = Best()
    weights: Annotated[WeightRules, BeforeValidator(checked_weights)] = ()
    draft: Draft = Draft()
    source: UserPath | None = Field(None, alias="import")
    into: UserPath | None = None
    export: UserPath | None = None
    traffic: UserPath | None = None
    traffic_points: Annotated[int, Field(ge=1, le=MAX_TRAFFIC_POINTS)] = 5
    adapters: Texts = ()
    backend: BackendNames = ()
    env: dict[str, dict[str, Any]] = Field(default_factory=dict)
    modules: Annotated[UserPath, Field(pattern=r"\.tar(\.gz|\.xz)?$")] | None = None
    baseline: UserPaths = ()
    candidate: UserPaths = ()
    noise: UserPath | None = None
    same: Annotated[float, Field(gt=0, lt=1)] = 0.02
    missing: Literal["fail", "allow"] = "fail"
    cards: str | None = None
    good: str | None = None
    bad: str | None = None
    predicate: Literal["slower", "resolved_backend", "status"] = "slower"
    bisect: Bisect = Bisect()
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
        if wrong := contradiction(self):
            raise ValueError(wrong)
        return self

    @property
    def written_path(self) -> str:
        """The dataset that a run writes. mode=replay reads the one at `results.path`, and leaves it as it is unless told."""
        return (self.into or companion(self.results.path, self.mode)) if self.mode == "replay" else self.results.path


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
    """Raises UserError if the mode needs a sweep, or a dataset instead, and neither is named; also for an unknown mode."""
    mode, path = str(config.get("mode")), (config.get("results") or {}).get("path")
    if (rules := MODES.get(mode)) is None:
        raise UserError(unknown_mode(mode))
    if rules.needs == "nothing" or (rules.reads_dataset and path != NO_SWEEP_PATH):
        return
    if mode == "report" and config.get("question") == "columns":  # of every dataset
        return
    if extra := sorted(config.keys() - {field.alias or name for name, field in Settings.model_fields.items()} - {"hydra"}):
        near = nearest_key(extra[0])
        hint = f"did you mean '{near}'?" if near else "type python -m orchestrator --help for all keys"
        raise UserError(f"{extra[0]}: there is no such key; {hint}")
    instead = f", or results.path=DIR for mode={mode}" if rules.reads_dataset or rules.sweep_of_row else ""
    raise UserError(f"sweep: none given; type +sweep=NAME{instead}, where NAME is one of: {', '.join(sweep_names())}")


def _adapt_to_mode(settings: Settings) -> Settings:
    """A/A pairs and mutants go to their own datasets. Mutants run eagerly and briefly, since they are checked and not timed."""
    if settings.rerun == "suspects":  # they are to be compared
        settings = settings.model_copy(update={"timing": settings.timing.model_copy(update={"precision": "full"})})
    if not MODES[settings.mode].own_dataset or settings.mode == "replay":
        return settings
    own: dict[str, Any] = {"results": Results(path=companion(settings.results.path, settings.mode))}
    if settings.mode in ("noise", "bisect"):  # they ask how far times differ
        return settings.model_copy(update={**own, "timing": settings.timing.model_copy(update={"precision": "full"})})
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
