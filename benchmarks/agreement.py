"""Our medians beside those of FlashInfer's own `bench_gpu_time` (CUPTI): same points, same GPU, same session.

    python benchmarks/agreement.py measure rows.parquet +sweep=specdec_long_ctx [key=value ...]
    python benchmarks/agreement.py table results/h200_agreement

`measure` needs a CUDA device, compiled kernels and cupti-python. Two processes take their turns, since torch's profiler and
cupti-python cannot both have CUPTI; both time graph replays between events too, which shows how far the device drifted between.
Each point is kept as it is measured, in `rows.parquet.ours` and `.peer`: what was interrupted goes on, what both have is joined.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
WITHIN = 0.02
TIMES = {"ours": ["cupti_us", "graph_us", "held_down"], "peer": ["graph_us", "peer_us", "held_down"]}
SHAPE = ["backend", "resolved_backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
COLUMNS = {name: ["point_id", *SHAPE, *times] for name, times in TIMES.items()}


def measure(out: str, overrides: list[str]) -> None:
    """Both passes, each in a process of its own, joined into one Parquet file."""
    try:
        for name in ("ours", "peer"):
            subprocess.run([sys.executable, __file__, name, f"{out}.{name}", *overrides], check=True)
    finally:
        passes = [pd.DataFrame(_lines(f"{out}.{name}"), columns=COLUMNS[name]) for name in ("ours", "peer")]
        both = passes[0].merge(passes[1], on=["point_id", *SHAPE], suffixes=("", "_of_peer_pass"))
        both.to_parquet(out)


def _lines(path: str) -> list[dict[str, Any]]:
    """The points of a pass so far; a line that was cut off is no point."""
    if not Path(path).exists():
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.endswith("}")]


def one_pass(out: str, overrides: list[str], times_of: Callable[[Any, Any, int], dict[str, float]]) -> None:
    """Times of every supported point, prepared as a worker prepares it; one line a point."""
    import torch

    from kernels import drawing, registry
    from orchestrator.machines import describe
    from orchestrator.plan import make_plan

    torch.set_grad_enabled(False)
    settings, points = _points(overrides)
    device, done = describe().devices[0], {line["point_id"] for line in _lines(out)}
    todo = [p for p in _supported(make_plan(points, [device], settings)) if p.point_id not in done]
    todo.sort(key=lambda p: repr(p.problem))  # points of one problem share its inputs
    with Path(out).open("a") as file:
        for problem, group in itertools.groupby(todo, key=lambda p: p.problem):
            inputs = drawing.draw(problem, "cuda")
            shape = {key: getattr(problem, key) for key in SHAPE[2:]}
            for point in group:
                try:
                    runner = registry.get(problem.routine, point.backend).prepare(inputs, device)
                    times = times_of(runner, settings.timing, problem.seed)
                except RuntimeError as error:  # one point, not the pass
                    print(f"{point.backend} {shape}: {error}", file=sys.stderr)
                    continue
                what = {"backend": point.backend, "resolved_backend": runner.resolved_backend}
                print(json.dumps({"point_id": point.point_id, **what, **shape, **times}), file=file, flush=True)
                del runner
            del inputs
            torch.cuda.empty_cache()


def _points(overrides: list[str]) -> tuple[Any, list[Any]]:
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from orchestrator.settings import load
    from orchestrator.sweep import expand

    with initialize_config_module("conf", version_base="1.3"):
        settings = load(OmegaConf.to_container(compose("config", overrides=overrides), resolve=True))  # type: ignore[arg-type]
    return settings, expand(settings)


def _supported(plan: Any) -> Iterator[Any]:
    return (decision.point for decision in plan.of("run"))


def ours(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """Medians of our CUPTI timer and of graph replays between events, in turns; samples beside a held-down clock are set aside."""
    medians, held_down = _in_turns(runner, timing, seed, ("cupti", "graph"))
    return {"cupti_us": medians[0], "graph_us": medians[1], "held_down": held_down}


def peer(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """The peer's median of graph replays under CUPTI, and our graph replays in the same process."""
    from flashinfer.testing import bench_gpu_time

    medians, held_down = _in_turns(runner, timing, seed, ("graph",))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", message=".*Falling back to CUDA events"
        )  # without it, the peer takes events and says so in a warning
        spans_ms = bench_gpu_time(runner, enable_cupti=True, use_cuda_graph=True, cold_l2_cache=True)
    return {"graph_us": medians[0], "peer_us": statistics.median(spans_ms) * 1e3, "held_down": held_down}


def _in_turns(runner: Any, timing: Any, seed: int, timers: tuple[str, ...]) -> tuple[list[float], bool]:
    import torch

    from kernels.timers import timer_for
    from kernels.timing import Series, measure_in_turns
    from kernels.witness import Nvml

    made = [timer_for(runner, timer, timing.warmup, timing.l2, timing.l2_flush_factor) for timer in timers]  # type: ignore[arg-type]
    series = [Series(timer, timing) for timer in made]
    measure_in_turns(series, Nvml(f"GPU-{torch.cuda.get_device_properties(0).uuid}"), seed)
    for one in series:
        if one.error:
            raise one.error
    results = [one.result() for one in series]
    medians = [statistics.median(sample for block in result.blocks_us for sample in block) for result in results]
    return medians, any(result.set_aside_us for result in results)


def table(path: str) -> str:
    """Markdown: how many points agree by kernel, and each point that does not."""
    rows = pd.read_parquet(path)
    rows["off"] = rows["cupti_us"] / rows["peer_us"] - 1
    rows["drift"] = rows["graph_us_of_peer_pass"] / rows["graph_us"] - 1
    lines = ["| kernel | keys | points | median of ours / peer's − 1 | within 2% | widest |", "|---|---|---|---|---|---|"]
    for (kernel, kv), part in rows.groupby(["resolved_backend", "kv_dtype"]):
        within = (part["off"].abs() <= WITHIN).sum()
        widest = part.loc[part["off"].abs().idxmax(), "off"]
        lines.append(f"| {kernel} | {kv} | {len(part)} | {part['off'].median():+.2%} | {within} | {widest:+.2%} |")
    inside = int((rows["off"].abs() <= WITHIN).sum())
    lines += ["", f"{inside} of {len(rows)} points agree within 2%; outside:", ""]
    head = [
        "backend",
        "batch",
        "s_kv",
        "s_qo",
        "keys",
        "ours, CUPTI µs",
        "peer µs",
        "off",
        "same timer, peer's pass / ours − 1",
        "clock held down",
    ]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows[rows["off"].abs() > WITHIN].sort_values("off", key=abs, ascending=False).to_dict("records"):
        held = "yes" if row["held_down"] or row["held_down_of_peer_pass"] else "no"
        cells = [row["backend"], row["batch_size"], f"{row['s_kv']:,}", row["s_qo"], row["kv_dtype"], f"{row['cupti_us']:.2f}"]
        cells += [f"{row['peer_us']:.2f}", f"{row['off']:+.2%}", f"{row['drift']:+.2%}", held]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    what, file, *rest = sys.argv[1:]
    match what:
        case "measure":
            measure(file, rest)
        case "ours":
            one_pass(file, rest, ours)
        case "peer":
            one_pass(file, rest, peer)
        case "table":
            print(table(file))
