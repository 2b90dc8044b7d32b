"""Which releases of FlashInfer and FlashAttention-3 each backend can be run with: docs/versions.md.

    python tools/releases.py            # prints the page
    python tools/releases.py write      # writes its tables

Every backend is prepared and called on a CPU, with stand-ins in the library's place that have exactly the signatures of a release
(`tools/signatures.json`, read from the wheels by `wheel_signatures.py`). What this shows is whether the release takes
the call, and not whether its answer is right: a GPU shows that.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

import yaml
from packaging.version import Version

from kernels import registry
from kernels.adapter import Adapter
from kernels.device import Device
from kernels.problem import Problem
from orchestrator.machines import known_devices
from orchestrator.tables import Grid, markdown

DATA = ROOT / "tools" / "signatures.json"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"
DEVICES = ("h200", "b200", "rtx5090")
SHAPE, ROUTINES, FEATURES = yaml.safe_load((ROOT / "tools" / "releases.yaml").read_text()).values()


@cache
def known() -> dict[str, dict[str, Any]]:
    return json.loads(DATA.read_text())


def releases_of(library: str) -> list[str]:
    return list(known()[library]["releases"])


def signatures(library: str, release: str) -> dict[str, str | None]:
    listed, at = known()[library]["signatures"], Version(release)
    return {key: next((text for since, text in reversed(rows) if Version(since) <= at), None) for key, rows in listed.items()}


Log = list[tuple[str, tuple[str, ...]]]  # the name of each call, and those of its arguments that were given


def _recorder(key: str, arguments: str, log: Log) -> Callable[..., Any]:
    """A function of this name and signature that writes down what it was given, and returns an object with any method."""
    name = key.rpartition(":")[2].rpartition(".")[2]
    scope: dict[str, Any] = {}
    exec(f"def {name}({arguments}): pass", scope)
    signature = inspect.signature(scope[name])

    @functools.wraps(scope[name])
    def recorder(*args: Any, **keys: Any) -> Any:
        bound = signature.bind(*args, **keys)
        return _seen(key, bound.arguments, bound.kwargs, log)

    return recorder


def _seen(key: str, given: dict[str, Any], keywords: dict[str, Any], log: Log) -> Any:
    name = key.rpartition(".")[2]
    named = {**given, **given.get("kwargs", {})}
    own = named.pop("self", None)
    if name == "resolved_backend":
        return own._backend
    if name == "plan" and hasattr(type(own), "_plan_impl"):  # hands on what it takes by name
        own._plan_impl(*(one for key, one in given.items() if key not in ("self", "kwargs")), **keywords)
    if name == "plan" and own._backend == "auto":
        own._backend = "fa2"
    if name != "_plan_impl":
        log.append((key, tuple(sorted(one for one, value in named.items() if one != "kwargs" and value is not None))))
    if name != "__init__":
        return _Any()
    own._backend = named.get("backend", "auto")
    own._cute_dsl_wrapper = SimpleNamespace(_reduction="none", _kv_splits=1)
    own._batch_prefill_wrappers = [SimpleNamespace(run=lambda *_a, **_k: None, _backend="fa2") for _ in range(2)]
    return None


class _Any:
    """What a stand-in returns: an object with any method, such as a module of kernels."""

    name = "a_module"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_keys: None


@cache
def _flashinfer(release: str) -> tuple[dict[str, ModuleType], Log]:
    """Modules with what this release has, to stand in the place of FlashInfer's, and the log that they write."""
    log: Log = []
    found = signatures("flashinfer-python", release)
    paths = {"flashinfer": ModuleType("flashinfer")}
    paths["flashinfer.jit.attention.variants"] = ModuleType("variants")
    paths["flashinfer.jit.attention.variants"].attention_sink_decl = {"fa2": "", "fa3": ""}  # type: ignore[attr-defined]
    for key, arguments in found.items():
        where, _, name = key.partition(":")
        path = f"flashinfer.{where}".rstrip(".")
        for end in range(1, path.count(".") + 2):
            parent = ".".join(path.split(".")[:end])
            paths.setdefault(parent, ModuleType(parent))
        if arguments == "class":
            methods = {
                k.rpartition(".")[2]: _recorder(k, text, log) for k, text in found.items() if k.startswith(f"{key}.") and text
            }
            if "resolved_backend" in methods:
                methods["resolved_backend"] = property(methods["resolved_backend"])  # type: ignore[assignment]
            methods |= {made: classmethod(methods[made]) for made in ("csr", "dual") if made in methods}  # type: ignore[dict-item]
            home = "flashinfer.decode" if "Decode" in name else path
            setattr(paths[path], name, type(name, (), {**methods, "__module__": home}))
        elif arguments is not None and "." not in name:
            setattr(paths[path], name, _recorder(key, arguments, log))
    return paths, log


@contextmanager
def standing_in(library: str, release: str) -> Iterator[Log]:
    """The release's signatures in the library's place, while it lasts. Gives the calls that reach it."""
    modules, log = _flashinfer(release if library == "flashinfer-python" else releases_of("flashinfer-python")[-1])
    log.clear()
    fa3 = signatures("tokenspeed-fa3", release if library == "tokenspeed-fa3" else releases_of("tokenspeed-fa3")[-1])
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "flashinfer"}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    operators = SimpleNamespace(**{key.partition(":")[2]: _operator(key, text or "", log) for key, text in fa3.items()})
    try:
        with (
            patch("kernels.adapters.flash_attn_3._operators", lambda: operators),
            patch("kernels.libraries.flashinfer_common.WORKSPACE_BYTES", 1024),  # 256 MiB take a while to be zeroed
        ):
            yield log
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)


def _operator(key: str, arguments: str, log: Log) -> Callable[..., Any]:
    import torch

    most = arguments.count(",") + 1

    def call(*args: Any) -> Any:
        if len(args) > most:
            raise TypeError(f"{key} takes {most} arguments, and got {len(args)}")
        log.append((key, (str(len(args)),)))
        if key.endswith("fwd"):
            return args[6], torch.zeros(args[0].shape[1], len(args[0]))
        return torch.zeros(1)

    return call


def problem_of(routine: str, feature: str, layout: str = "HND") -> Problem | None:
    """The smallest problem of a routine with this feature; None if the routine has no such problem."""
    try:
        return Problem.model_validate({"routine": routine, **SHAPE, **ROUTINES[routine], **FEATURES[feature], "kv_layout": layout})
    except ValueError:
        return None


def served(adapter: Adapter, feature: str) -> tuple[Problem, Device] | None:
    """The problem with a device whose rule allows it in the newest release; None if no device does."""
    problems = [one for layout in ("HND", "NHD") if (one := problem_of(adapter.routine, feature, layout)) is not None]
    devices = [known_devices()[name] for name in DEVICES]
    return next(((p, device) for p in problems for device in devices if not adapter.unmet(p, device)), None)


@dataclass(frozen=True)
class Tried:
    """What came of one call: what reached the library, or why nothing could."""

    calls: tuple[tuple[str, tuple[str, ...]], ...]
    error: str


@cache
def tried(adapter: Adapter, library: str, release: str, feature: str) -> Tried:
    """One preparation, one call and the specifications of its modules, with the signatures of a release."""
    problem, device = served(adapter, feature) or (None, None)
    if problem is None or device is None:
        return Tried((), f"no rule allows {feature}")
    inputs, of_release = _drawn(problem.model_dump_json()), adapter.for_versions({library: release})
    with standing_in(library, release) as log:
        try:
            of_release.prepared(inputs, device)()
            for module in of_release.modules(problem, device):
                module.spec()
        except (TypeError, AttributeError, ImportError) as error:
            return Tried((), str(error))
    return Tried(tuple(log), "")


@cache
def _drawn(problem: str) -> Any:
    from kernels.inputs import generate

    return generate.draw(Problem.model_validate_json(problem), "cpu")


def backends_of(library: str) -> list[Adapter]:
    """The backends whose kernels come from a library, by routine, of those that serve a problem here: POD-Attention serves none."""
    adapters = [one for one in registry.adapters().values() if one.distributions[:1] == (library,) and one.routine in ROUTINES]
    found = [adapter for adapter in adapters if any(served(adapter, feature) for feature in FEATURES)]
    return sorted(found, key=lambda adapter: (list(ROUTINES).index(adapter.routine), adapter.name))


@dataclass(frozen=True)
class Standing:
    """How a call fares in every release: `same` as in the newest, `adapted`, or `none`; and where the rule allows it."""

    of_call: dict[str, str]
    allowed: dict[str, bool]

    def begins(self) -> tuple[str, str]:
        """The first release whose rule allows it, and the first that takes the call."""
        call = next(release for release, kind in self.of_call.items() if kind != "none")
        return next(release for release, allowed in self.allowed.items() if allowed), call


@cache
def standing(adapter: Adapter, library: str, feature: str, releases: tuple[str, ...] = ()) -> Standing | None:
    """In these releases, or in all. None if no device's rule allows the feature in the newest release."""
    if (found := served(adapter, feature)) is None:
        return None
    newest_release = releases_of(library)[-1]
    releases = releases or tuple(releases_of(library))
    newest = tried(adapter, library, newest_release, feature)
    assert not newest.error, f"{adapter.name}, {feature}: {newest.error}"
    of_call = {}
    for release in releases:
        other = tried(adapter, library, release, feature)
        of_call[release] = "none" if other.error else "same" if other.calls == newest.calls else "adapted"
    return Standing(of_call, {release: not adapter.for_versions({library: release}).unmet(*found) for release in releases})


def contradictions(adapter: Adapter, library: str, releases: tuple[str, ...] = ()) -> list[str]:
    """Problems that the rule allows in a release whose signatures refuse the call. There should be none."""
    wrong = []
    for feature in FEATURES:
        if (one := standing(adapter, library, feature, releases)) is not None:
            bad = [release for release in one.allowed if one.allowed[release] and one.of_call[release] == "none"]
            errors = {release: tried(adapter, library, release, feature).error for release in bad}
            wrong += [f"{adapter.routine} {adapter.name}, {feature}, {release}: {words}" for release, words in errors.items()]
    return wrong


def ranges(chosen: list[str], releases: list[str]) -> str:
    """Releases as ranges, such as `0.6.0 to 0.6.18, 0.7.1`."""
    parts: list[list[str]] = []
    for before, release in zip([None, *releases], releases, strict=False):
        if release in chosen:
            if parts and before in chosen:
                parts[-1][1] = release
            else:
                parts.append([release, release])
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in parts) or "–"


def row_of(adapter: Adapter, library: str) -> tuple[str, ...]:
    releases = releases_of(library)
    plain = next(one for feature in FEATURES if (one := standing(adapter, library, feature)) is not None)
    by_kind = {kind: [r for r in releases if plain.of_call[r] == kind] for kind in ("same", "adapted", "none")}
    later = []
    for feature in FEATURES:
        if (one := standing(adapter, library, feature)) is not None and one.begins() != plain.begins():
            rule, call = one.begins()
            later.append(f"{feature} {rule}" + (f" ({call})" if call != rule else ""))
    known_for = [release for release in releases if plain.allowed[release]]
    return (adapter.routine, adapter.name, ranges(known_for, releases), *(ranges(by_kind[kind], releases) for kind in by_kind),
            ", ".join(later) or "–")  # fmt: skip


def page() -> str:
    """The text of docs/versions.md: its own words, with the tables between its marks made again."""
    columns = ("routine", "backend", "rule known for", "same call", "adapted", "no such call", "later")
    parts = []
    for library in known():
        rows = tuple(row_of(adapter, library) for adapter in backends_of(library))
        parts += [f"## {library}, {len(releases_of(library))} releases\n", markdown([Grid("calls", columns, rows)], "|"), ""]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n".join(parts) + END + rest.partition(END)[2]


def main() -> int:
    import torch

    torch.set_grad_enabled(False)
    wrong = [line for library in known() for one in backends_of(library) for line in contradictions(one, library)]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if sys.argv[1:] == ["write"]:
        PAGE.write_text(page())
    else:
        print(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
