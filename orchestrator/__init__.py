"""From a sweep to rows to decisions. Knows Hydra, Ray and Parquet; knows kernels only through their contract."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the checkout, or the folder that the packages are installed in
