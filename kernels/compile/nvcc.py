"""The CUDA compiler of this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TOOLKIT = Path("/usr/local/cuda")


def find_nvcc() -> Path | None:
    """The CUDA compiler that a build would use, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or str(TOOLKIT)
    found = shutil.which("nvcc", path=os.pathsep.join((str(Path(home) / "bin"), os.environ.get("PATH", ""))))
    return Path(found) if found else None
