"""Where the seconds of a command go, from what was typed to its first row and to its end.

python benchmarks/start.py [RUNS] [CLUSTERS] [CHECKOUT ...] [-- WORDS]
python benchmarks/start.py 3 inline,local ~/before . -- 'sweep.backend=[fa2]'

Checkouts take turns, so that two states of the code meet the same machine; the first run of each, which compiles, does not count.
Seconds are those of the lines of `-v`, and of imports (`-X importtime`; Ray's workers print none). WORDS follow those of one point.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_most
from orchestrator.storage import parquet

TARGETS = {"inline": 5.0, "local": 8.0}  # seconds until the first row is stored, on one GPU
POINT = ["+sweep=smoke", "timing=quick", "sweep.batch_size=[1]", "sweep.s_kv=[256]", "sweep.s_qo=[1]", "sweep.backend=[torch_sdpa]"]
IMPORTS = ("orchestrator.cli", "orchestrator.run", "hydra", "ray", "pyarrow", "pandas", "duckdb", "torch", "flashinfer", "triton")
IMPORTED = re.compile(r"import time: +\d+ \| +(\d+) \| +(" + "|".join(map(re.escape, IMPORTS)) + ")$")
SAID, STORED = re.compile(r"[\d:]{8} (.*)"), "1 rows stored, 1 in all"


def started(checkout: str, cluster: str, words: list[str]) -> dict[str, float]:
    """By what it is, the seconds at which each step of one command ended, and the seconds that its imports and its row took."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        of_python = [sys.executable, "-X", "importtime", "-m", "orchestrator", "-v"]
        command = [*of_python, *POINT, f"cluster={cluster}", *words, f"results.path={folder}/d"]
        env, began = {**os.environ, "PYTHONPATH": checkout}, time.monotonic()
        with Popen(command, cwd=checkout, env=env, text=True, stdout=DEVNULL, stderr=PIPE) as driver:
            for line in driver.stderr or ():
                found.setdefault("at: Python has started", time.monotonic() - began)
                if said := SAID.match(line):
                    found.setdefault(f"at: {said[1]}", time.monotonic() - began)
                if imported := IMPORTED.match(line):
                    found[f"at: {imported[2]} is imported"] = time.monotonic() - began
                    found[f"took: import of {imported[2]}"] = int(imported[1]) / 1e6
        found["at: the command has ended"] = time.monotonic() - began
        if driver.returncode:
            sys.exit(f"{checkout}: {' '.join(command)} ended with {driver.returncode}")
        (row,) = parquet.read(f"{folder}/d").to_pylist()
    return found | {f"took: {name} of the row": row[name] or 0.0 for name in ("inputs_s", "check_s", "measure_s", "total_s")}


def main(runs: int, clusters: list[str], checkouts: list[str], words: list[str]) -> None:
    for cluster in clusters:
        seen: dict[str, list[dict[str, float]]] = defaultdict(list)
        for _ in range(runs + 1):
            for checkout in checkouts:
                seen[checkout].append(started(checkout, cluster, words))
        for checkout, (_, *counted) in seen.items():
            print(f"\ncluster={cluster}, {checkout}: seconds, median of {len(counted)}")
            for label in counted[0]:
                print(f"  {statistics.median(one[label] for one in counted if label in one):7.2f}  {label}")
            at_most("  first row stored", [one[f"at: {STORED}"] for one in counted], TARGETS.get(cluster, 8.0), "s")


if __name__ == "__main__":
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    count, names, *folders = [*sys.argv[1:end], *["3", "inline,local"][end - 1 :]]
    main(int(count), names.split(","), [str(Path(one).resolve()) for one in folders or [ROOT]], sys.argv[end + 1 :])
