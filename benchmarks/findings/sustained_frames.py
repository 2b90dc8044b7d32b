"""What `benchmarks/sustained.py` measured on two H200s, as frames. The first card has no XQA and no FP8, the second no cuDNN."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import pandas as pd

from benchmarks.findings.frames import RESULTS
from benchmarks.sustained import BACK_TO_BACK, COPY, IN_BURSTS, STEP

PATHS = ("benchmarks/data/h200_sustained.parquet", "benchmarks/data/h200_sustained_xqa.parquet")
FIRST, SECOND = 1, 2  # the cards, in the order of their files
FP8, XQA, CUDNN, FA2_TC = "fp8_e4m3", "trtllm-native", "cudnn", "fa2_tc"
SHAPE = ["batch_size", "s_kv", "s_qo"]
KEY = ["card", "kv_dtype", *SHAPE]  # what kernels are compared at; over an FP8 cache FlashAttention-3 takes FP8 queries

Frame = TypeVar("Frame", pd.DataFrame, pd.Series)


@cache
def loads() -> pd.DataFrame:
    """Every row of both files, with `card`."""
    files = [pd.read_parquet(RESULTS.parent / path).assign(card=card) for card, path in enumerate(PATHS, FIRST)]
    return pd.concat(files, ignore_index=True)


def compared() -> pd.DataFrame:
    """The rows of points that another kernel shares."""
    rows = loads()
    return rows[rows.groupby(KEY)["backend"].transform("nunique") > 1]


def uncompared() -> list[tuple[str, str]]:
    """The points that no other kernel shares, such as `32 x 32,768`, and their kernel."""
    alone = loads().drop(index=compared().index)[[*SHAPE, "backend"]].drop_duplicates()
    return [(f"{row.batch_size} x {row.s_kv:,}", row.backend) for row in alone.itertuples()]


def measured(column: str) -> pd.DataFrame:
    """A column by `KEY` and backend; its columns are load and pace."""
    return compared().pivot_table(index=[*KEY, "backend"], columns=["load", "pace"], values=column, sort=False)


def costs() -> pd.DataFrame:
    """µs a layer in a step, by pace: the step minus the one with the copy."""
    us = measured("us")
    return pd.DataFrame({pace: us[STEP, pace] - us[COPY, pace] for pace in (IN_BURSTS, BACK_TO_BACK)})


def growth(us: pd.DataFrame) -> pd.Series:
    """How much longer back to back than in bursts, as a part of the latter. The columns are paces."""
    return us[BACK_TO_BACK] / us[IN_BURSTS] - 1


def behind(us: pd.Series, backend: str) -> pd.Series:
    """By `KEY`: the time of a backend over that of the fastest other one."""
    wide = us.unstack("backend")
    return wide[backend] / wide.drop(columns=backend).min(axis=1)


def at(frame: Frame, **levels: object) -> Frame:
    """The part with these values of the index, which keeps its levels."""
    return frame.xs(tuple(levels.values()), level=list(levels), drop_level=False)
