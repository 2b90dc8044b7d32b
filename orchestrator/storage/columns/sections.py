"""The columns of a row by section, as mypy checks them. `columns.yaml` says what each means."""

from __future__ import annotations

from typing import Literal, TypedDict

Status = Literal["ok", "unsupported", "skipped", "mismatch", "failed", "timeout", "oom"]


class Identity(TypedDict, total=False):
    """Which point this is, and its result."""

    run_id: str
    sweep: str
    point_id: str
    group_id: str
    twin: int
    attempt: int | None
    status: Status
    reason: str
    command: str | None


class ProblemColumns(TypedDict, total=False):
    """The problem, and the backend that was to solve it. Lengths are tokens, query tokens included in `s_kv`."""

    routine: str
    backend: str
    env: str | None
    num_splits: int | None
    resolved_backend: str | None
    kernel_config: str | None
    model: str
    tp: int
    batch_size: int
    s_qo: int
    min_s_qo: int | None
    s_kv: int
    seq_lens: str
    batch_spec: str | None
    max_seq_len: int | None
    mask: str
    mask_prefix: int | None
    tree: list[int] | None
    window: int | None
    sinks: bool
    page_size: int
    kv_layout: str
    page_order: str
    kv_memory: str
    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    head_dim_ckv: int | None
    head_dim_kpe: int | None
    q_dtype: str
    kv_dtype: str
    out_dtype: str
    enable_pdl: bool | None
    seed: int
    shared_prefix: int | None
    return_lse: bool
    graph_batch: int | None
    graph_fill: int
    num_states: int | None
    softmax_scale: float | None
    soft_cap: float | None
    routine_axes: str | None


class TimeColumns(TypedDict, total=False):
    """How long one call takes, and how that was measured. Throttled samples do not count, unless nearly all are throttled."""

    median_us: float | None
    mean_us: float | None
    std_us: float | None
    min_us: float | None
    p05_us: float | None
    p95_us: float | None
    ci95_rel: float | None
    num_samples: int | None
    within_block_rel: float | None
    between_blocks_rel: float | None
    lag1_autocorr: float | None
    bimodal: bool | None
    samples_us: list[float] | None
    samples_mhz: list[int | None] | None
    block_sizes: list[int] | None
    num_set_aside: int | None
    set_aside_us: list[float] | None
    timer: str | None
    cuda_graph: bool | None
    l2: str | None
    icache: str | None
    stop_reason: str | None
    measured_as: str | None
    working_set_over_l2: float | None
    context: str | None
    pace: str | None
    in_step_us: float | None
    in_step_low_us: float | None
    in_step_high_us: float | None
    step_us: float | None
    stand_in_us: float | None
    step_layers: int | None
    in_step_samples_us: list[float] | None
    step_stop_reason: str | None
    host_us: float | None


class EnergyColumns(TypedDict, total=False):
    """Energy of the whole device while the call runs, from NVML's counter, with timing.energy=true (docs/contexts.md)."""

    energy_j: float | None
    energy_token_j: float | None
    energy_rel: float | None
    energy_flush_j: float | None
    energy_us: float | None
    energy_note: str | None


class HostColumns(TypedDict, total=False):
    """What a step costs on the host, with timing.host=true (docs/contexts.md). The device is idle when a plan or a call begins."""

    plan_host_us: float | None
    plan_host_p95_us: float | None
    plan_host_ci95_rel: float | None
    plan_syncs: int | None
    plan_d2h_copies: int | None
    plan_h2d_copies: int | None
    plan_kernels: int | None
    plan_device_us: float | None
    call_host_us: float | None
    call_host_p95_us: float | None
    call_syncs: int | None
    call_copies: int | None
    call_kernels: int | None
    host_note: str | None


class EngineColumns(TypedDict, total=False):
    """Attention inside a running engine (docs/contexts.md): times of its own steps. Its answers cannot be checked."""

    engine: str | None
    engine_version: str | None
    flag: str | None
    main_kernels: str | None
    combine_kernels: str | None
    metadata_kernels: str | None
    other_kernels: str | None
    attention_us: float | None
    attention_main_us: float | None
    attention_combine_us: float | None
    attention_metadata_us: float | None
    attention_share: float | None
    engine_kernels_us: float | None
    engine_step_us: float | None
    engine_wall_us: float | None
    engine_host_us: float | None
    engine_steps: int | None
    engine_profiled_steps: int | None
    engine_kv_tokens: float | None
    engine_graph: str | None
    engine_runner: str | None
    engine_model: str | None
    engine_start: int | None
    engine_start_s: float | None


class RateColumns(TypedDict, total=False):
    """The work of one call, the rates that follow from the median, and the device's ceilings."""

    flops: int | None
    bytes: int | None
    tflops: float | None
    tb_per_sec: float | None
    bound: str | None
    frac_of_peak: float | None
    frac_of_datasheet: float | None
    kv_read_amplification: float | None
    peak_tb_per_sec: float | None
    peak_tflops: float | None
    launch_us: float | None
    own_us: float | None


class CheckColumns(TypedDict, total=False):
    """Whether the answer is right. An error is relative to its row: ‖out − ref‖ / ‖ref‖ of one query token of one head."""

    check: str
    max_abs_err: float | None
    rel_err: float | None
    tolerance: float | None
    err_over_tolerance: float | None
    rms_err: float | None
    check_max_error: float | None
    weight_over_limit: float | None
    check_min_tokens: int | None
    check_pairs_covered: float | None
    check_stale_covered: float | None
    inputs_checked: int | None
    lse_err: float | None
    lse_tolerance: float | None
    state_err: float | None
    state_tolerance: float | None
    lse_base: str | None
    launches_checked: int | None
    same_bits: bool | None
    batch_invariant: bool | None
    oracle: str | None
    caller_scale: float | None


class CostColumns(TypedDict, total=False):
    """What the row cost: seconds of wall time, and memory."""

    compile_s: float | None
    inputs_s: float | None
    check_s: float | None
    measure_s: float | None
    rest_s: float | None
    total_s: float | None
    peak_mem_bytes: int | None


class ProvenanceColumns(TypedDict, total=False):
    """Where and when the row was made, and the state of the device meanwhile."""

    cluster: str
    device_name: str
    device_uuid: str | None
    compute_capability: str | None
    device_modes: str | None
    driver: str | None
    cuda: str | None
    torch_version: str | None
    libraries: str | None
    flashinfer_version: str | None
    ray_version: str | None
    orchestrator_version: str
    host: str | None
    node_id: str | None
    sm_clock_mhz: int | None
    mem_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: str | None
    other_processes: str | None
    started_at: str
    finished_at: str
