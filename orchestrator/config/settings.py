"""Validates the configuration: what Hydra composed becomes the immutable, typed settings of its mode, or an error in words.

Each mode has a class with the keys that it has. `load` is the only way from YAML and the command line into the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt, ValidationError, model_validator

import kernels
from kernels.device import Device
from kernels.problem import PLAIN_MASKS
from kernels.problem.dtypes import ALIASES, DTYPES
from kernels.problem.trees import Tree
from kernels.timing.config import Timing
from orchestrator.config import exports, parts
from orchestrator.config.base import Frozen, own_files
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import MAX_DRAFT, Engine, releases, selected
from orchestrator.config.model import Model
from orchestrator.config.modes import MODES, companion
from orchestrator.config.ranges import Filter
from orchestrator.config.sweep import SWEEP_KEYS, Sweep
from orchestrator.config.weights import WeightRules, checked_weights
from orchestrator.errors import HELP, SHORT_NAMES, UserError, as_typed, did_you_mean, explain
from orchestrator.untrusted.files import expanded

MUTANTS, DRAWN, DRAWN_OF_EACH = (f"{kernels.__name__}.{name}" for name in ("mutants", "mutants.drawn", "mutants.of_backends"))
MAX_TRAFFIC_POINTS = 1_000  # at each batch size: more are nearer to the traffic than any measurement
NO_SWEEP_PATH = "results/none"  # results.path in conf/config.yaml if there is no sweep
PARQUET, TRACES = ".parquet", ".jsonl"  # of result files that name their GPU themselves
# Keys of older versions and of other tools, with today's names.
RENAMED = {"dashboard.where": "where", "gpu": "device", "timing.ci95_rel": "timing.limit"}


Question = Literal[
    "best", "crossover", "fp8", "q_len", "regret", "engine_default", "one_backend", "roofline", "draft", "energy",
    "step", "in_engine", "padding", "odd", "columns",
]  # fmt: skip
FOR_DEPLOYMENT = ("one_backend", "engine_default")  # questions about flags of engines
Format = Literal["terminal", "markdown", "svg", "csv", "json"]


class Settings(Frozen):
    """What every mode has: a dataset, and a sweep with how it is measured, since any mode may be typed behind a sweep.

    This class, and each of those below, raises ValidationError for keys that contradict each other.
    """

    needed: ClassVar[tuple[tuple[str, ...], str]] = ((), "")  # keys that its mode must be given, and what is said without them
    mode: str = "run"
    versions: parts.VersionRule = "same"
    source: parts.UserPath | None = Field(None, alias="import")
    traffic: parts.UserPath | None = None
    traffic_points: Annotated[int, Field(ge=1, le=MAX_TRAFFIC_POINTS)] = 5
    adapters: parts.Texts = ()
    env: dict[str, dict[str, Any]] = Field(default_factory=dict)
    modules: Annotated[parts.UserPath, Field(pattern=r"\.tar(\.gz|\.xz)?$")] | None = None
    sweep: Sweep
    model: Model
    cluster: parts.Cluster
    trees: dict[str, Tree]
    timing: Timing
    check: parts.Check
    results: parts.Results
    limits: parts.Limits

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if taken := sorted(self.trees.keys() & set(PLAIN_MASKS)):
            raise ValueError(f"trees.{taken[0]}: {taken[0]} is a mask already; give the tree another name")
        if self.timing.context == "step" and self.model.layer is None:
            own = "give '+model.layer={hidden_size: 4096, intermediate_size: 14336}' with its own sizes, or type another model=..."
            lacks = f"model {self.model.name} does not say how large the matrix products of a layer are"
            raise ValueError(f"timing.context=step: {lacks}; {own}")
        if "," in self.results.path and not (MODES[self.mode].reads_dataset or self.mode in ("document", "compare")):
            raise ValueError(f"results.path={self.results.path!r}: mode={self.mode} takes one dataset; mode=report takes several")
        if self.mode == "check_power" and self.timing.context == "engine":
            raise ValueError("timing.context=engine: mode=check_power tests the check of answers, and an engine shows none")
        if self.mode == "check_power" and not self.check.enabled:
            raise ValueError("check.enabled=false: mode=check_power tests the check; leave it enabled")
        if any(getattr(self, key) is None for key in self.needed[0]):
            raise ValueError(self.needed[1])
        return self

    @property
    def written_path(self) -> str:
        """The dataset that a run writes."""
        return self.results.path


class Chosen(Settings):
    """Of a mode that chooses points of a sweep, or rows of a dataset, by their values."""

    where: Filter = Field(default_factory=dict)


class EngineName(Frozen):
    """An engine or a release of it, and a folder with files of more releases."""

    name: str
    folder: str | None = None


class Points(Chosen):
    """Of a mode that runs points of a sweep, or plans to: all of them, or the one that `point` names. `engine` has its flags."""

    point: str | None = None
    engine: EngineName | None = None

    @model_validator(mode="after")
    def _engine_has_flags(self) -> Self:
        if self.engine is not None and self.timing.context != "engine":
            raise ValueError(f"engine={self.engine.name}: sweep {self.sweep.name} starts no engine; type +sweep=in_engine for one")
        return self


class Answers(Chosen):
    """What the answers of a report depend on. A run prints a report at its end."""

    best: parts.Best = parts.Best()
    weights: Annotated[WeightRules, BeforeValidator(checked_weights)] = ()
    draft: Draft = Draft()
    cards: str | None = None


class Served(Chosen):
    """What a server has on any GPU: rows of a model, of one GPU of `tp`, with so many drafted tokens."""

    drafts: Annotated[int, Field(ge=0, lt=MAX_DRAFT)] | None = None
    tp: PositiveInt | None = None


class ForDeployment(Served):
    """What a deployment has: such rows on a device, for an engine."""

    engine: EngineName | None = None
    device: Device | None = None

    @property
    def engines(self) -> list[Engine]:
        """The releases that the answers are about. Raises UserError for an unknown name."""
        return selected() if self.engine is None else selected(self.engine.name, self.engine.folder)


class Compared(Chosen):
    """Two sides, and what decides whether a point got slower."""

    baseline: parts.UserPaths = ()
    candidate: parts.UserPaths = ()
    noise: parts.UserPath | None = None
    same: Annotated[float, Field(gt=0, lt=1)] = 0.02
    missing: Literal["fail", "allow"] = "fail"
    cards: str | None = None


class RunSettings(Points, Answers):
    """mode=run, noise and check_power."""

    rerun: Literal["changed", "failed", "none", "all", "suspects"] = "changed"


class SuspectSettings(RunSettings, Compared):
    """mode=run with rerun=suspects: the points that a comparison suspects."""

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        if self.mode != "run" or not self.baseline or not self.candidate:
            given = f"baseline={','.join(self.baseline) or 'none'} and candidate={','.join(self.candidate) or 'none'}"
            words = "type +sweep=NAME rerun=suspects baseline=... candidate=... as mode=compare prints it"
            what = f"it runs the points that a comparison suspects, and this is mode={self.mode} with {given}"
            raise ValueError(f"rerun=suspects: {what}; {words}")
        return self


class ReplaySettings(Points):
    """mode=replay: its point runs again whatever is stored. The dataset at `results.path` stays as it is, unless `into` is it."""

    needed = ("point",), "point: mode=replay needs one; type mode=replay point=ID with a point_id of the dataset"
    into: parts.UserPath | None = None
    profile: Literal["ncu", "nsys", "marks"] | None = None
    same: float = Compared.model_fields["same"].default

    @property
    def rerun(self) -> str:
        """As that of a run."""
        return "all"

    @property
    def written_path(self) -> str:
        """The dataset that gets the new row."""
        return self.into or companion(self.results.path, self.mode)


class DonateSettings(Points):
    """mode=donate: `into` gets a copy of the rows to publish."""

    into: Annotated[parts.UserPath, Field(pattern=r"\.parquet$")] | None = None


class CompileSettings(Points):
    """mode=compile."""

    device: Device | None = None


class PlanSettings(CompileSettings):
    """mode=plan."""

    format: Format = "terminal"
    full: bool = False


class BisectSettings(Chosen):
    """mode=bisect."""

    needed = ("good", "bad"), "good: mode=bisect needs two releases; type good=flashinfer:0.5.3 bad=flashinfer:0.6.3 with your own"
    good: str | None = Field(None, coerce_numbers_to_str=True)  # a version alone is refused with an example
    bad: str | None = Field(None, coerce_numbers_to_str=True)
    predicate: Literal["slower", "resolved_backend", "status"] = "slower"
    bisect: parts.Bisect = parts.Bisect()


class WatchSettings(Chosen):
    """mode=watch."""

    watch: parts.ReleaseWatch = parts.ReleaseWatch()

    @model_validator(mode="after")
    def _has_folder(self) -> Self:
        if "://" in self.results.path:
            raise ValueError(f"results.path={self.results.path}: mode=watch writes reports beside its rows; type a folder")
        return self


class AskSettings(Answers, ForDeployment):
    """mode=report."""

    format: Format = "terminal"
    full: bool = False
    question: Question | None = None
    columns: parts.Texts = ()

    @model_validator(mode="after")
    def _fit_the_question(self) -> Self:
        if self.traffic is not None and self.question not in ("best", "one_backend"):
            raise ValueError(f"traffic={self.traffic!r}: it weighs two answers; type question=one_backend or question=best")
        if self.columns and self.question is None:
            raise ValueError("columns: they are those of one answer; type a question too, such as question=best")
        return self


class DocumentSettings(Settings):
    """mode=document: `results.path` replaces the datasets that the document names, if it is typed."""

    needed = ("document",), "document: mode=document renders one; type document=findings/decode.md, or yours (docs/dashboard.md)"
    format: Literal["terminal", "markdown", "html"] = "terminal"
    document: parts.UserPath | None = None


class CompareSettings(Compared, Served):
    """mode=compare."""

    format: Format = "terminal"
    full: bool = False
    best: parts.Best = parts.Best()
    weights: Annotated[WeightRules, BeforeValidator(checked_weights)] = ()


class DashboardSettings(Chosen):
    """mode=dashboard."""

    dashboard: parts.Dashboard = parts.Dashboard()


class ExportSettings(ForDeployment):
    """mode=export."""

    export: exports.Export
    draft: Draft = Draft()

    @property
    def engines(self) -> list[Engine]:
        """The release that an engine's flags are of. Raises UserError if `engine` is another one than `export`."""
        name = self.export.format
        if name not in exports.ENGINES:
            return super().engines
        found = super().engines if self.engine is not None else selected(name)
        if [one.engine for one in found] != [name]:
            raise UserError(f"engine={found[0].engine}: export={name} is about {name}; type a release of it, or leave engine out")
        return found

    @model_validator(mode="before")
    @classmethod
    def _parsed(cls, given: Any) -> Any:
        """Raises ValueError for an export that there is not, or none."""
        if not isinstance(given, dict) or isinstance(given.get("export"), exports.Export):
            return given
        if given.get("export") is None:
            of_site = "mode=site writes a folder; type export=DIR with a new one, or with one that mode=site has made"
            of_export = f"mode=export needs one; type export={exports.CSV}, export=vllm, or export=PATH.csv"
            raise ValueError(f"export: {of_site if given.get('mode') == 'site' else of_export}")
        name, colon, path = str(given["export"]).partition(":")
        if release := releases().get(name):
            given = {**given, "export": f"{release.engine}{colon}{path}", "engine": {"name": name}}
        found = exports.parse(str(given["export"]), str(given.get("mode")))
        return {**given, "export": found._replace(path=None if found.path is None else expanded(found.path))}


class SiteSettings(ExportSettings):
    """mode=site: the Markdown files below the folder `document` are pages of it."""

    document: parts.UserPath | None = None


class ImportSettings(Settings):
    """mode=import."""

    device: Device | None = None

    @model_validator(mode="after")
    def _has_file(self) -> Self:
        if self.source is None or (self.device is None and not self.source.endswith((PARQUET, TRACES))):
            raise ValueError("import: mode=import takes a result file and its GPU; type import=results.csv device=h200")
        return self


class ConformanceSettings(Settings):
    """mode=conformance."""

    format: Format = "terminal"
    backend: parts.BackendNames = ()


OF_MODE: dict[str, type[Settings]] = {
    "run": RunSettings, "plan": PlanSettings, "compile": CompileSettings, "replay": ReplaySettings, "calibrate": Settings,
    "noise": RunSettings, "check_power": RunSettings, "report": AskSettings, "compare": CompareSettings,
    "bisect": BisectSettings, "watch": WatchSettings, "donate": DonateSettings, "dashboard": DashboardSettings,
    "document": DocumentSettings, "site": SiteSettings, "import": ImportSettings, "export": ExportSettings,
    "support": Settings, "conformance": ConformanceSettings,
}  # fmt: skip


@cache
def keys_of(settings: type[Settings]) -> frozenset[str]:
    """The keys of a class, as they are typed, without the keys below them."""
    return frozenset(field.alias or name for name, field in settings.model_fields.items())


@cache
def all_keys() -> tuple[str, ...]:
    """Every key that can be typed, with dots."""
    keys = [f"sweep.{key}" for key in (*SWEEP_KEYS, "dtype", "exclude", "include")]
    for name, field in {name: field for one in OF_MODE.values() for name, field in one.model_fields.items()}.items():
        keys.append(field.alias or name)
        if name != "sweep" and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += [f"{name}.{part.alias or key}" for key, part in field.annotation.model_fields.items()]
    return tuple(dict.fromkeys((*keys, *keys_of(SuspectSettings))))


def nearest_key(key: str) -> str:
    """The key that was probably meant: `key`, its name of today, the full one if its first part is missing; else empty."""
    known = all_keys()
    if key in known or key in RENAMED:
        return RENAMED.get(key, key)
    by_last_part = {full.rpartition(".")[2]: full for full in known}
    if (axis := f"sweep.{SHORT_NAMES.get(key.removeprefix('sweep.'))}") in known:
        return axis
    near = get_close_matches(key, known, n=1) or get_close_matches(key, by_last_part, n=1)
    return by_last_part.get(near[0], near[0]) if near else ""


def meant_by(key: str, mode: str, value: object) -> str:
    """What to type instead of a key that there is not: the nearest one, or `where` for a column in a mode that chooses rows."""
    near = nearest_key(key)
    axis = "kv_dtype" if near == "sweep.s_kv" and str(value) in (*DTYPES, *ALIASES) else near.removeprefix("sweep.")
    if axis != near != key and "." not in key and (mode == "compare" or MODES[mode].reads_dataset):
        return f"rows are chosen by their columns: type 'where={{{axis}: {as_typed(ALIASES.get(str(value), value))}}}'"
    return f"did you mean '{near}'?" if near else HELP


def load(config: Mapping[str, Any]) -> Settings:
    """The settings of a composed configuration's mode, without keys of others. Raises UserError that lists every wrong key."""
    if config.get("mode") not in MODES:
        mode, (*names, last) = str(config.get("mode")), map(repr, MODES)
        raise UserError(f"mode={mode!r}:{did_you_mean(mode, MODES)} allowed: {', '.join(names)} or {last}")
    if config.get("sweep") is None:
        _require_no_sweep(config)
        config = {**config, "sweep": {"name": "none"}}
    ours = SuspectSettings if config.get("rerun") == "suspects" and config["mode"] in SUSPECTING else OF_MODE[config["mode"]]
    others = frozenset(all_keys()) - keys_of(ours)
    try:
        return _adapt_to_mode(ours.model_validate({key: value for key, value in config.items() if key not in others}))
    except ValidationError as error:
        raise UserError(explain(error, meant=lambda key: meant_by(key, config["mode"], config.get(key)))) from None


SUSPECTING = tuple(mode for mode, one in OF_MODE.items() if one is RunSettings)  # modes that have `rerun`


def _require_no_sweep(config: Mapping[str, Any]) -> None:
    """Raises UserError if the mode needs a sweep, or a dataset instead, and neither is named."""
    mode, path = config["mode"], (config.get("results") or {}).get("path")
    rules = MODES[mode]
    if rules.needs == "nothing" or (rules.reads_dataset and path != NO_SWEEP_PATH):
        return
    if mode == "report" and (config.get("device") or config.get("question")):
        return  # the dataset is found by its deployment; columns are of every dataset
    if mode == "export" and str(config.get("export")).partition(":")[0] in (*exports.ENGINES, *releases()):
        return
    if extra := sorted(config.keys() - set(all_keys()) - {"hydra"}):
        raise UserError(f"{extra[0]}: unknown key; {meant_by(extra[0], mode, config[extra[0]])}")
    instead = f", or results.path=DIR for mode={mode}" if rules.reads_dataset or rules.sweep_of_row else ""
    usual = {"watch": "auto_guard, or +sweep=NAME", "run": "NAME, or question=best to read what was measured"}.get(mode, "NAME")
    raise UserError(f"sweep: none given; type +sweep={usual}{instead}, where NAME is one of: {', '.join(own_files('sweep'))}")


def _adapt_to_mode(settings: Settings) -> Settings:
    """A/A pairs and mutants go to their own datasets. Mutants run eagerly and briefly, since they are checked and not timed."""
    if isinstance(settings, SuspectSettings):  # they are to be compared
        settings = settings.model_copy(update={"timing": settings.timing.model_copy(update={"precision": "full"})})
    if not MODES[settings.mode].own_dataset or settings.mode == "replay":
        return settings
    own: dict[str, Any] = {"results": parts.Results(path=companion(settings.results.path, settings.mode))}
    if settings.mode in ("noise", "bisect", "watch"):  # they ask how far times differ
        return settings.model_copy(update={**own, "timing": settings.timing.model_copy(update={"precision": "full"})})
    once = Timing(name="check_power", timer="eager", warmup=0, min_samples=10, max_samples=20, max_seconds=0.01)
    return settings.model_copy(update={**own, "timing": once, "adapters": (*settings.adapters, mutants_of(settings))})


def mutants_of(settings: Settings) -> str:
    """The module of the wrong kernels that mode=check_power runs."""
    if not settings.check.draws:
        return MUTANTS
    return DRAWN_OF_EACH if settings.check.tolerance == "each" else DRAWN
