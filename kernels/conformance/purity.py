"""Finds what planning with a backend imports, in a fresh interpreter: `python -m kernels.conformance.purity PLUGIN ...`.

Devices and backends come on stdin as JSON. The answer is a JSON list of [routine, backend, words], where no words are no complaint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from kernels import registry
from kernels.adapter import Adapter
from kernels.conformance.problems import neighbours, starts
from kernels.device import Device

HEAVY = frozenset({"torch", "flashinfer", "triton", "ray", "pandas", "pyarrow"})
SECONDS = 120


def impure_backends(
    plugins: Sequence[str], devices: Sequence[Device], backends: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """What is wrong with the planning side of these backends, by (routine, name); empty if nothing. Raises CalledProcessError."""
    text = json.dumps({"devices": [device.model_dump(mode="json") for device in devices], "backends": list(backends)})
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __name__, *plugins]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=SECONDS, env=env)
    return {(routine, name): words for routine, name, words in json.loads(done.stdout.splitlines()[-1])}


def _heavy() -> frozenset[str]:
    return HEAVY & sys.modules.keys()


def _complaints(
    plugins: tuple[str, ...], devices: Sequence[Device], backends: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    registry.adapters()
    after_own = _heavy()
    registry.adapters(plugins)
    after_all = _heavy()
    for routine, name in backends:
        at_import = after_all if registry.module_of(routine, name, plugins) in plugins else after_own
        words = f"importing its module imports {', '.join(sorted(at_import))}; import it in prepare" if at_import else ""
        yield routine, name, words or _complaint(registry.get(routine, name, plugins), devices)


def _complaint(adapter: Adapter, devices: Sequence[Device]) -> str:
    before = _heavy()
    try:
        for problem in [start for start in starts(adapter.routine)] + list(neighbours(starts(adapter.routine)[0])):
            for device in devices:
                if adapter.unmet(problem, device) != adapter.unmet(problem, device):
                    return "needs() gives two answers to one question"
                adapter.modules(problem, device)
            adapter.workspace_bytes(problem)
    except Exception as error:  # a plugin may raise anything; the verdict has its words
        return f"needs(), modules() or workspace_bytes() raises {type(error).__name__}: {error}"
    new = _heavy() - before
    return f"needs(), modules() or workspace_bytes() imports {', '.join(sorted(new))}" if new else ""


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    of_devices = [Device.model_validate(entry) for entry in asked["devices"]]
    of_backends = sorted({(routine, name) for routine, name in asked["backends"]})
    sys.stdout.write(f"\n{json.dumps(list(_complaints(tuple(sys.argv[1:]), of_devices, of_backends)))}\n")
