"""The row and its dictionary: every column with its type, unit and meaning. All else that knows columns is made from it.

`Row` is what mypy checks. `COLUMNS` holds the same columns at run time, in the order of the dataset. The Parquet schema, the SQL
types, `docs/columns.md` and the dashboard's tooltips come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from kernels.problem import Problem
from kernels.timing.config import RENAMED_L2

ColumnType = Literal["string", "int64", "double", "bool", "list<double>", "list<int32>", "timestamp"]
Status = Literal["ok", "unsupported", "skipped", "mismatch", "failed", "timeout", "oom"]


@dataclass(frozen=True)
class FromColumn:
    """What a column that came later holds in an older row: the value of `column`, or another one that `values` gives for it.

    `prefix` stands before a value that `values` does not have.
    """

    column: str
    values: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""


@dataclass(frozen=True)
class About:
    """What a column means. `default` is what it holds in rows that are older than the column."""

    meaning: str
    unit: str = ""
    only_if_ok: bool = False  # a result: null unless the status is `ok`, since the time of a wrong answer means nothing
    default: object = None
    renamed: Mapping[str, str] = field(default_factory=dict)  # values of older rows, by which they are called today
    timestamp: bool = False  # text in ISO 8601 until it reaches Parquet


@dataclass(frozen=True)
class Column:
    """A column of the dataset. `nullable`: a row may have no value in it."""

    name: str
    type: ColumnType
    unit: str
    meaning: str
    section: str
    nullable: bool
    only_if_ok: bool = False
    default: object = None
    renamed: Mapping[str, str] = field(default_factory=dict)


class Identity(TypedDict, total=False):
    """Which point this is, and what became of it."""

    run_id: Annotated[str, About("The run that wrote the row: when it began, in UTC, and four random hex digits.")]
    sweep: Annotated[str, About("Name of the sweep.")]
    point_id: Annotated[str, About("Hash of the problem, the backend, the timing and the check. The same on every machine.")]
    group_id: Annotated[str, About("Hash of the problem, the timing and the check. Points of a group share inputs and reference.")]
    twin: Annotated[int, About("1 for the second measurement of a point in an A/A pair (mode=noise), else 0.", "index")]
    attempt: Annotated[int | None, About("Which attempt gave this row: from 1, or 0 if the point was never started.", "count")]
    status: Annotated[Status, About("ok, unsupported, skipped, mismatch (wrong answer), failed, timeout or oom.")]
    reason: Annotated[str, About("Why the status is not ok. For an ok row: what limits trust in its time, else empty.")]
    command: Annotated[str | None, About("The command that runs this point again.")]


class ProblemColumns(TypedDict, total=False):
    """The problem, and the backend that was to solve it. Lengths are tokens, query tokens included in `s_kv`."""

    routine: Annotated[str, About("paged_decode, paged_prefill, ragged_prefill, mla, cascade or merge_states.")]
    backend: Annotated[str, About("The backend that was asked for.")]
    resolved_backend: Annotated[str | None, About("The kernel that ran, as far as the library tells. Null if it was not prepared.")]
    kernel_config: Annotated[
        str | None,
        About("What the library chose beside the kernel, such as num_splits, as far as it says, and what the kernel did not read."),
    ]
    model: Annotated[str, About("Name of the model whose head shape this is, or custom.")]
    tp: Annotated[int, About("Tensor-parallel size. The head counts are those of one GPU.", "GPUs")]
    batch_size: Annotated[int, About("Requests in the batch.", "requests")]
    s_qo: Annotated[
        int, About("Query tokens of each request, for a draft its tokens plus one. The maximum if they differ.", "tokens")
    ]
    min_s_qo: Annotated[int | None, About("If query lengths are drawn, their minimum. Null if all are s_qo.", "tokens")]
    s_kv: Annotated[int, About("KV tokens of each request, its query tokens included. The maximum if they differ.", "tokens")]
    seq_lens: Annotated[str, About("fixed: all s_kv. random: drawn from [s_qo, s_kv]. listed: as in batch_spec.")]
    batch_spec: Annotated[str | None, About("Lengths of a mixed batch in vLLM's grammar, such as 2q2k_8q1s1k, else null.")]
    max_seq_len: Annotated[
        int | None,
        About("KV tokens that the page table has room for, as engines pass it. Null: the batch's own longest.", "tokens"),
    ]
    mask: Annotated[str, About("causal, full, or the name of the draft tree in tree.")]
    tree: Annotated[list[int] | None, About("Parent of each query token in the draft tree, -1 for the root.", "index")]
    window: Annotated[int | None, About("Sliding window: keys that a query sees, its own included. Null: all.", "tokens")]
    sinks: Annotated[bool, About("Whether each head has an attention sink, a learned logit that joins its softmax.")]
    page_size: Annotated[int, About("Tokens in a page of the KV cache.", "tokens")]
    kv_layout: Annotated[str, About("Order of the axes in a page: HND (heads, tokens, elements) or NHD.")]
    page_order: Annotated[str, About("Order of a request's pages in memory: random or sequential.")]
    num_qo_heads: Annotated[int, About("Query heads on one GPU.", "heads")]
    num_kv_heads: Annotated[int, About("Key and value heads on one GPU. In MLA the model's own, before absorption.", "heads")]
    head_dim_qk: Annotated[int, About("Length of a query and a key of one head. In MLA the model's own.", "elements")]
    head_dim_vo: Annotated[int, About("Length of a value and an output of one head. In MLA the model's own.", "elements")]
    head_dim_ckv: Annotated[int | None, About("MLA: length of the compressed latent.", "elements")]
    head_dim_kpe: Annotated[int | None, About("MLA: length of the part of a key that carries the position.", "elements")]
    q_dtype: Annotated[str, About("Dtype of the queries.")]
    kv_dtype: Annotated[str, About("Dtype of the KV cache.")]
    out_dtype: Annotated[str, About("Dtype of the output.")]
    enable_pdl: Annotated[
        bool | None, About("Whether the call asked for programmatic dependent launch. Null: left to the library.")
    ]
    seed: Annotated[int, About("Seed of the inputs and of lengths that are drawn.", "number")]
    shared_prefix: Annotated[
        int | None, About("cascade: tokens at the start of every request that lie in pages which all of them share.", "tokens")
    ]
    return_lse: Annotated[bool, About("Whether the log-sum-exp of each row is a second output.")]
    graph_batch: Annotated[
        int | None,
        About(
            "Requests that the call has, as a captured graph is padded to. Null: batch_size. Rates count batch_size.", "requests"
        ),
    ]
    graph_fill: Annotated[
        int,
        About("What the call says of padded requests: 0, no token, as vLLM; 1, one of context, as SGLang.", "tokens", default=0),
    ]
    num_states: Annotated[
        int | None, About("merge_states: partial answers of each query token, over so many ranges of its request's keys.", "states")
    ]


class TimeColumns(TypedDict, total=False):
    """How long one call takes, and how that was measured. Throttled samples do not count, unless nearly all are throttled."""

    median_us: Annotated[float | None, About("Median of the samples: the time of the point.", "µs", only_if_ok=True)]
    mean_us: Annotated[float | None, About("Mean of the samples.", "µs", only_if_ok=True)]
    std_us: Annotated[float | None, About("Standard deviation of the samples (n - 1), 0 for one sample.", "µs", only_if_ok=True)]
    min_us: Annotated[float | None, About("Shortest sample.", "µs", only_if_ok=True)]
    p05_us: Annotated[float | None, About("5th percentile of the samples.", "µs", only_if_ok=True)]
    p95_us: Annotated[float | None, About("95th percentile of the samples.", "µs", only_if_ok=True)]
    ci95_rel: Annotated[
        float | None,
        About("95% confidence interval of the median: distance of its farther end, over the median.", "ratio", only_if_ok=True),
    ]
    num_samples: Annotated[int | None, About("Samples that the statistics are made from.", "samples", only_if_ok=True)]
    within_block_rel: Annotated[
        float | None, About("Interquartile range over the median within a block: the median block's.", "ratio", only_if_ok=True)
    ]
    between_blocks_rel: Annotated[
        float | None, About("Highest minus lowest median of a block, over the median of all.", "ratio", only_if_ok=True)
    ]
    lag1_autocorr: Annotated[
        float | None, About("Correlation of each sample with the next; 0 if they are independent.", "ratio", only_if_ok=True)
    ]
    bimodal: Annotated[bool | None, About("Whether the samples fall into two separate modes.", only_if_ok=True)]
    samples_us: Annotated[list[float] | None, About("The samples, in the order they were taken.", "µs", only_if_ok=True)]
    samples_mhz: Annotated[
        list[int | None] | None, About("Mean SM clock during each of samples_us, null if unknown.", "MHz", only_if_ok=True)
    ]
    block_sizes: Annotated[list[int] | None, About("Samples in each block, in time order.", "samples", only_if_ok=True)]
    num_set_aside: Annotated[int | None, About("How many samples were throttled.", "samples", only_if_ok=True)]
    set_aside_us: Annotated[list[float] | None, About("The throttled samples.", "µs", only_if_ok=True)]
    timer: Annotated[
        str | None, About("cuda_graph_events, cuda_events, cupti_graph_kernels, or perf_counter on a CPU. Null: not prepared.")
    ]
    cuda_graph: Annotated[bool | None, About("Whether a sample is the replay of a captured CUDA graph.")]
    l2: Annotated[
        str | None,
        About(
            "L2 cache before each sample: full of clean lines that were read, of dirty lines that were written, warm, or "
            "uncontrolled on a CPU.",
            renamed=RENAMED_L2,
        ),
    ]
    icache: Annotated[
        str | None,
        About(
            "Instruction caches before each sample: warm, cold (other code ran), or uncontrolled on a CPU.",
            default=FromColumn("l2", {"cold": "warm", "dirty": "warm", "warm": "warm"}),  # as they were before there was a choice
        ),
    ]
    stop_reason: Annotated[
        str | None, About("Why sampling ended: the criterion (ci95, stdrel, entropy), max_samples, max_seconds or throttled.")
    ]
    working_set_over_l2: Annotated[float | None, About("bytes over the size of the device's L2 cache.", "ratio")]
    context: Annotated[
        str | None,
        About("isolated: timed alone. step: timed inside a graph of layers too, and ranked by in_step_us.", default="isolated"),
    ]
    in_step_us: Annotated[
        float | None,
        About(
            "Cost of attention in one layer of a step: median of (step - step with a copy in its place) / step_layers, in pairs.",
            "µs",
            only_if_ok=True,
        ),
    ]
    in_step_low_us: Annotated[
        float | None, About("Lower end of the 95% interval of the median in in_step_us.", "µs", only_if_ok=True)
    ]
    in_step_high_us: Annotated[float | None, About("Upper end of that interval.", "µs", only_if_ok=True)]
    step_us: Annotated[float | None, About("Median time of a whole step with this backend in every layer.", "µs", only_if_ok=True)]
    stand_in_us: Annotated[
        float | None, About("Median time of the same step with a copy of the queries in attention's place.", "µs", only_if_ok=True)
    ]
    step_layers: Annotated[int | None, About("Layers of the step, each with its own KV cache.", "layers", only_if_ok=True)]
    in_step_samples_us: Annotated[
        list[float] | None, About("The paired differences of a layer, in the order they were taken.", "µs", only_if_ok=True)
    ]
    step_stop_reason: Annotated[
        str | None, About("Why sampling of steps ended: ci95, max_samples, max_seconds or throttled.", only_if_ok=True)
    ]
    host_us: Annotated[float | None, About("Median time the CPU needs to issue one call without a graph. Null on a CPU.", "µs")]


class EnergyColumns(TypedDict, total=False):
    """Energy of the whole device while the call runs, from NVML's counter, with timing.energy=true (docs/timing.md)."""

    energy_j: Annotated[float | None, About("Energy of one call, without the flush before it.", "J", only_if_ok=True)]
    energy_token_j: Annotated[
        float | None,
        About(
            "energy_j over the query tokens of the call: of one layer, and of a draft's rejected tokens too.", "J", only_if_ok=True
        ),
    ]
    energy_rel: Annotated[float | None, About("Half-width of the 95% interval of energy_j, over it.", "ratio", only_if_ok=True)]
    energy_flush_j: Annotated[
        float | None, About("Energy of the flush before each call, which was subtracted; 0 without one.", "J", only_if_ok=True)
    ]
    energy_us: Annotated[
        float | None,
        About(
            "Time of a call in the block of back-to-back calls that energy_j is of: longer than median_us if throttled.",
            "µs",
            only_if_ok=True,
        ),
    ]
    energy_note: Annotated[str | None, About("Why energy_j is null although it was asked for, or what throttled the block.")]


class HostColumns(TypedDict, total=False):
    """What a step costs on the host, with timing.host=true (docs/host_time.md). The device is idle when a plan or a call begins."""

    plan_host_us: Annotated[
        float | None,
        About(
            "Median host time of planning a step of new lengths. 0: there is nothing to plan. Null: host_note says why.",
            "µs",
            only_if_ok=True,
        ),
    ]
    plan_host_p95_us: Annotated[float | None, About("95th percentile of these plans.", "µs", only_if_ok=True)]
    plan_host_ci95_rel: Annotated[
        float | None,
        About("95% confidence interval of plan_host_us: distance of its farther end, over it.", "ratio", only_if_ok=True),
    ]
    plan_syncs: Annotated[int | None, About("Calls of one plan in which the host waits for the device.", "count", only_if_ok=True)]
    plan_d2h_copies: Annotated[int | None, About("Copies of one plan from the device to the host.", "count", only_if_ok=True)]
    plan_h2d_copies: Annotated[int | None, About("Copies of one plan from the host to the device.", "count", only_if_ok=True)]
    plan_kernels: Annotated[
        int | None,
        About("Kernels that one plan launches, memory sets and copies within the device included.", "count", only_if_ok=True),
    ]
    plan_device_us: Annotated[
        float | None, About("Time that the device takes for these kernels and copies, without gaps.", "µs", only_if_ok=True)
    ]
    call_host_us: Annotated[
        float | None,
        About("Median host time of issuing one call without a graph, one after another, without waiting.", "µs", only_if_ok=True),
    ]
    call_host_p95_us: Annotated[float | None, About("95th percentile of these calls.", "µs", only_if_ok=True)]
    call_syncs: Annotated[int | None, About("As plan_syncs, of one call.", "count", only_if_ok=True)]
    call_copies: Annotated[
        int | None, About("Copies of one call between host and device, in either direction.", "count", only_if_ok=True)
    ]
    call_kernels: Annotated[int | None, About("As plan_kernels, of one call.", "count", only_if_ok=True)]
    host_note: Annotated[str | None, About("Why one of these columns is null although it was asked for.")]


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
        About("Fewest bytes to move: queries and visible KV, or the states of a merge, read once, outputs written once.", "bytes"),
    ]
    tflops: Annotated[float | None, About("flops over the median time.", "TFLOP/s", only_if_ok=True)]
    tb_per_sec: Annotated[float | None, About("bytes over the median time.", "TB/s", only_if_ok=True)]
    bound: Annotated[str | None, About("The ceiling that takes the longest to reach: memory, compute or launch.", only_if_ok=True)]
    frac_of_peak: Annotated[
        float | None, About("Least time at the measured ceiling that binds, over the median time.", "ratio", only_if_ok=True)
    ]
    frac_of_datasheet: Annotated[
        float | None, About("Least time at the rates of the vendor's datasheet, over the median time.", "ratio", only_if_ok=True)
    ]
    kv_read_amplification: Annotated[
        float | None,
        About(
            "Upper bound on how often the KV cache was read: median time × read ceiling over its bytes. Null unless memory binds. "
            "merge_states: how often the states were.",
            "ratio",
            only_if_ok=True,
        ),
    ]
    peak_tb_per_sec: Annotated[float | None, About("Memory read rate of this device at its best, measured on it.", "TB/s")]
    peak_tflops: Annotated[
        float | None, About("Matrix rate of this device at its best for the dtype the kernel multiplies in, measured.", "TFLOP/s")
    ]
    launch_us: Annotated[float | None, About("Time of a CUDA graph of one kernel that does next to nothing, measured.", "µs")]


class CheckColumns(TypedDict, total=False):
    """Whether the answer is right. An error is relative to its row: ‖out − ref‖ / ‖ref‖ of one query token of one head."""

    check: Annotated[str, About("passed, failed, or not_checked with the reason.")]
    max_abs_err: Annotated[float | None, About("Largest absolute difference between output and reference.", "output values")]
    rel_err: Annotated[float | None, About("Relative error of the worst row. Infinite for NaN or a wrong shape.", "ratio")]
    tolerance: Annotated[float | None, About("Largest rel_err that rounding may cause, derived for the kernel's dtypes.", "ratio")]
    err_over_tolerance: Annotated[float | None, About("rel_err over tolerance: the check fails above 1.", "ratio")]
    weight_over_limit: Annotated[
        float | None,
        About(
            "How far a key's weight is from the right one, in what rounding and chance may cause: the check fails above 1.", "ratio"
        ),
    ]
    check_min_tokens: Annotated[
        int | None,
        About(
            "Any so many neighbouring keys, lost or doubled for one KV head of one request, would have failed the check with "
            "probability 0.99. Null: no block of keys would.",
            "tokens",
        ),
    ]
    check_pairs_covered: Annotated[
        float | None,
        About(
            "Share of the mask's (query, draft key) pairs that, wrong alone, would have failed the check with probability 0.99.",
            "ratio",
        ),
    ]
    inputs_checked: Annotated[
        int | None,
        About("Inputs that were checked together: more than 1 if one alone could not show a lost page of 64 tokens.", "inputs"),
    ]
    lse_err: Annotated[
        float | None,
        About("Absolute error of the natural log-sum-exp, of the row nearest to its limit. Null if none was asked for.", "nats"),
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


class CostColumns(TypedDict, total=False):
    """What the row took to make: seconds of wall time, and memory."""

    compile_s: Annotated[float | None, About("Compiling the point's kernel modules in this run. Null if none were.", "s")]
    inputs_s: Annotated[float | None, About("Drawing the inputs. Paid by the first point of the shared-input group.", "s")]
    check_s: Annotated[float | None, About("Checks, and the reference if this point is the group's first.", "s")]
    measure_s: Annotated[float | None, About("Planning, warm-up, graph capture and the samples, without rests.", "s")]
    rest_s: Annotated[float | None, About("Waiting between blocks, so that the device is not throttled.", "s")]
    total_s: Annotated[float | None, About("All of the point's time on its worker, rests included, compilation not.", "s")]
    peak_mem_bytes: Annotated[
        int | None,
        About("Most device memory while the point was prepared and checked, without other backends of the group.", "bytes"),
    ]


class ProvenanceColumns(TypedDict, total=False):
    """Where and when the row was made, and the state of the device meanwhile."""

    cluster: Annotated[str, About("Name of the cluster, its address for cluster=ray, or the file an imported row came from.")]
    device_name: Annotated[str, About("The kind of device, or all kinds (joined by |) that a point not started could have used.")]
    device_uuid: Annotated[str | None, About("The driver's identity of this very GPU.")]
    compute_capability: Annotated[str | None, About("CUDA compute capability, such as 9.0. Null on a CPU.")]
    device_modes: Annotated[str | None, About("ECC, MIG and persistence mode, such as ecc=on mig=off persistence=on.")]
    driver: Annotated[str | None, About("Version of the NVIDIA driver.")]
    cuda: Annotated[str | None, About("CUDA version of the installed torch.")]
    torch_version: Annotated[str | None, About("Version of torch.")]
    libraries: Annotated[
        str | None,
        About(
            "The backend's kernel packages with versions, such as flashinfer-python 0.7.2. In older rows FlashInfer's.",
            default=FromColumn("flashinfer_version", prefix="flashinfer-python "),
        ),
    ]
    flashinfer_version: Annotated[str | None, About("Version of flashinfer-python, also if the backend is not from it.")]
    ray_version: Annotated[str | None, About("Version of Ray.")]
    orchestrator_version: Annotated[str, About("Release and git commit of this project, and a hash of the code if it was edited.")]
    host: Annotated[str | None, About("Name of the machine. Null if no worker ran the point.")]
    node_id: Annotated[str | None, About("Ray's id of the machine.")]
    sm_clock_mhz: Annotated[int | None, About("Median SM clock during the samples.", "MHz")]
    mem_clock_mhz: Annotated[int | None, About("Median memory clock during the samples.", "MHz")]
    temperature_c: Annotated[int | None, About("Highest temperature of the GPU during the samples.", "°C")]
    power_w: Annotated[float | None, About("Highest power draw of the GPU during the samples.", "W")]
    throttle_reasons: Annotated[str | None, About("What throttled the clock during any sample, by NVML's names, or none.")]
    other_processes: Annotated[str | None, About("Other processes that used the GPU around the samples. Null if none did.")]
    started_at: Annotated[str, About("When the point was started.", "UTC", timestamp=True)]
    finished_at: Annotated[str, About("When the row was finished.", "UTC", timestamp=True)]


class Row(
    Identity,
    ProblemColumns,
    TimeColumns,
    EnergyColumns,
    HostColumns,
    RateColumns,
    CheckColumns,
    CostColumns,
    ProvenanceColumns,
    total=False,
):
    """A row, or as much of one as is known so far. `row.finish` makes it whole: then every column is there."""


SECTIONS: dict[str, Any] = {
    "identity": Identity,
    "problem": ProblemColumns,
    "time": TimeColumns,
    "energy": EnergyColumns,
    "host": HostColumns,
    "rate": RateColumns,
    "check": CheckColumns,
    "cost": CostColumns,
    "provenance": ProvenanceColumns,
}
TYPES: dict[object, ColumnType] = {
    str: "string",
    Status: "string",
    int: "int64",
    float: "double",
    bool: "bool",
    list[float]: "list<double>",
    list[int]: "list<int32>",
    list[int | None]: "list<int32>",
}


def _column(name: str, annotated: Any, section: str) -> Column:
    value, about = get_args(annotated)
    choices = get_args(value) if NoneType in get_args(value) else (value,)
    (kind,) = (choice for choice in choices if choice is not NoneType)
    default = about.default
    if name in Problem.model_fields and not Problem.model_fields[name].is_required():
        default = Problem.model_fields[name].default  # an older problem was what the default says
    return Column(
        name,
        "timestamp" if about.timestamp else TYPES[kind],
        about.unit,
        about.meaning,
        section,
        nullable=len(choices) > 1,
        only_if_ok=about.only_if_ok,
        default=default,
        renamed=about.renamed,
    )


COLUMNS: dict[str, Column] = {
    name: _column(name, annotated, section)
    for section, part in SECTIONS.items()
    for name, annotated in get_type_hints(part, include_extras=True).items()
}

RESULT_COLUMNS = tuple(column.name for column in COLUMNS.values() if column.only_if_ok)
