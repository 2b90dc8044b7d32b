"""How long a driver waits for its rows to be stored while a large dataset is merged.

python benchmarks/sealing.py [ROWS] [here]

The dataset has so many rows, and gets as many again, 20 at a time, beside a merge. With `here` merges are not made in a thread.
"""

from __future__ import annotations

import sys
import tempfile
import time

from figures import at_most, settings_of

from orchestrator.planning.expand import expand
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.row import describe, finish


def main(rows: int = 80_000, *, background: bool = True) -> None:
    where = {"run_id": "r", "cluster": "local", "device_name": "cpu", "samples_us": [20.0] * 100, "median_us": 20.0}
    one = {**describe(expand(settings_of(["+sweep=smoke"]))[0]), **where}
    made = [finish({**one, "point_id": f"{number:012x}"}, "ok") for number in range(2 * rows)]
    with tempfile.TemporaryDirectory() as folder:
        store = FolderStore(folder, background=background)
        store.add(made[:rows])
        store.seal()
        waits = []
        for first in range(rows, 2 * rows, 20):
            began = time.perf_counter()
            store.add(made[first : first + 20])
            waits.append(time.perf_counter() - began)
        store.close()
    waits.sort()
    at_most(f"rows to disk beside {rows:,}, the longest wait", waits[-1:], 0.5, "s")
    at_most("... and the median one", [waits[len(waits) // 2]], 0.05, "s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), background="here" not in sys.argv)
