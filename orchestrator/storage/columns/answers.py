"""Columns that are computed from times and answers: rates and the check."""

from __future__ import annotations

from typing import Annotated, TypedDict

from orchestrator.storage.columns.kinds import About


class RateColumns(TypedDict, total=False):
    """The work of one call, the rates that follow from the median, and the device's ceilings."""

    flops: Annotated[
        int | None,
        About(
            "Operations of Q·K and P·V: 2 · heads · (d_qk + d_vo) · pairs that the mask lets through. merge_states: 2 · states · "
            "heads · d_vo · query tokens.",
            "FLOP",
        ),
    ]
    bytes: Annotated[
        int | None,
        About("Least bytes to move: queries and visible KV (or the states of a merge) read once, outputs written once.", "bytes"),
    ]
    tflops: Annotated[float | None, About("flops divided by the median time.", "TFLOP/s", only_if_ok=True)]
    tb_per_sec: Annotated[float | None, About("bytes divided by the median time.", "TB/s", only_if_ok=True)]
    bound: Annotated[str | None, About("The ceiling that limits the time: memory, compute or launch.", only_if_ok=True)]
    frac_of_peak: Annotated[
        float | None, About("Shortest time that the measured ceilings allow, divided by the median time.", "ratio", only_if_ok=True)
    ]
    frac_of_datasheet: Annotated[
        float | None, About("Shortest time that the datasheet's rates allow, divided by the median time.", "ratio", only_if_ok=True)
    ]
    kv_read_amplification: Annotated[
        float | None,
        About(
            "Upper bound on how often the KV cache was read: median time × read ceiling / bytes of the cache. Null unless bound is "
            "memory. merge_states: the same for the states.",
            "ratio",
            only_if_ok=True,
        ),
    ]
    peak_tb_per_sec: Annotated[float | None, About("Highest memory read rate that was measured on this device.", "TB/s")]
    peak_tflops: Annotated[
        float | None, About("Highest measured matrix rate of this device, for the dtype that the kernel multiplies in.", "TFLOP/s")
    ]
    launch_us: Annotated[
        float | None,
        About(
            "Time of a CUDA graph of one kernel that does next to nothing, measured: the launch that every sample begins with. "
            "Reports take off the smallest of a device in the dataset; `median_us` minus that is their `own_us`.",
            "µs",
        ),
    ]


class CheckColumns(TypedDict, total=False):
    """Whether the answer is right. An error is relative to its row: ‖out − ref‖ / ‖ref‖ of one query token of one head."""

    check: Annotated[str, About("passed, failed, or not_checked with the reason.")]
    max_abs_err: Annotated[float | None, About("Largest absolute difference between output and reference.", "output values")]
    rel_err: Annotated[float | None, About("Relative error of the worst row. Infinite for NaN or a wrong shape.", "ratio")]
    tolerance: Annotated[float | None, About("Largest rel_err that rounding may cause, derived for the kernel's dtypes.", "ratio")]
    err_over_tolerance: Annotated[float | None, About("rel_err divided by tolerance. The check fails above 1.", "ratio")]
    weight_over_limit: Annotated[
        float | None,
        About(
            "Error of a key's weight in the answer, divided by the error that rounding and chance allow. The check fails above 1.",
            "ratio",
        ),
    ]
    check_min_tokens: Annotated[
        int | None,
        About(
            "If this many neighbouring keys were lost or counted twice, in one KV head of one request, the check would have failed "
            "with probability 0.99. Null: no number is enough.",
            "tokens",
        ),
    ]
    check_pairs_covered: Annotated[
        float | None,
        About(
            "Share of the mask's (query, draft key) pairs where one wrong pair would have failed the check (probability 0.99). "
            "Of the last 64 query tokens of each request.",
            "ratio",
        ),
    ]
    inputs_checked: Annotated[
        int | None,
        About("Inputs that were checked together: more than 1 if one alone could not show a lost page of 64 tokens.", "inputs"),
    ]
    lse_err: Annotated[
        float | None,
        About("Absolute error of the natural log-sum-exp, in the row nearest to its limit. Null if none was asked for.", "nats"),
    ]
    lse_tolerance: Annotated[float | None, About("Largest lse_err that rounding may cause in that row.", "nats")]
    lse_base: Annotated[str | None, About("Base of the log-sum-exp that the kernel wrote: e or 2. Null if none was asked for.")]
    launches_checked: Annotated[
        int | None,
        About("Launches whose output was compared with the first: one in each block of samples, and more at the end.", "launches"),
    ]
    oracle: Annotated[str | None, About("Name of the reference implementation.")]
    caller_scale: Annotated[
        float | None, About("Factor that the kernel leaves to its caller to apply to the output; 1 if none. Not timed.", "ratio")
    ]
