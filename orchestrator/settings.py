"""The one door for configuration: what Hydra composed becomes frozen, closed, typed data, or an error for a person."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from kernels import batch_spec
from kernels.device import Device
from kernels.problem import PLAIN_MASKS, Problem
from kernels.timing import Timing
from kernels.trees import Tree
from orchestrator.errors import UserError, explain, unknown

Scalar = bool | int | float | str
AxisValue = Scalar | None | dict[str, Scalar | None]  # a mapping moves several keys together; null is the model's or the default

Reading = Literal["report", "compare", "dashboard", "import", "export"]
Mode = Literal["run", "plan", "compile", "replay", "calibrate", "noise", "check_power", Reading]

Versions = Literal["same", "any"]

MUTANTS = "kernels.mutants"
BESIDE = ("noise", "check_power")  # modes whose rows lie in `<results.path>_<mode>`
NO_SWEEP_PATH = "results/none"  # what conf/config.yaml makes of results.path without a sweep
READERS = ("report", "dashboard", "export")  # modes that read a dataset and nothing else: results.path alone will do
CSV_TO_STDOUT = "flashinfer_csv"  # the value of export= that prints
NO_AXIS = frozenset({"name", "about", "exclude", "include"})


def _as_words(given: Any) -> Any:
    """One condition or a list of them, where YAML may have made a number of a version."""
    values = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return tuple(str(value) if isinstance(value, Scalar) else value for value in values)


Conditions = Annotated[tuple[str, ...], BeforeValidator(_as_words)]  # which rows a side of a comparison holds


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Frozen):
    """Head shapes of a whole model, and how it is served: tokens a KV page, tensor-parallel sizes.

    `head_dim_ckv` and `head_dim_kpe` are those of a model with MLA. `sliding_window` says what its windowed layers see; a
    sweep times the layers that see everything unless it names a `window`.
    """

    name: str
    num_qo_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim_qk: PositiveInt
    head_dim_vo: PositiveInt
    head_dim_ckv: PositiveInt | None = None
    head_dim_kpe: PositiveInt | None = None
    page_size: PositiveInt = 64
    tp: tuple[PositiveInt, ...] = (1,)
    sliding_window: PositiveInt | None = None
    sinks: bool = False

    def share(self, routine: str, tp: int) -> dict[str, Scalar]:
        """What one GPU of `tp` holds, as keys of a problem: KV heads are copied where there are fewer of them than GPUs.

        Raises UserError for a size at which this model is not split.
        """
        if tp not in self.tp:
            raise UserError(f"sweep.tp={tp}: model {self.name} is split over {', '.join(map(str, self.tp))}; type one of these")
        shape: dict[str, Scalar] = {
            "num_qo_heads": self.num_qo_heads // tp,
            "num_kv_heads": max(1, self.num_kv_heads // tp),
            "head_dim_qk": self.head_dim_qk,
            "head_dim_vo": self.head_dim_vo,
            "page_size": self.page_size,
            "sinks": self.sinks,
        }
        if routine == "mla" and self.head_dim_ckv and self.head_dim_kpe:
            shape |= {"head_dim_ckv": self.head_dim_ckv, "head_dim_kpe": self.head_dim_kpe}
        return shape


class Sweep(Frozen):
    """A sweep as data: axes with their values, rules that leave points out, rules that add some."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    about: str = ""
    axes: dict[str, tuple[AxisValue, ...]]
    exclude: tuple[dict[str, tuple[Scalar | None, ...]], ...] = ()
    include: tuple[dict[str, tuple[AxisValue, ...]], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, flat: Any) -> Any:
        """YAML keeps axes beside the name; here they stand apart, each a tuple even where one value was given."""
        if not isinstance(flat, dict) or "axes" in flat:
            return flat
        rules = {key: tuple(map(_as_axes, _as_rules(key, flat.get(key)))) for key in ("exclude", "include")}
        axes = _as_axes({key: value for key, value in flat.items() if key not in NO_AXIS})
        return {"name": flat.get("name"), "about": flat.get("about", ""), "axes": axes, **rules}

    @model_validator(mode="after")
    def _known_axes(self) -> Self:
        for where, axes in (("sweep", self.axes), *((f"sweep.include[{i}]", rule) for i, rule in enumerate(self.include))):
            for axis, values in axes.items():
                _check_axis(where, axis, values)
        for i, rule in enumerate(self.exclude):
            for key in rule:
                if key not in KEYS:
                    raise ValueError(unknown(f"sweep.exclude[{i}]", key, KEYS))
            for spec in rule.get("batch_spec", ()):
                _check_excluded_spec(f"sweep.exclude[{i}]", spec)
        return self


# A model is a group: model=llama_3_1_8b, or -m model=a,b. A tree is named by `mask`.
KEYS = (frozenset(Problem.model_fields) | {"backend"}) - {"model", "tree"}


def keys_of(axis: str, value: AxisValue) -> dict[str, Scalar | None]:
    """The keys that one value of an axis sets: itself, or those of a mapping.

    There `q` under `dtype` means `q_dtype`, and `{min: 1, max: 8}` under `s_qo` means `min_s_qo` and `s_qo`. A `batch_spec` sets
    every length; ValueError where it is none.
    """
    if isinstance(value, dict):
        keys = {key if key in KEYS else axis if key == "max" else f"{key}_{axis}": v for key, v in value.items()}
    else:
        keys = {axis: value}
    spec = keys.get("batch_spec")
    return keys | batch_spec.keys_of(spec) if isinstance(spec, str) else keys


def _check_axis(where: str, axis: str, values: tuple[AxisValue, ...]) -> None:
    for value in values:
        for key in keys_of(axis, value):
            if key not in KEYS:
                hint = (
                    ""
                    if isinstance(value, dict)
                    else ". An axis of another name takes mappings, such as dtype: [{q: bf16, kv: bf16}]"
                )
                raise ValueError(unknown(where, axis if key == axis else f"{axis}.{key}", KEYS) + hint)


def _check_excluded_spec(where: str, spec: Scalar | None) -> None:
    """A batch whose requests are alike has no spec that a rule could match, a mixed one has its shortest."""
    keys = batch_spec.keys_of(str(spec))
    if keys["batch_spec"] != spec:
        lens = ", ".join(f"{key}: {keys[key]}" for key in ("batch_size", "s_qo", "s_kv"))
        raise ValueError(f"{where}: batch_spec={spec!r}: type {keys['batch_spec'] or f'{{{lens}}}'}, which its points are known by")


def _as_rules(key: str, rules: Any) -> list[Any]:
    if rules is not None and not isinstance(rules, list):
        raise ValueError(f"sweep.{key}={rules!r}: allowed: a list of rules such as [{{backend: cudnn, s_qo: [4, 8]}}]")
    return rules or []


def _as_axes(mapping: Any) -> Any:
    if not isinstance(mapping, dict):
        raise ValueError(f"sweep: {mapping!r} is no rule; allowed: a mapping such as {{backend: cudnn, s_qo: [4, 8]}}")
    axes = {key: tuple(v) if isinstance(v, list | tuple) else (v,) for key, v in mapping.items()}
    for key, values in axes.items():
        for value in values:
            parts = value.values() if isinstance(value, dict) else (value,)
            if not all(part is None or isinstance(part, Scalar) for part in parts):
                raise ValueError(f"sweep.{key}={value!r}: allowed: numbers and words, or mappings of keys to such")
    return axes


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


def _chances(given: Any) -> float | tuple[float, ...]:
    """One chance, or one for each position of a draft."""
    several = isinstance(given, list | tuple)
    chances = tuple(given) if several else (given,)
    if not chances or not all(isinstance(c, int | float) and not isinstance(c, bool) and 0 <= c <= 1 for c in chances):
        raise ValueError(
            f"draft.acceptance={given!r}: allowed: a chance from 0 to 1, or one for each position such as [0.9,0.8,0.7]"
        )
    return chances if several else chances[0]


def _where(given: Any) -> object:
    """Columns with a value, or several; nothing stands for every row."""
    columns = {} if given is None else given
    values = columns.values() if isinstance(columns, dict) else [None]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    if not all(isinstance(part, Scalar) for part in parts):
        raise ValueError(f"where={given!r}: allowed: columns with a value or several, such as {{s_qo: [1, 4], kv_dtype: bf16}}")
    return columns


class Draft(Frozen):
    """What the best draft length depends on beside attention; times in microseconds.

    `acceptance` is the chance that a drafted token is accepted: one value, or one for each position given that all before it
    were accepted. `layers` of attention and `rest_us` (everything else of a target step) make the time of a step, to which a
    draft adds `start_us` once and `cost_us` for each of its tokens. Without any of them the answer is about attention alone.
    """

    acceptance: Annotated[float | tuple[float, ...], BeforeValidator(_chances)] = 0.8
    layers: PositiveInt | None = None
    rest_us: NonNegativeFloat = 0
    start_us: NonNegativeFloat = 0
    cost_us: NonNegativeFloat = 0

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        """What a step costs beside attention means nothing next to a single layer of it."""
        if self.layers is None and (given := [key for key in ("rest_us", "start_us", "cost_us") if getattr(self, key)]):
            raise ValueError(
                f"draft.layers: needed beside draft.{given[0]}, since a row times one layer of attention; "
                f"type draft.layers=80 for Llama-3.1-70B, 32 for 8B, 61 for DeepSeek-V3"
            )
        return self


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
    where: Annotated[dict[str, Scalar | tuple[Scalar, ...]], BeforeValidator(_where)] = {}
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
