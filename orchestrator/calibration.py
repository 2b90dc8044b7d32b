"""This device's measured ceilings, kept for each device, driver and torch so that they are measured once."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from kernels.ceilings import Ceilings, measure

FOLDER = "attention-orchestrator/ceilings"


def cached(uuid: str, driver: str) -> Ceilings | None:
    """What was measured before on this device under this driver; None where nothing was, or it cannot be read."""
    try:
        return Ceilings.model_validate_json(_file(uuid, driver).read_text())
    except (OSError, ValidationError):
        return None


def calibrate(uuid: str, driver: str, alone: bool = True) -> Ceilings:
    """Measures the current CUDA device and keeps what was found, where the cache can be written and the device was not shared."""
    found = measure()
    if not alone:
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
