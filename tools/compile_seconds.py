"""How long each kind of kernel module compiles: `python -m tools.compile_seconds [--write]`.

Reads `compile_s` of the committed datasets, a sum over the modules that a point waited for: a module's own time is what the others
leave. `--write` writes conf/compile_seconds.yaml; for the number of sources it needs FlashInfer.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from kernels import registry
from kernels.adapter import Module
from kernels.device import Device
from orchestrator import ROOT
from orchestrator.formats.results_csv import problem_of
from orchestrator.machines import known_devices
from orchestrator.planning.cost import HOST_CORES, kind_of
from orchestrator.storage import parquet

TABLE = ROOT / "conf" / "compile_seconds.yaml"
COMPILED_BEFORE_S = 1.0
# Runs beside other compilations, the first and the last four on 32 or 64 cores.
CROWDED = ("20261125T03", "20261126T05", "20261128T06", "20261128T07", "20261128T15", "20261128T16", "20261128T19", "20261129T19")
Sums = dict[frozenset[Module], float]


def main(*args: str) -> int:
    times = measured()
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    sources = {kind: len(next(iter(of_kind)).spec().sources) for kind, of_kind in times.items()}
    text = table(times, sources)
    print(text)
    if "--write" in args:
        TABLE.write_text(text)
    return 0


def measured() -> dict[str, dict[Module, list[float]]]:
    """The seconds of each module that a committed run compiled, one for each dataset, by kind of module."""
    found: dict[str, dict[Module, list[float]]] = defaultdict(lambda: defaultdict(list))
    device = known_devices()["h200"]
    for path in sorted((ROOT / "results").glob("h200_*/*.parquet")):
        for module, seconds in _apart(_sums(path, device)).items():
            found[kind_of(module)][module].append(seconds)
    return {kind: dict(found[kind]) for kind in sorted(found)}


def table(times: dict[str, dict[Module, list[float]]], sources: dict[str, int]) -> str:
    lines = [
        f"# How long kernel modules compiled: the median of seconds on hosts with {HOST_CORES} cores, and the number of sources.\n",
        "# Do not edit: `python -m tools.compile_seconds --write` writes it, from `compile_s` of the committed datasets.\n",
    ]
    for kind, of_kind in times.items():
        seconds = [s for several in of_kind.values() for s in several]
        about = f"# {len(seconds)} modules, {min(seconds):.1f} to {max(seconds):.1f} s"
        lines.append(f"{kind}: [{median(seconds):.1f}, {sources[kind]}] {about}\n")
    return "".join(lines)


def _sums(path: Path, device: Device) -> Sums:
    """The longest `compile_s` of the points that waited for the same modules."""
    frame, found = parquet.read(path).to_pandas(), Sums()
    waited = frame[(frame["status"] == "ok") & (frame["compile_s"] > 0) & ~frame["run_id"].str.startswith(CROWDED)]
    for row in waited.drop(columns="samples_us", errors="ignore").to_dict("records"):
        problem = problem_of(row)
        modules = frozenset(registry.get(problem.routine, row["backend"]).modules(problem, device))
        found[modules] = max(found.get(modules, 0.0), row["compile_s"])
    return found


def _apart(sums: Sums) -> dict[Module, float]:
    """The seconds of each module: of sums of one, and then of sums with one that is not known yet."""
    known: dict[Module, float] = {}
    for size in range(1, max(map(len, sums), default=0) + 1):
        for modules, seconds in sums.items():
            unknown = modules - set(known)
            if len(modules) == size and len(unknown) == 1:
                known[next(iter(unknown))] = max(0.0, seconds - sum(known[module] for module in modules - unknown))
    return {module: seconds for module, seconds in known.items() if seconds >= COMPILED_BEFORE_S}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
