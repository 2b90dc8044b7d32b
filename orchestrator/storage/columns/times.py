"""Columns of measurements: times, energy, the host, a running engine."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kernels.timing.config import RENAMED_L2
from orchestrator.storage.columns.kinds import About, FromColumn, IfOk


class TimeColumns(TypedDict, total=False):
    """How long one call takes, and how that was measured. Throttled samples do not count, unless nearly all are throttled."""

    median_us: Annotated[float | None, IfOk("Median of the samples: the time of the point.", "µs")]
    mean_us: Annotated[float | None, IfOk("Mean of the samples.", "µs")]
    std_us: Annotated[float | None, IfOk("Standard deviation of the samples (n - 1), 0 for one sample.", "µs")]
    min_us: Annotated[float | None, IfOk("Shortest sample.", "µs")]
    p05_us: Annotated[float | None, IfOk("5th percentile of the samples.", "µs")]
    p95_us: Annotated[float | None, IfOk("95th percentile of the samples.", "µs")]
    ci95_rel: Annotated[
        float | None,
        IfOk(
            "95% confidence interval of the median: distance of its farther end, divided by the median. Of a decided row: the "
            "range of its samples, 5% wider at both ends.",
            "ratio",
        ),
    ]
    num_samples: Annotated[int | None, IfOk("Samples that the statistics are made from.", "samples")]
    within_block_rel: Annotated[
        float | None, IfOk("Interquartile range of a block divided by its median: the median of all blocks.", "ratio")
    ]
    between_blocks_rel: Annotated[
        float | None, IfOk("Highest minus lowest median of a block, divided by the median of all samples.", "ratio")
    ]
    lag1_autocorr: Annotated[float | None, IfOk("Correlation of each sample with the next; 0 if they are independent.", "ratio")]
    bimodal: Annotated[bool | None, IfOk("Whether the samples fall into two separate modes.")]
    samples_us: Annotated[list[float] | None, IfOk("The samples, in the order they were taken.", "µs")]
    samples_mhz: Annotated[list[int | None] | None, IfOk("Mean SM clock during each of samples_us, null if unknown.", "MHz")]
    block_sizes: Annotated[list[int] | None, IfOk("Samples in each block, in time order.", "samples")]
    num_set_aside: Annotated[int | None, IfOk("How many samples were throttled.", "samples")]
    set_aside_us: Annotated[list[float] | None, IfOk("The throttled samples.", "µs")]
    timer: Annotated[
        str | None, About("cuda_graph_events, cuda_events, cupti_graph_kernels, or perf_counter on a CPU. Null: not prepared.")
    ]
    cuda_graph: Annotated[bool | None, About("Whether a sample is the replay of a captured CUDA graph.")]
    l2: Annotated[
        str | None,
        About(
            "L2 cache before each sample: clean (full of lines that were read), dirty (full of lines that were written), warm, or "
            "uncontrolled on a CPU. Files of rows measured before 2026-11-23 say cold, which means dirty.",
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
        str | None,
        About(
            "Why sampling ended: the criterion (ci95, stdrel, entropy), max_samples, max_seconds or throttled; decided: certainly "
            "not the best, so the time is rough; uncontested: all others were decided, known to twice timing.limit."
        ),
    ]
    measured_as: Annotated[
        str | None,
        About("The backend whose samples these are, since its call is the same. Checked by itself. Null: measured itself."),
    ]
    working_set_over_l2: Annotated[float | None, About("bytes divided by the size of the device's L2 cache.", "ratio")]
    context: Annotated[
        str | None,
        About(
            "isolated: timed alone. step: also timed inside a graph of layers, and ranked by in_step_us. engine: timed inside a "
            "running engine; such a row has no median_us, and no ranking has it.",
            default="isolated",
        ),
    ]
    in_step_us: Annotated[
        float | None,
        IfOk(
            "Cost of attention in one layer of a step: median of (step - step with a copy in its place) / step_layers, in pairs.",
            "µs",
        ),
    ]
    in_step_low_us: Annotated[float | None, IfOk("Lower end of the 95% interval of the median in in_step_us.", "µs")]
    in_step_high_us: Annotated[float | None, IfOk("Upper end of that interval.", "µs")]
    step_us: Annotated[float | None, IfOk("Median time of a whole step with this backend in every layer.", "µs")]
    stand_in_us: Annotated[
        float | None, IfOk("Median time of the same step with a copy of the queries in attention's place.", "µs")
    ]
    step_layers: Annotated[int | None, IfOk("Layers of the step, each with its own KV cache.", "layers")]
    in_step_samples_us: Annotated[
        list[float] | None, IfOk("The paired differences of a layer, in the order they were taken.", "µs")
    ]
    step_stop_reason: Annotated[str | None, IfOk("Why sampling of steps ended: ci95, max_samples, max_seconds or throttled.")]
    host_us: Annotated[float | None, About("Median time the CPU needs to issue one call without a graph. Null on a CPU.", "µs")]


class EnergyColumns(TypedDict, total=False):
    """Energy of the whole device while the call runs, from NVML's counter, with timing.energy=true (docs/contexts.md)."""

    energy_j: Annotated[float | None, IfOk("Energy of one call, without the flush before it.", "J")]
    energy_token_j: Annotated[
        float | None,
        IfOk("energy_j divided by the query tokens of the call. One layer only; rejected tokens of a draft count too.", "J"),
    ]
    energy_rel: Annotated[float | None, IfOk("Half-width of the 95% interval of energy_j, divided by energy_j.", "ratio")]
    energy_flush_j: Annotated[float | None, IfOk("Energy of the flush before each call, which was subtracted; 0 without one.", "J")]
    energy_us: Annotated[
        float | None,
        IfOk("Time of a call in the block of back-to-back calls that energy_j is from. Longer than median_us if throttled.", "µs"),
    ]
    energy_note: Annotated[str | None, About("Why energy_j is null although it was asked for, or why the block was throttled.")]


class HostColumns(TypedDict, total=False):
    """What a step costs on the host, with timing.host=true (docs/contexts.md). The device is idle when a plan or a call begins."""

    plan_host_us: Annotated[
        float | None,
        IfOk("Median host time of a plan for new lengths. 0: there is nothing to plan. Null: host_note says why.", "µs"),
    ]
    plan_host_p95_us: Annotated[float | None, IfOk("95th percentile of these plans.", "µs")]
    plan_host_ci95_rel: Annotated[
        float | None,
        IfOk("95% confidence interval of plan_host_us: distance of its farther end, divided by plan_host_us.", "ratio"),
    ]
    plan_syncs: Annotated[int | None, IfOk("Calls of one plan in which the host waits for the device.", "count")]
    plan_d2h_copies: Annotated[int | None, IfOk("Copies of one plan from the device to the host.", "count")]
    plan_h2d_copies: Annotated[int | None, IfOk("Copies of one plan from the host to the device.", "count")]
    plan_kernels: Annotated[
        int | None, IfOk("Kernels that one plan launches, including memory sets and copies within the device.", "count")
    ]
    plan_device_us: Annotated[float | None, IfOk("Time that the device takes for these kernels and copies, without gaps.", "µs")]
    call_host_us: Annotated[
        float | None, IfOk("Median host time of issuing one call without a graph, one after another, without waiting.", "µs")
    ]
    call_host_p95_us: Annotated[float | None, IfOk("95th percentile of these calls.", "µs")]
    call_syncs: Annotated[int | None, IfOk("As plan_syncs, of one call.", "count")]
    call_copies: Annotated[int | None, IfOk("Copies of one call between host and device, in either direction.", "count")]
    call_kernels: Annotated[int | None, IfOk("As plan_kernels, of one call.", "count")]
    host_note: Annotated[str | None, About("Why one of these columns is null although it was asked for.")]


class EngineColumns(TypedDict, total=False):
    """Attention inside a running engine (docs/contexts.md): times of its own steps. Its answers cannot be checked."""

    engine: Annotated[str | None, About("The engine that attention ran in, such as vllm. Null: this project made the call.")]
    engine_version: Annotated[str | None, About("Version of the engine.")]
    flag: Annotated[
        str | None,
        About(
            "The engine's attention flag: default, a name such as FLASHINFER, or a name and an option that is off, such as "
            "FLASHINFER:no-use_trtllm_attention. What the engine made of it is resolved_backend."
        ),
    ]
    main_kernels: Annotated[
        str | None, IfOk("The kernels that computed attention in the profiled steps, by the profiler, joined by |.")
    ]
    combine_kernels: Annotated[str | None, IfOk("The kernels that merged the parts of split keys there. Null: none ran.")]
    metadata_kernels: Annotated[str | None, IfOk("The kernels that planned attention there. Null: none ran.")]
    other_kernels: Annotated[str | None, IfOk("The longest other kernels of a profiled step, each with its µs a step.")]
    attention_us: Annotated[
        float | None,
        IfOk("Attention in one layer: attention_main_us + attention_combine_us. To compare with own_us of an isolated row.", "µs"),
    ]
    attention_main_us: Annotated[float | None, IfOk("Time of main_kernels in one layer: mean of the profiled steps.", "µs")]
    attention_combine_us: Annotated[float | None, IfOk("Time of combine_kernels in one layer; 0 if none ran.", "µs")]
    attention_metadata_us: Annotated[float | None, IfOk("Time of metadata_kernels in a whole step; 0 if none ran.", "µs")]
    attention_share: Annotated[
        float | None, IfOk("Time of all attention kernels of a step, of step_layers layers, divided by engine_kernels_us.", "ratio")
    ]
    engine_kernels_us: Annotated[float | None, IfOk("Time of all kernels of a profiled step, without gaps.", "µs")]
    engine_step_us: Annotated[
        float | None, IfOk("Time of a step on the GPU, from its first work to its sampled tokens, with gaps: median.", "µs")
    ]
    engine_wall_us: Annotated[float | None, IfOk("Time from the start of a step to that of the next, by the host: median.", "µs")]
    engine_host_us: Annotated[
        float | None, IfOk("Time that the host prepares, issues and samples a step, partly while the GPU runs: median.", "µs")
    ]
    engine_steps: Annotated[int | None, IfOk("Steps that these medians are of. Each had all requests with s_qo tokens.", "steps")]
    engine_profiled_steps: Annotated[int | None, IfOk("Steps that were profiled after them, all of them such.", "steps")]
    engine_kv_tokens: Annotated[
        float | None, IfOk("KV tokens of a request in the profiled steps, from the engine's scheduler: mean.", "tokens")
    ]
    engine_graph: Annotated[
        str | None, IfOk("The engine's mode of CUDA graphs, and how many launches of a graph a profiled step had.")
    ]
    engine_runner: Annotated[str | None, IfOk("The engine's model runner, and whether it schedules ahead of the GPU (async).")]
    engine_model: Annotated[str | None, About("What the engine loaded: class, layers, weights, share of tensor parallelism.")]
    engine_start: Annotated[
        int | None, About("Which start of the engine served the point: 1 for the first of its worker.", "index")
    ]
    engine_start_s: Annotated[float | None, About("What that start took, from the process on.", "s")]
