"""Steps of a running engine, whichever it is: which of them count, what they take, and the kernels in their profile.

A *pure* step is one in which every request of a point has exactly `q` tokens: one, or its draft and one more. Only these are timed.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kernels.lazy import torch

# Parts of the names of kernels beside those that compute attention, whose parts a spec has (`main_kernels`). From profiles of
# vLLM's FLASH_ATTN, FLASHINFER and TRITON_ATTN, and SGLang's fa3 and triton; the others were read in their sources.
BESIDE = {
    "combine": ("FlashAttnFwdCombine", "splitkv_combine", "MergeStates", "reduce_segments", "mla_combine", "_fwd_kernel_stage2"),
    "metadata": ("prepare_varlen_num_blocks", "get_mla_metadata", "create_flashinfer_kv_indices", "_metadata_kernel"),
}
MAX_NAME, MAX_OTHER, MAX_KERNELS = 320, 60, 16  # characters of an attention kernel's name, and another's; kernels of a kind
MAX_BESIDE = 0.01  # of attention's time, in which kernels of another part run, before a row says so
READS = 4  # how often the clocks are read while steps are timed
Found = TypeVar("Found")
Spans = dict[str, list[tuple[int, int]]]  # begin and end in nanoseconds, of the kernels of a name


class NotMeasured(Exception):
    """A point whose steps show no time. The engine serves others."""

    healthy = True


class Refused(Exception):
    """The engine has no such flag, or does not take it here."""


@contextmanager
def profiled() -> Iterator[Any]:
    """Kernels of the steps in it alone: the GPU has done those before, and does all of these."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        yield found
        torch.cuda.synchronize()


class Watch:
    """Counts the steps of an engine, which tells it when one begins and what it calls in it, and times the pure ones.

    `spec` has `layers`, which are `measured`, and names of attention's kernels; `graph` is a word for the engine's CUDA graphs.
    """

    def __init__(self, spec: Mapping[str, Any], graph: str) -> None:
        self.spec, self.graph = spec, graph
        self.found: dict[str, Any] = {}
        self.begin(0, 1)
        with profiled():  # the first profile of a process takes seconds
            pass

    def begin(self, batch: int, q: int) -> None:
        """Forgets all steps so far."""
        self.batch, self.q, self.steps, self.pure = batch, q, 0, 0
        self.kv_tokens: list[float] = []
        self._starts: list[float | None] = []  # by the host's clock; None for a step that was not pure
        self._host: list[float] = []
        self._events: list[tuple[Any, Any]] = []
        self._open = False  # whether a pure step waits for its tokens

    def measure(self, batch: int, steps: Mapping[str, int], read: Callable[[], None], going: Callable[[], bool]) -> Iterator[None]:
        """Yields before each step that the engine shall run. Then `found` has medians of pure steps and the kernels of later ones.

        `steps` says how many are `warm`, `timed` and `profiled`, `read` reads the clocks meanwhile, `going` says whether requests
        are left. Raises NotMeasured if too few steps are pure, or no kernel of attention ran.
        """
        yield from self._until(steps["warm"], batch, going)
        for at in range(READS):
            yield from self._until(steps["timed"] // READS, batch, going, fresh=at == 0)
            read()
        timed = self.times()
        for _ in range(steps["profiles"]):  # a step in which a draft was short makes a profile useless
            with profiled() as profile:
                yield from self._until(steps["profiled"], batch, going)
            if self.pure == self.steps:
                events = profile.profiler.kineto_results.events()
                found = {"engine_kv_tokens": statistics.mean(self.kv_tokens), "engine_profiled_steps": self.steps}
                self.found = {**timed, **found, **kernels_of(events, self.spec, self.steps, self.graph)}
                return
        raise NotMeasured(f"in {steps['profiles']} profiles some steps had requests without {self.q} tokens")

    def _until(self, count: int, batch: int, going: Callable[[], bool], *, fresh: bool = True) -> Iterator[None]:
        """Steps until so many more were pure. With `fresh` those before are forgotten."""
        if fresh:
            self.begin(batch, self.spec["drafts"] + 1)
        wanted = self.pure + count
        while self.pure < wanted:
            if not going():
                raise NotMeasured(f"the requests ended after {self.pure} steps with {self.q} tokens of each request")
            yield

    def opens(self, kv_tokens: float | None) -> None:
        """A step begins, with so many KV tokens of a request; None if it is not pure."""
        self.steps, self._open = self.steps + 1, kv_tokens is not None
        self._starts.append(None if kv_tokens is None else time.perf_counter())
        if kv_tokens is None:
            return
        self.pure += 1
        self.kv_tokens.append(kv_tokens)
        self._host.append(0.0)
        event: Any = torch.cuda.Event
        self._events.append((event(enable_timing=True), event(enable_timing=True)))
        self._events[-1][0].record()

    def calls(self, call: Callable[[], Found], *, ends: bool) -> Found:
        """What a part of a step gives; whether the step ends with it. Its time is the host's."""
        begun = time.perf_counter()
        found = call()
        if self._open:
            self._open = not ends
            if ends:
                self._events[-1][1].record()
            self._host[-1] += time.perf_counter() - begun
        return found

    def times(self) -> dict[str, Any]:
        """Medians in microseconds. A step's wall time is until the next one starts, if both are pure."""
        torch.cuda.synchronize()
        pairs = zip(self._starts, self._starts[1:], strict=False)
        walls = [(after - before) * 1e6 for before, after in pairs if before is not None and after is not None]
        gpu = [before.elapsed_time(after) * 1e3 for before, after in self._events]
        host = [seconds * 1e6 for seconds in self._host]
        if not walls or not gpu:
            raise NotMeasured(f"no two steps in a row had {self.q} tokens of each request")
        medians = (round(statistics.median(times), 3) for times in (walls, gpu, host))
        return dict(zip(("engine_wall_us", "engine_step_us", "engine_host_us"), medians, strict=True)) | {"engine_steps": len(gpu)}


def kernels_of(events: Sequence[Any], spec: Mapping[str, Any], steps: int, graph: str) -> dict[str, Any]:
    """The kernels of `steps` profiled steps by phase, as columns of a row. `reason`: some did not run equally often in each layer.

    Attention is that of the `measured` layers of `spec`; its share and `engine_kernels_us` are of all. Each phase is a sum, but
    `attention_us` counts the time in which a main and a combining kernel run together once: a combining one may be launched before
    the main one ends. Time beside other kernels is counted whole, and `reason` says so. Raises NotMeasured without any attention.
    """
    phases = {**BESIDE, "main": spec["main_kernels"]}  # the first that has a part of a name is its phase
    spans, mains, launches = _spans(events, phases, spec)
    ordered = {phase: sorted(of, key=lambda name: -summed_us(of[name]))[:MAX_KERNELS] for phase, of in spans.items()}
    if not mains:
        raise NotMeasured(f"no kernel of attention is known among those that ran: {' | '.join(ordered['other'])}")
    layers, measured = spec["layers"], len(spec["measured"])
    if measured < layers and mains != steps * layers:
        raise NotMeasured(f"{mains} kernels of attention in {steps} steps of {layers} layers: layers cannot be told apart")
    combine, metadata, main, other, elsewhere = ([span for of in named.values() for span in of] for named in spans.values())
    in_layers = {**spans["main"], **spans["combine"]}
    uneven = [name for name, of in in_layers.items() if len(of) % (steps * measured)]
    attention, every = covered_us(main + combine), covered_us(main + combine + metadata + other + elsewhere)
    beside = attention + covered_us(other) - covered_us(main + combine + other)
    amiss = [f"not equally often in each layer: {', '.join(uneven)}"] if uneven else []
    amiss += [f"{beside / attention:.0%} of attention's time beside other kernels"] if beside > MAX_BESIDE * attention else []
    return {
        **{f"{phase}_kernels": " | ".join(ordered[phase]) or None for phase in phases},
        "other_kernels": " | ".join(
            f"{name[:MAX_OTHER]} {summed_us(spans['other'][name]) / steps:.1f}" for name in ordered["other"]
        ),
        "attention_us": attention / steps / measured,
        "attention_main_us": summed_us(main) / steps / measured,
        "attention_combine_us": summed_us(combine) / steps / measured,
        "attention_metadata_us": summed_us(metadata) / steps,
        "attention_share": covered_us(main + combine + metadata + elsewhere) / every,
        "engine_kernels_us": every / steps,
        "engine_graph": f"{graph}, {launches / steps:g} graph launches a step",
        "reason": "; ".join(amiss),
    }


def _spans(
    events: Sequence[Any], phases: Mapping[str, Sequence[str]], spec: Mapping[str, Any]
) -> tuple[dict[str, Spans], int, int]:
    """Kernels by phase (`elsewhere`: attention of other layers), main ones, each of which begins a layer, and graph launches."""
    spans: dict[str, Spans] = {phase: defaultdict(list) for phase in (*phases, "other", "elsewhere")}
    launches = mains = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        name, begin = event.name(), event.start_ns()
        if str(event.device_type()).endswith("CUDA"):
            phase = next((phase for phase, parts in phases.items() if any(part in f"{name} " for part in parts)), "other")
            mains += phase == "main"
            if phase in ("main", "combine") and (mains - 1) % spec["layers"] not in spec["measured"]:
                phase = "elsewhere"
            spans[phase][name.removeprefix("void ")[:MAX_NAME]].append((begin, begin + event.duration_ns()))
        else:
            launches += "GraphLaunch" in name
    return spans, mains, launches


def summed_us(spans: Iterable[tuple[int, int]]) -> float:
    """Microseconds of all spans (begin and end in nanoseconds)."""
    return sum(end - begin for begin, end in spans) / 1e3


def covered_us(spans: Iterable[tuple[int, int]]) -> float:
    """Microseconds in which at least one of the spans (begin and end in nanoseconds) lasts."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered / 1e3
