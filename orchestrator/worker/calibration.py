"""The measured ceilings of this device, cached by device, driver and torch version so that they are measured once."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from kernels.timing.ceilings import Ceilings, measure

FOLDER = "attention-orchestrator/ceilings"


def cached(uuid: str, driver: str) -> Ceilings | None:
    """What was measured before on this device with this driver; None if nothing was, or if it cannot be read."""
    try:
        return Ceilings.model_validate_json(_file(uuid, driver).read_text())
    except (OSError, ValidationError):
        return None


def calibrate(uuid: str, driver: str, keep: bool = True) -> Ceilings:
    """Measures the current CUDA device. With `keep`, the result is cached if the cache folder can be written."""
    found = measure()
    if not keep:
        return found
    file = _file(uuid, driver)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(found.model_dump_json(indent=1))
        fresh.replace(file)
    except OSError:
        return found
    return found


def _file(uuid: str, driver: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / FOLDER / f"{uuid}-{driver}-torch{version('torch')}.json"
