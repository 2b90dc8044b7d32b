"""mode=conformance: whether backends keep the contract of kernels/adapter.py on this machine, as a table of verdicts for each."""

from __future__ import annotations

from collections import Counter
from functools import partial

from kernels import registry
from kernels.adapter import Adapter
from kernels.conformance.isolation import Isolated
from kernels.conformance.purity import impure_backends
from kernels.conformance.suite import conformance
from kernels.registry import Registered
from kernels.split import Split
from orchestrator import libraries, machines
from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.settings import ConformanceSettings
from orchestrator.errors import UserError, unknown
from orchestrator.tables import Grid

TRIAL_SECONDS = {"cpu": 120.0, "cuda": 600.0}  # of one check on one problem; on a GPU it may compile a module first


def execute(invocation: Invocation[ConformanceSettings]) -> int:
    """Checks the named backends, those of `adapters`, or all; returns 1 if one failed. Raises UserError for an unknown one."""
    plugins = invocation.settings.adapters
    chosen = _chosen(plugins, invocation.settings.backend)
    device, known = machines.describe().devices[0], list(machines.known_devices().values())
    impure = impure_backends(plugins, known, [key for one in chosen.values() for key in _planned_by(one.adapter)])
    tally: Counter[str] = Counter()
    with Isolated(plugins, TRIAL_SECONDS[device.kind]) as process:
        for (routine, name), one in chosen.items():
            run = partial(process.run, routine, name)
            versions = machines.versions(one.adapter.all_distributions)
            missing = libraries.missing(one.adapter, versions)
            complaint = "; ".join(filter(None, (impure[key] for key in _planned_by(one.adapter))))
            results = list(conformance(one.adapter.for_versions(versions), device, known, complaint, run, missing=missing))
            cells = tuple((result.check, result.verdict, result.words) for result in results)
            invocation.show([Grid(f"{routine} {name} on {device.name}", ("check", "verdict", "words"), cells)], title="conformance")
            tally.update(result.verdict for result in results)
    invocation.remark(", ".join(f"{tally[verdict]} {verdict}" for verdict in ("passed", "failed", "too strict", "not run")))
    return BAD_POINTS if tally["failed"] else OK


def _planned_by(adapter: Adapter) -> list[tuple[str, str]]:
    """The backends whose rules plan this one, by routine and name: itself, or the two of one that makes two calls."""
    parts = (adapter.decode, adapter.prefill) if isinstance(adapter, Split) else (adapter,)
    return [(part.routine, part.name) for part in parts]


def _chosen(plugins: tuple[str, ...], names: tuple[str, ...]) -> dict[tuple[str, str], Registered]:
    try:
        found = {**registry.registered(plugins), **registry.splits(names, plugins)}
    except (ImportError, ValueError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules with a tuple ADAPTERS") from None
    known = {name for _, name in found}
    if wrong := [name for name in names if name not in known]:
        raise UserError(unknown("backend", wrong[0], known))
    return {key: one for key, one in found.items() if (key[1] in names if names else not plugins or one.module in plugins)}
