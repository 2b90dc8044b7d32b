"""How long what needs no GPU takes: `--help`, `mode=plan` of the main sweep, and a plan of a million points; of up to 2,000,000.

python benchmarks/planning.py [POINTS] [RUNS]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_most, settings_of

MAIN = ["+sweep=specdec_long_ctx", "mode=plan", "device=h200"]
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def typed(*args: str) -> float:
    """Seconds of a command."""
    started = time.perf_counter()
    done = [sys.executable, "-m", "orchestrator", *args]
    subprocess.run(done, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return time.perf_counter() - started


def plan(points: int) -> None:
    """Prints seconds of wall and CPU time and megabytes of a plan of so many points, for a process of its own."""
    from orchestrator.cli import composed
    from orchestrator.config.settings import load
    from orchestrator.machines import known_devices
    from orchestrator.planning.decide import make_plan
    from orchestrator.planning.expand import MAX_COMBINATIONS, expand

    batches = f"sweep.batch_size={list(BATCH_SIZES)}"
    of_context = len(expand(settings_of([*MAIN, batches, "sweep.s_kv=[8192]"])))
    last = 8191 + min(-(-points // of_context), MAX_COMBINATIONS // of_context)
    keys = composed([*MAIN, batches, f"sweep.s_kv={{from: 8192, to: {last}, step: 1}}"])
    wall, cpu = time.perf_counter(), time.process_time()
    settings = load(keys)
    made = make_plan(expand(settings), [known_devices()["h200"]], settings)
    assert min(points, MAX_COMBINATIONS - of_context) <= len(made.decisions) < points + of_context and made.groups and made.modules
    spent = (time.perf_counter() - wall, time.process_time() - cpu)
    print(*spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


def main(points: int = 1_000_000, runs: int = 3) -> None:
    at_most("--help", [typed("--help") for _ in range(runs)], 1, "s")
    at_most("mode=plan of specdec_long_ctx", [typed(*MAIN) for _ in range(runs)], 2, "s")
    alone = [sys.executable, __file__, "plan", str(points)]
    outputs = [subprocess.run(alone, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    wall, cpu, memory = zip(*(map(float, output.split()) for output in outputs), strict=True)
    at_most(f"expansion, filtering and planning of {points:,} points", wall, 30, "s")
    at_most("... the CPU time of it", cpu, 30, "s")
    at_most("... its memory at its peak", memory, 2000, "MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["plan"]:
        plan(int(sys.argv[2]))
    else:
        main(*map(int, sys.argv[1:]))
