"""What a release of an inference engine runs by each of its attention flags, read from `conf/engine/<engine>_<release>.yaml`.

The files are data: a new release is one more file. Statements in them were read in the engine's source unless `seen` says where
they were seen running.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

import conf
from kernels.problem.dtypes import SIZE_BITS
from orchestrator.config.base import Frozen
from orchestrator.errors import UserError, did_you_mean, explain
from orchestrator.untrusted import yaml as untrusted_yaml

Phase = Literal["decode", "verify", "prefill"]
Layers = Literal["full", "sliding", "mla"]
PHASES: tuple[Phase, ...] = ("decode", "verify", "prefill")
MAX_DRAFT = 64  # query tokens of a request that are a draft; more of them are a part of a prompt
FOLDER, SUFFIX = "engine", ".yaml"


class EngineCall(NamedTuple):
    """A routine of this project and a backend of it."""

    routine: str
    backend: str


class Workload(NamedTuple):
    """What of a workload decides what an engine runs. `major` is that of the GPU's compute capability."""

    major: int
    layers: Layers
    phase: Phase
    kv_dtype: str
    tree: bool = False
    sinks: bool = False


def _call(given: Any) -> EngineCall:
    routine, slash, backend = str(given).partition("/")
    if not slash:
        raise ValueError(f"{given!r}: type ROUTINE/BACKEND, such as paged_decode/fa2_tc")
    return EngineCall(routine, backend)


def _known_dtypes(given: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [dtype for dtype in given if dtype not in SIZE_BITS]:
        raise ValueError(f"{unknown[0]}: unknown dtype; allowed: {', '.join(SIZE_BITS)}")
    return given


Calls = tuple[Annotated[EngineCall, BeforeValidator(_call)], ...]
Dtypes = Annotated[tuple[str, ...], AfterValidator(_known_dtypes)]


class Condition(Frozen):
    """Workloads for which an engine takes a flag by itself. A key that is left out matches all."""

    cc: tuple[int, ...] | None = None
    layers: tuple[Layers, ...] | None = None
    phases: tuple[Phase, ...] | None = None
    kv: Dtypes | None = None
    trees: bool | None = None
    sinks: bool | None = None

    def matches(self, workload: Workload) -> bool:
        """Whether a workload is among them."""
        several = ((self.cc, workload.major), (self.layers, workload.layers), (self.phases, workload.phase))
        one = ((self.trees, workload.tree), (self.sinks, workload.sinks))
        return (
            all(allowed is None or value in allowed for allowed, value in (*several, (self.kv, workload.kv_dtype)))
            and all(asked is None or asked == value for asked, value in one)
        )  # fmt: skip


class Flag(Frozen):
    """A backend as an engine names it.

    `typed` is what a user types, the same in all phases or by phase. `cc` are major compute capabilities. `pages` are the page
    sizes in tokens that it takes, None for any, and `page` the one that the engine takes by itself. `rounds_q`: over an FP8 cache
    the kernel gets FP8 queries. `plan`: made once a step, or in each layer. `calls` has for each phase the calls that are the same
    here: `own_build` first, then others that stand in for it. `source` is where it was read, `seen` what a running engine showed.
    """

    name: str
    typed: str | dict[Phase, str] = Field(alias="type")
    cc: tuple[int, ...]
    layers: tuple[Layers, ...]
    kv: Dtypes
    pages: tuple[int, ...] | None = None
    page: int | None = None
    sinks: bool = False
    trees: bool = False
    rounds_q: bool = False
    plan: Literal["step", "layer"] = "step"
    default: tuple[Condition, ...] = ()
    own_build: str | None = None
    calls: dict[Phase, Calls]
    source: str
    seen: str | dict[str, Any] | None = None

    def text(self, phase: Phase) -> str:
        """What a user types for a phase."""
        return self.typed if isinstance(self.typed, str) else self.typed.get(phase, "")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that this entry is about: all, if no backend of this project makes its calls."""
        return tuple(self.calls) or PHASES

    def serves(self, workload: Workload) -> bool:
        """Whether the engine takes this flag for a workload, whatever its page size."""
        return (
            workload.major in self.cc
            and workload.layers in self.layers
            and workload.kv_dtype in self.kv
            and workload.phase in self.phases
            and (self.trees or not workload.tree)
            and (self.sinks or not workload.sinks)
        )

    def stands_in(self, call: EngineCall) -> bool:
        """Whether a call is another build of what the engine runs."""
        return self.own_build is not None and call.backend != self.own_build


class Engine(Frozen):
    """A release of an engine. The first flag whose `default` matches a workload is the one that the engine takes by itself.

    `per_layers`: its names of the kinds of layers, if it takes a backend for each; then `type_per_layers` is how that is typed,
    with `{layers}` and `{name}`. `page_flag` sets its page size. `has_draft_table`: it takes a draft length for each range of batch
    sizes.
    """

    engine: str
    release: str
    title: str
    read: tuple[str, ...]
    per_layers: dict[Layers, str] = Field(default_factory=dict)
    type_per_layers: str = ""
    page_flag: str | None = None
    has_draft_table: bool = False
    flags: tuple[Flag, ...]

    def typed(self, flag: Flag, phase: Phase, layers: Layers) -> str:
        """What a user types for one kind of layers: the backend for these, and what else the flag sets. Empty if it has no such."""
        if layers not in self.per_layers:
            return ""
        words = flag.text(phase).split()
        others = [word for word, following in zip(words, [*words[1:], ""], strict=True) if flag.name not in (word, following)]
        others = [word for word in others if not word.endswith(f"={flag.name}")]
        return " ".join([self.type_per_layers.format(layers=self.per_layers[layers], name=flag.name), *others])

    def named(self, name: str, workload: Workload) -> Flag | None:
        """The flag of a name that serves a workload by a call of this project; None if it has none."""
        of_name = (flag for flag in self.flags if flag.name == name.upper())
        return next((flag for flag in of_name if flag.serves(workload) and flag.calls.get(workload.phase)), None)

    def default(self, workload: Workload) -> Flag | None:
        """The flag that the engine takes if nothing is typed; None if its file says nothing of such workloads."""
        taken = (flag for flag in self.flags if any(condition.matches(workload) for condition in flag.default))
        return next((flag for flag in taken if flag.serves(workload)), None)


@cache
def releases(folder: str | None = None) -> dict[str, Engine]:
    """Every release by the name of its file, such as `vllm_0_32_0`: the project's, and those of `<folder>/engine`."""
    places: list[Traversable] = [files(conf).joinpath(FOLDER)]
    if folder is not None and Path(folder, FOLDER).is_dir():
        places.append(Path(folder, FOLDER))
    found = (file for place in places for file in place.iterdir() if file.name.endswith(SUFFIX))
    return {file.name.removesuffix(SUFFIX): _read(file) for file in sorted(found, key=lambda file: file.name)}


def _read(file: Traversable) -> Engine:
    try:
        return Engine.model_validate(untrusted_yaml.read(str(file), "engine")[1])
    except ValidationError as error:
        raise UserError(f"{file}: {explain(error)}") from None


def selected(name: str | None = None, folder: str | None = None) -> list[Engine]:
    """The newest release of every engine, of the engine `name`, or the release `name`. Raises UserError for an unknown name."""
    known = releases(folder)
    if name in known:
        return [known[name]]
    newest: dict[str, Engine] = {}
    for one in known.values():
        if one.engine not in newest or Version(one.release) > Version(newest[one.engine].release):
            newest[one.engine] = one
    if name is None:
        return sorted(newest.values(), key=lambda one: one.engine, reverse=True)
    if name in newest:
        return [newest[name]]
    allowed = [*newest, *known]
    raise UserError(f"engine={name!r}: unknown engine;{did_you_mean(name, allowed)} allowed: {', '.join(allowed)}")


def calls_of(flag: Flag) -> Iterator[tuple[Phase, int, EngineCall]]:
    """Every call of a flag: its phase, its turn from 0, and the call."""
    for phase, calls in flag.calls.items():
        for turn, call in enumerate(calls):
            yield phase, turn, call
