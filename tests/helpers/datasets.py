"""The committed datasets: DATASETS are those of a sweep, MAIN is the main sweep's."""

from __future__ import annotations

from orchestrator import ROOT

RESULTS = ROOT / "results"
SWEEPS = {path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")}
DATASETS = sorted(folder.name for folder in RESULTS.glob("h200_*") if folder.name.removeprefix("h200_") in SWEEPS)
MAIN = RESULTS / "h200_specdec_long_ctx"
