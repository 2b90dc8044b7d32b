"""Notes on a pair beside its numbers: why it has no verdict, throttled clocks, other GPUs, other kernels.

Each rule says to which pairs it applies and what it says of one. Of the rules in `WHY_NOT_COMPARABLE` the first that applies speaks
alone; of those in `CAVEATS`, each that applies adds its words.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.analysis.compare.pairs import CEILINGS, TIMING_SETTINGS, ceiling_difference, is_ok, is_rough, is_timed_alike
from orchestrator.analysis.names import shown

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Flags = np.ndarray[Any, np.dtype[np.bool_]]

MIN_CLOCK_DIFFERENCE = 0.01  # smaller differences of the SM clocks are not noted
MIN_CEILING_DIFFERENCE = 0.01  # nor are smaller ones of the ceilings

# The columns that notes quote. As dictionaries, all 250 columns of 50,000 pairs would take a gigabyte.
_OF_ROW = ("status", "reason", *TIMING_SETTINGS, "throttle_reasons", "mhz", "bound", "resolved_backend", "measured_as")
QUOTED_COLUMNS = [f"{name}_{side}" for name in (*_OF_ROW, *(name for name, _ in CEILINGS.values())) for side in "ab"]

PairRecord = Mapping[Hashable, Any]  # these columns of one pair


class Note(NamedTuple):
    """`applies` gives a flag for each pair of a judged frame; `words` is the note on one pair to which the rule applies."""

    applies: Callable[[pd.DataFrame], Flags]
    words: Callable[[PairRecord], str]


def notes(judged: pd.DataFrame) -> list[str]:
    """A note on each pair of a frame that `verdicts.judge` has filled in; "" if no rule applies."""
    import numpy as np

    reasons, caveats = (np.column_stack([rule.applies(judged) for rule in rules]) for rules in (WHY_NOT_COMPARABLE, CAVEATS))
    noted = np.flatnonzero(reasons.any(axis=1) | caveats.any(axis=1))
    found = [""] * len(judged)
    for i, one in zip(noted, judged.iloc[noted][QUOTED_COLUMNS].to_dict("records"), strict=True):
        if reasons[i].any():
            found[i] = WHY_NOT_COMPARABLE[reasons[i].argmax()].words(one)
        else:
            found[i] = "; ".join(rule.words(one) for rule, applies in zip(CAVEATS, caveats[i], strict=True) if applies)
    return found


def _not_ok_any_more(one: PairRecord) -> str:
    status = one["status_b"]
    return f"{status}: {one['reason_b']}" if isinstance(status, str) else "no row in the candidate"


def _was_not_ok(one: PairRecord) -> str:
    status = one["status_a"]
    return f"was {status}: {one['reason_a']}" if isinstance(status, str) else "no row in the baseline"


def _unlike_settings(one: PairRecord) -> str:
    unlike = [f"{name} {a} and {b}" for name in TIMING_SETTINGS if str(a := one[f"{name}_a"]) != str(b := one[f"{name}_b"])]
    return f"measured differently: {', '.join(unlike)}"


def _other_clock(judged: pd.DataFrame) -> Flags:
    differ: Flags = ((judged["mhz_b"] / judged["mhz_a"] - 1).abs() > MIN_CLOCK_DIFFERENCE).to_numpy(dtype=bool)
    return differ


def _has_two_modes(judged: pd.DataFrame, side: str) -> Flags:
    """Whose median may be that of either mode, so that the change may be that from one to the other."""
    flags: Flags = judged[f"bimodal_{side}"].eq(True).to_numpy(dtype=bool)
    return flags


def _unlike_ceilings(one: PairRecord) -> str:
    unlike = (
        f"{one[f'{name}_a']:.4g} and {one[f'{name}_b']:.4g} {unit}"
        for bound, (name, unit) in CEILINGS.items()
        if bound in (one["bound_a"], one["bound_b"])
    )
    return f"ceilings of two GPUs: {', '.join(unlike)}"


def _other_kernel(judged: pd.DataFrame) -> Flags:
    a, b = judged["resolved_backend_a"], judged["resolved_backend_b"]
    differ: Flags = (a.notna() & b.notna() & (a != b)).to_numpy(dtype=bool)
    return differ


def _samples_of_another(one: PairRecord) -> str:
    source = next(name for name in (one["measured_as_a"], one["measured_as_b"]) if isinstance(name, str))
    return f"samples of {shown(source)}, whose call is the same"


WHY_NOT_COMPARABLE = (
    Note(lambda judged: is_ok(judged, "a") & ~is_ok(judged, "b"), _not_ok_any_more),
    Note(lambda judged: is_ok(judged, "b") & ~is_ok(judged, "a"), _was_not_ok),
    Note(lambda judged: ~is_timed_alike(judged), _unlike_settings),
    Note(lambda judged: (judged["log_se_a"].isna() | judged["log_se_b"].isna()).to_numpy(), lambda one: "no samples stored"),
)
CAVEATS = (
    Note(lambda judged: judged["throttled_a"].to_numpy(), lambda one: f"throttled in the baseline ({one['throttle_reasons_a']})"),
    Note(lambda judged: judged["throttled_b"].to_numpy(), lambda one: f"throttled in the candidate ({one['throttle_reasons_b']})"),
    Note(_other_clock, lambda one: f"clock {one['mhz_a']:.0f} and {one['mhz_b']:.0f} MHz"),
    Note(lambda judged: _has_two_modes(judged, "a"), lambda one: "two modes in the baseline's samples"),
    Note(lambda judged: _has_two_modes(judged, "b"), lambda one: "two modes in the candidate's samples"),
    Note(lambda judged: ceiling_difference(judged) > MIN_CEILING_DIFFERENCE, _unlike_ceilings),
    Note(lambda judged: is_rough(judged, "a"), lambda one: "rough in the baseline (timing.precision=decide)"),
    Note(lambda judged: is_rough(judged, "b"), lambda one: "rough in the candidate (timing.precision=decide)"),
    Note(lambda judged: (judged["comparable"] & ~judged["counted"]).to_numpy(), _samples_of_another),
    Note(_other_kernel, lambda one: f"ran {shown(one['resolved_backend_b'])}, was {shown(one['resolved_backend_a'])}"),
)
