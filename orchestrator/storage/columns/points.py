"""Columns of a point's identity, problem and answer, and of what made the row."""

from __future__ import annotations

from typing import Annotated, TypedDict

from orchestrator.storage.columns.kinds import About, FromColumn, IfOk, Status


class Identity(TypedDict, total=False):
    """Which point this is, and its result."""

    run_id: Annotated[str, About("The run that wrote the row: its start in UTC, and four random hex digits.")]
    sweep: Annotated[str, About("Name of the sweep.")]
    point_id: Annotated[str, About("Hash of the problem, the backend, the timing and the check. The same on every machine.")]
    group_id: Annotated[str, About("Hash of the problem, the timing and the check. Points of a group share inputs and reference.")]
    twin: Annotated[int, About("1 for the second measurement of a point in an A/A pair (mode=noise), else 0.", "index")]
    attempt: Annotated[int | None, About("The attempt that gave this row: from 1, or 0 if the point was never started.", "count")]
    status: Annotated[Status, About("ok, unsupported, skipped, mismatch (wrong answer), failed, timeout or oom.")]
    reason: Annotated[str, About("Why the status is not ok. For an ok row: what limits trust in its time, else empty.")]
    command: Annotated[str | None, About("The command that runs this point again.")]


class ProblemColumns(TypedDict, total=False):
    """The problem, and the backend that was to solve it. Lengths are tokens, query tokens included in `s_kv`."""

    routine: Annotated[str, About("paged_decode, paged_prefill, ragged_prefill, mla, cascade or merge_states.")]
    backend: Annotated[str, About("The backend that was asked for.")]
    env: Annotated[str | None, About("The Python environment that the backend ran in. Null: the one that ran the command.")]
    num_splits: Annotated[
        int | None,
        About(
            "Parts of the keys that the call asked for, or at most, as in the backend's name. Null: the library's choice.",
            "parts",
        ),
    ]
    resolved_backend: Annotated[str | None, About("The kernel that ran, if the library tells. Null if it was not prepared.")]
    kernel_config: Annotated[
        str | None,
        About(
            "Other choices of the library, if it tells them, such as num_splits, or the tile and split of keys in FlashInfer's "
            "plan; and inputs that the kernel did not read."
        ),
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
    mask: Annotated[str, About("causal, full, prefix, or the name of the draft tree in tree.")]
    mask_prefix: Annotated[
        int | None, About("mask=prefix: the first query tokens of a request, which see one another both ways.", "tokens")
    ]
    tree: Annotated[list[int] | None, About("Parent of each query token in the draft tree, -1 for the root.", "index")]
    window: Annotated[int | None, About("Sliding window: keys that a query sees, its own included. Null: all.", "tokens")]
    sinks: Annotated[bool, About("Whether each head has an attention sink, a learned logit that joins its softmax.")]
    page_size: Annotated[int, About("Tokens in a page of the KV cache.", "tokens")]
    kv_layout: Annotated[str, About("Order of the axes in a page: HND (heads, tokens, elements) or NHD.")]
    page_order: Annotated[str, About("Order of a request's pages in memory: random or sequential.")]
    kv_memory: Annotated[
        str,
        About(
            "How pages of keys and values lie: paired [P, 2, ...], apart [2, P, ...], by_token [P, ..., 2, D], padded (pairs and a "
            "token's room) or degenerate (pairs, and a stride of 1 for the one KV head).",
            default="paired",
        ),
    ]
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
        int | None, About("cascade: tokens at the start of every request whose pages all requests share.", "tokens")
    ]
    return_lse: Annotated[bool, About("Whether the log-sum-exp of each row is a second output. It counts a sink.")]
    graph_batch: Annotated[
        int | None,
        About("Requests of the call with padding, as in a captured graph. Null: batch_size. Rates count batch_size.", "requests"),
    ]
    graph_fill: Annotated[
        int, About("Tokens of a padded request: 0 as in vLLM, or 1 (of context) as in SGLang.", "tokens", default=0)
    ]
    num_states: Annotated[
        int | None, About("merge_states: partial answers of each query token, one for each range of its request's keys.", "states")
    ]
    softmax_scale: Annotated[float | None, About("What multiplies q·k in the softmax. Null: 1/sqrt(head_dim_qk).", "ratio")]
    soft_cap: Annotated[
        float | None, About("Cap c of logits: c · tanh(x / c) of each scaled logit x, sinks excepted. Null: none.", "logit")
    ]
    routine_axes: Annotated[
        str | None, About("Axes that the routine has of its own, with their values, such as states=each. Null: it has none.")
    ]


class CostColumns(TypedDict, total=False):
    """What the row cost: seconds of wall time, and memory."""

    compile_s: Annotated[float | None, About("Compiling the point's kernel modules in this run. Null if none were.", "s")]
    inputs_s: Annotated[float | None, About("Drawing the inputs. Paid by the first point of the shared-input group.", "s")]
    check_s: Annotated[float | None, About("Checks, and the reference if this point is the group's first.", "s")]
    measure_s: Annotated[float | None, About("Planning, warm-up, graph capture and the samples, without rests.", "s")]
    rest_s: Annotated[float | None, About("Waiting between blocks, so that the device is not throttled.", "s")]
    total_s: Annotated[float | None, About("The point's whole time on its worker, with rests and without compilation.", "s")]
    peak_mem_bytes: Annotated[
        int | None,
        About("Most device memory while the point was prepared and checked, without other backends of the group.", "bytes"),
    ]


class ProvenanceColumns(TypedDict, total=False):
    """Where and when the row was made, and the state of the device meanwhile."""

    cluster: Annotated[str, About("Name of the cluster, its address for cluster=ray, or the file an imported row came from.")]
    device_name: Annotated[str, About("The kind of device, or all kinds (joined by |) that a point not started could have used.")]
    device_uuid: Annotated[str | None, About("The uuid of this GPU, from the driver.")]
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
    throttle_reasons: Annotated[str | None, About("Reasons for throttling during any sample, by NVML's names, or none.")]
    other_processes: Annotated[str | None, About("Other processes that used the GPU around the samples. Null if none did.")]
    started_at: Annotated[str, About("When the point was started.", "UTC", timestamp=True)]
    finished_at: Annotated[str, About("When the row was finished.", "UTC", timestamp=True)]


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
    tflops: Annotated[float | None, IfOk("flops divided by the median time.", "TFLOP/s")]
    tb_per_sec: Annotated[float | None, IfOk("bytes divided by the median time.", "TB/s")]
    bound: Annotated[str | None, IfOk("The ceiling that limits the time: memory, compute or launch.")]
    frac_of_peak: Annotated[
        float | None, IfOk("Shortest time that the measured ceilings allow, divided by the median time.", "ratio")
    ]
    frac_of_datasheet: Annotated[
        float | None, IfOk("Shortest time that the datasheet's rates allow, divided by the median time.", "ratio")
    ]
    kv_read_amplification: Annotated[
        float | None,
        IfOk(
            "Upper bound on how often the KV cache was read: median time × read ceiling / bytes of the cache. Null unless bound is "
            "memory. merge_states: the same for the states.",
            "ratio",
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
    rms_err: Annotated[
        float | None,
        About(
            "Root mean square of the relative errors of a query head's rows in a request, in the head nearest to its limit. "
            "A row of a wider tolerance counts by so much less.",
            "ratio",
        ),
    ]
    check_max_error: Annotated[
        float | None,
        About(
            "Largest rms_err that passes: no query head of a request is off by more. For one query token, the tolerance.", "ratio"
        ),
    ]
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
            "Share of the mask's pairs where one pair, wrong in all heads of all requests, would have failed the check "
            "(probability 0.99). Pairs are those of any query token with the 64 draft keys around its own, or with all of a "
            "shorter draft.",
            "ratio",
        ),
    ]
    check_stale_covered: Annotated[
        float | None,
        About(
            "Share of the requests in which an answer that was kept from before some of their tokens changed would have failed the "
            "check. Below 1, nothing shows that the others' answers were computed.",
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
    same_bits: Annotated[
        bool | None, About("Whether all launches_checked outputs were equal bit by bit. Null if the last check was not reached.")
    ]
    batch_invariant: Annotated[
        bool | None,
        About(
            "Whether the first request alone, and the first half of the batch, get the bits that they have in the whole batch. "
            "Null without check.batch_invariance=true, and where nothing can be said: of one request, shared prefixes or padding."
        ),
    ]
    oracle: Annotated[str | None, About("Name of the reference implementation.")]
    caller_scale: Annotated[
        float | None, About("Factor that the kernel leaves to its caller to apply to the output; 1 if none. Not timed.", "ratio")
    ]
