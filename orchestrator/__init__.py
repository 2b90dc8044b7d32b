"""From a sweep to rows to decisions. Knows Hydra, Ray and Parquet; knows kernels only through their contract."""

from pathlib import Path

# The folder of conf, kernels and orchestrator: a checkout, or the package that the wheel puts them in (setup.py).
ROOT = Path(__file__).resolve().parent.parent
PACKAGED = __name__ != "orchestrator"  # is this the wheel's copy, whose modules are attention_orchestrator.orchestrator and so on?
IMPORTED_FROM = ROOT.parent if PACKAGED else ROOT  # what Python has on its path
PROGRAM = ROOT.name if PACKAGED else __name__  # python -m PROGRAM
