"""What a release of an inference engine runs by each of its attention flags, read from `conf/engine/<engine>_<release>.yaml`.

The files are data: a new release is one more. What a flag runs was read in the engine's source, or seen in a profile (`Sighting`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from kernels.engines.flags import DEFAULT, OFF
from kernels.problem.dtypes import SIZE_BITS
from orchestrator.config.base import SUFFIX, Frozen, own_files, own_table
from orchestrator.errors import UserError, did_you_mean, explain
from orchestrator.untrusted import yaml as untrusted_yaml

Phase = Literal["decode", "verify", "prefill"]
Layers = Literal["full", "sliding", "mla", "sparse_mla"]
PHASES: tuple[Phase, ...] = ("decode", "verify", "prefill")
MAX_DRAFT = 64  # query tokens of a request that are a draft; more of them are a part of a prompt
FOLDER = "engine"
NO_CALL = "what no backend here does"
SOURCE = r"^\S+\.py:\d+( \([^)]+\))?(, (\S+\.py)?:\d+( \([^)]+\))?)*$"  # FILE:LINE (NAME), :LINE (NAME), ...


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
        several = ((self.cc, workload.major), (self.layers, workload.layers), (self.phases, workload.phase))
        one = ((self.trees, workload.tree), (self.sinks, workload.sinks))
        is_in = all(allowed is None or value in allowed for allowed, value in (*several, (self.kv, workload.kv_dtype)))
        return is_in and all(asked is None or asked == value for asked, value in one)


class Flag(Frozen):
    """A backend as an engine names it.

    `words` name a second form of it. `typed` is what a user types, the same in all phases or by phase. `cc` are major compute
    capabilities. `pages` are the page sizes in tokens that it takes, None for any, and `page` the one that the engine takes by
    itself; `page_flag` sets another, where the engine's own would change the backend. `kernel_page`: the kernel's pages, where they
    are not the engine's. `rounds_q`: over an FP8 cache the kernel
    gets FP8 queries. `plan`: made once a step, or in each layer. `calls` has for each phase the calls that are the same here:
    `own_build`, then others that stand in for it. `source`: files and lines that say so. `changed`: since when they run otherwise.
    """

    name: str
    words: str | None = None
    typed: str | dict[Phase, str] = Field(alias="type")
    cc: tuple[int, ...]
    layers: tuple[Layers, ...]
    kv: Dtypes
    pages: tuple[int, ...] | None = None
    page: int | None = None
    page_flag: str | None = None
    kernel_page: int | None = None
    sinks: bool = False
    trees: bool = False
    rounds_q: bool = False
    plan: Literal["step", "layer"] = "step"
    default: tuple[Condition, ...] = ()
    own_build: str | None = None
    calls: dict[Phase, Calls]
    source: Annotated[str, Field(pattern=SOURCE)]
    changed: dict[Phase, str] = Field(default_factory=dict)

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

    def runs(self, phase: Phase) -> tuple[object, ...]:
        """What two releases have alike if they run the same in a phase."""
        return self.calls.get(phase), self.rounds_q, self.plan, self.changed.get(phase)

    def stands_in(self, call: EngineCall) -> bool:
        """Whether a call is another build of what the engine runs."""
        return self.own_build is not None and call.backend != self.own_build


class Sighting(Condition):
    """A profile of a running engine: the kernels of attention by their names there, with a flag, for such workloads.

    `typed` is the flag's text, `gpu` where `model` ran, and `by` the dataset in `results/` that has the rows.
    """

    typed: str = Field(alias="type")
    gpu: str
    model: str
    cc: tuple[int, ...]
    layers: tuple[Layers, ...]
    phases: tuple[Phase, ...]
    kv: Dtypes
    trees: bool | None = False
    sinks: bool | None = False
    kernels: Annotated[tuple[str, ...], Field(min_length=1)]
    by: str


class Known(NamedTuple):
    """How it is known what a flag runs for a workload, in words, and in which releases that holds.

    `call` is a call here that is the same; empty if there is none. `known` is `seen on H200` or `read, not seen`, `evidence` the
    kernels in the profile and where it is, or a line of source. `alike` are the releases in which the same text runs the same calls
    (and is the default, if it is that here), `0.25.1 (seen)` if a profile shows it; `others` say what it does in the rest.
    """

    call: str
    known: str
    evidence: str
    alike: str
    others: str


class Engine(Frozen):
    """A release of an engine. The first flag whose `default` matches a workload is the one that the engine takes by itself.

    `per_layers`: its names of the kinds of layers, if it takes a backend for each; then `type_per_layers` is how that is typed,
    with `{layers}` and `{name}`. `page_flag` sets its page size. `has_draft_table`: it takes a draft length by range of batches.
    `covers` are the workloads that its file is about. `caches`: what --kv-cache-dtype takes for a cache, if not its dtype.
    `requires`: the library with its own builds of kernels, at the release that it pins, if it is another than the engine's.
    """

    engine: str
    release: str
    title: str
    read: tuple[str, ...]
    per_layers: dict[Layers, str] = Field(default_factory=dict)
    type_per_layers: str = ""
    page_flag: str | None = None
    has_draft_table: bool = False
    caches: dict[str, str] = Field(default_factory=dict)
    requires: str = ""
    covers: Condition = Condition()
    seen: tuple[Sighting, ...] = ()
    flags: tuple[Flag, ...]

    @model_validator(mode="after")
    def _has_flags_for_what_was_seen(self) -> Self:
        texts = {flag.text(phase) for flag in self.flags for phase in flag.phases}
        if unknown := [one.typed for one in self.seen if one.typed not in texts]:
            raise ValueError(f"seen: {unknown[0]!r} is no flag's type; allowed: {', '.join(sorted(filter(None, texts)))}")
        return self

    @property
    def libraries(self) -> tuple[str, ...]:
        """How rows name this release, such as `sglang 0.5.23`, and what it requires."""
        return tuple(filter(None, (f"{self.engine} {self.release}", self.requires)))

    def cache_flag(self, kv_dtype: str | None) -> str:
        """What a user types for a cache; empty for 16 bits, which the engine takes by itself."""
        return f"--kv-cache-dtype {self.caches.get(kv_dtype or '', kv_dtype)}" if str(kv_dtype).startswith("fp8") else ""

    def typed(self, flag: Flag, phase: Phase, layers: Layers) -> str:
        """What a user types for one kind of layers: the backend for these, and what else the flag sets. Empty if it has no such."""
        if layers not in self.per_layers:
            return ""
        words = flag.text(phase).split()
        rest = [one for one, after in zip(words, [*words[1:], ""], strict=True) if flag.name not in (one.rpartition("=")[2], after)]
        return " ".join([self.type_per_layers.format(layers=self.per_layers[layers], name=flag.name), *rest])

    def named(self, name: str, workload: Workload) -> Flag | None:
        """The flag of a name that serves a workload by a call of this project; None if it has none."""
        of_name = (flag for flag in self.flags if flag.name == name.upper())
        return next((flag for flag in of_name if flag.serves(workload) and flag.calls.get(workload.phase)), None)

    def default(self, workload: Workload) -> Flag | None:
        """The flag that the engine takes if nothing is typed; None if its file says nothing of such workloads."""
        taken = (flag for flag in self.flags if any(condition.matches(workload) for condition in flag.default))
        return next((flag for flag in taken if flag.serves(workload)), None)

    def flagged(self, words: str, workload: Workload) -> Flag | None:
        """The flag that a row of a running engine names, such as `FLASHINFER:no-use_trtllm_attention`, for a workload."""
        if words == DEFAULT:
            return self.default(workload)
        name, _, off = words.partition(OFF)
        options = {f"-ac.{off}=false"} if off else set()
        of_name = ((of, of.text(workload.phase).split()) for of in self.flags if of.name == name and of.serves(workload))
        return next((of for of, typed in of_name if {word for word in typed if word.endswith("=false")} == options), None)

    def other_build(self, libraries: str) -> str | None:
        """The other release, such as `vllm 0.25.1`, whose kernels are in these `libraries`; None: this one's, or no engine's."""
        known = {name: one.libraries[0] for one in _of_name(self) for name in one.libraries}
        names = {name.partition(" ")[0] for name in self.libraries}
        parts = (part.partition("+")[0] for part in libraries.split(", ") if part.partition(" ")[0] in names)
        return next((known.get(part, part) for part in parts if part not in self.libraries), None)

    def profiles(self, typed: str, workload: Workload) -> list[Sighting]:
        """What was seen running for a workload by this text."""
        return [one for one in self.seen if one.typed == typed and one.matches(workload)]

    def known(self, flag: Flag, workload: Workload) -> Known:
        """How it is known what a flag runs for a workload."""
        typed = flag.text(workload.phase)
        profiles = self.profiles(typed, workload)
        ran, default = flag.runs(workload.phase), self.default(workload)
        is_default = default is not None and default.text(workload.phase) == typed
        alike: list[str] = []
        others: list[str] = []
        for one in (one for one in _of_name(self) if one.covers.matches(workload)):
            there = next((of for of in one.flags if of.text(workload.phase) == typed and of.serves(workload)), None)
            taken = one.default(workload) if is_default else there
            if there is None:
                others.append(f"{one.release} has no such flag for it")
            elif there.runs(workload.phase) != ran:
                new, calls = (flag.changed | there.changed).get(workload.phase), there.calls.get(workload.phase)
                run = f"{'/'.join(calls[0])} ({'seen' if one.profiles(typed, workload) else 'read'})" if calls else NO_CALL
                others.append(f"{one.release} runs {run}{f': {new}' if new else ''}")
            elif taken is None or taken.text(workload.phase) != typed:
                others.append(f"{one.release} takes {taken.name if taken else 'another'} by itself")
            else:
                alike.append(f"{one.release} (seen)" if one.profiles(typed, workload) else one.release)
        call = "/".join(next(iter(flag.calls.get(workload.phase, ())), ()))
        return Known(call, *_evidence(profiles, flag), ", ".join(alike), ", ".join(others))


def _evidence(profiles: Sequence[Sighting], flag: Flag) -> tuple[str, str]:
    """`known` and `evidence`."""
    if not profiles:
        return "read, not seen", flag.source.partition(", ")[0]
    kernels = dict.fromkeys(name for one in profiles for name in one.kernels)
    gpus = dict.fromkeys(one.gpu.removeprefix("NVIDIA ") for one in profiles)
    places = dict.fromkeys(f"of {one.model} in {one.by}" for one in profiles)
    return f"seen on {' and '.join(gpus)}", f"{', '.join(kernels)} {', '.join(places)}"


def _of_name(engine: Engine) -> list[Engine]:
    """The known releases of an engine by age; itself is among them."""
    others = [one for one in releases().values() if one.engine == engine.engine and one.release != engine.release]
    return sorted([*others, engine], key=lambda one: Version(one.release))


@cache
def releases(folder: str | None = None) -> dict[str, Engine]:
    """Every release by the name of its file, such as `vllm_0_32_0`: the project's, and those of `<folder>/engine`."""
    more = () if folder is None else Path(folder, FOLDER).glob(f"*{SUFFIX}")
    found: dict[str, Traversable] = {**own_files(FOLDER), **{file.stem: file for file in more}}
    return {name: _read(found[name]) for name in sorted(found)}


def _read(file: Traversable) -> Engine:
    try:
        return Engine.model_validate(untrusted_yaml.read(str(file), "engine")[1])
    except ValidationError as error:
        raise UserError(f"{file}: {explain(error)}") from None


def selected(name: str | None = None, folder: str | None = None) -> list[Engine]:
    """The newest release of every engine, of the engine `name`, or that release: `vllm:0.33.0`, or the name of its file.

    Raises UserError, with the releases that there are, for an unknown one.
    """
    known = releases(folder)
    by_age = sorted(known.values(), key=lambda one: Version(one.release))
    newest = {one.engine: one for one in by_age}
    if name is None:
        return sorted(newest.values(), key=lambda one: one.engine, reverse=True)
    typed = {f"{one.engine}:{one.release}": one for one in by_age}
    if (found := known.get(name) or newest.get(name) or typed.get(name)) is not None:
        return [found]
    engine = name.partition(":")[0]
    engine = next((one for one in newest if name.startswith(f"{one}_")), engine)  # as a file is called
    allowed = [one for one in typed if engine not in newest or typed[one].engine == engine]
    what = f"unknown release of {engine};" if engine in newest else f"unknown engine;{did_you_mean(engine.lower(), newest)}"
    example = f"engine={allowed[-1]}, or engine={typed[allowed[-1]].engine} for the newest"
    example += "; your own: --config-dir DIR (docs/adding_a_backend.md)" * (engine not in newest)
    raise UserError(f"engine={name!r}: {what} allowed: {', '.join(allowed)}; type {example}")


@cache
def kernel_names() -> tuple[tuple[str, str, str], ...]:
    """How profiles name kernels of attention: a part of the name, and a routine and a kernel here (conf/kernel_names.yaml)."""
    return tuple((part, *call.split("/")) for part, calls in own_table("kernel_names").items() for call in calls)


def calls_of(flag: Flag) -> Iterator[tuple[Phase, int, EngineCall]]:
    """Every call of a flag: its phase, its turn from 0, and the call."""
    return ((phase, turn, call) for phase, calls in flag.calls.items() for turn, call in enumerate(calls))


def of_builds(engines: Iterable[Engine]) -> str:
    """A pattern of values of `libraries` that name one of these releases, such as `vllm 0.33.0`, or what it requires."""
    return rf"(?:^|, )(?:{'|'.join(re.escape(name) for one in engines for name in one.libraries)})(?:$|[+,])"
