"""Finds what contradicts the mode of a command: a key that is needed and missing, or given and not taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from orchestrator.config import exports
from orchestrator.config.modes import MODES

Given = Any  # the Settings, whose module imports this one
PARQUET = ".parquet"  # of a result file that names its GPU itself


def contradiction(given: Given) -> str | None:
    """What contradicts the mode first, with what to type; None if nothing does. Raises ValueError for a wrong `export`."""
    if given.mode == "export" and given.export is not None:
        exports.parse(given.export)
    return next(itertools.chain(_lacking(given), _not_taken(given)), None)


def _lacking(given: Given) -> Iterator[str]:
    """What the mode needs."""
    names_its_gpu = str(given.source).endswith(PARQUET)
    if given.mode == "import" and (given.source is None or (given.device is None and not names_its_gpu)):
        yield "import: mode=import takes a result file and its GPU; type import=results.csv device=h200"
    if given.mode == "export" and given.export is None:
        yield f"export: mode=export needs one; type export={exports.CSV}, export=vllm, or export=PATH.csv"
    if given.mode == "site" and given.export is None:
        yield "export: mode=site writes a folder; type export=DIR with a new one, or with one that mode=site has made"
    if given.mode == "replay" and given.point is None:
        yield "point: mode=replay needs one; type mode=replay point=ID with a point_id of the dataset"
    if given.mode == "check_power" and not given.check.enabled:
        yield "check.enabled=false: mode=check_power tests the check; leave it enabled"
    if given.mode == "bisect" and (given.good is None or given.bad is None):
        yield "good: mode=bisect needs two releases; type good=flashinfer:0.5.3 bad=flashinfer:0.6.3 with your own"


def _not_taken(given: Given) -> Iterator[str]:
    """What the mode does not take."""
    rules = MODES[given.mode]
    if given.traffic is not None and given.mode == "report" and given.question not in ("best", "one_backend"):
        yield f"traffic={given.traffic!r}: mode=report weights two answers by it; type question=one_backend or question=best"
    if given.columns and given.mode == "report" and given.question is None:
        yield "columns: they are those of one answer; type a question too, such as question=best"
    if "," in given.results.path and not rules.reads_dataset:
        yield f"results.path={given.results.path!r}: mode={given.mode} takes one dataset; several are for mode=report and dashboard"
    if given.where and not (rules.reads_dataset or rules.takes_where):
        able = ", ".join(mode for mode, one in MODES.items() if one.reads_dataset or one.takes_where)
        yield f"where: mode={given.mode} chooses neither points nor rows by their values; leave where out; these modes do: {able}"
    if given.backend and given.mode != "conformance":
        yield f"backend: mode={given.mode} takes the backends of its sweep; type sweep.backend=[...]"
    if given.device is not None and not rules.takes_device:
        yield (
            f"device={given.device.name!r}: mode={given.mode} uses the devices it finds; "
            f"leave device out, or type mode=plan or mode=compile"
        )
