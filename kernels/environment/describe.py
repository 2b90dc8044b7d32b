"""What a Python environment has, from the metadata of its packages: nothing of them is imported. A script of its own:

    PYTHON -I describe.py    prints it as JSON; `problem` says why `kernels` cannot run there

Imports nothing but the standard library, so that it runs under every Python.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

OLDEST = (3, 10)  # Python that `kernels` runs under
NEEDED = ("torch", "pydantic")  # what it imports, beside the kernel libraries


def packages() -> dict[str, str]:
    """The version of each package by canonical name. Of two with one name the first on the path counts, as in an import."""
    found: dict[str, str] = {}
    for one in distributions():
        found.setdefault(re.sub("[-_.]+", "-", one.metadata["Name"] or "").lower(), one.version)
    return found


def problem() -> str:
    """Why `kernels` cannot run in this Python, and what to do; empty if it can."""
    if sys.version_info < OLDEST:
        return f"its Python is {sys.version_info[0]}.{sys.version_info[1]}; allowed: {OLDEST[0]}.{OLDEST[1]} or later"
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"it has no {' and no '.join(missing)}; type: {sys.executable} -m pip install {' '.join(missing)}" if missing else ""


def cuda() -> str | None:
    """The CUDA version of its torch; None for a torch without."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "version.py"
        found = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)['\"]", file.read_text(), re.MULTILINE) if file.is_file() else None
        return found.group(1) if found else None
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"packages": packages(), "cuda": cuda(), "problem": problem()}))
