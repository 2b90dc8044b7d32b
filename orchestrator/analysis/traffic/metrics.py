"""Histograms of Prometheus (text 0.0.4) as traffic: vLLM's v1/metrics/loggers.py, SGLang's metrics/collector.py, TGI, Dynamo."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from orchestrator.analysis.traffic.mix import Mix, TrafficPoint, steps
from orchestrator.analysis.traffic.requests import INDEPENDENT, MAX_COUNT
from orchestrator.errors import UserError
from orchestrator.remainder import Remainder

METRICS = {  # of each program the histograms of prompts and of outputs, and the gauge of running requests
    "vLLM": ("vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:num_requests_running"),
    "SGLang": ("sglang:prompt_tokens_histogram", "sglang:generation_tokens_histogram", "sglang:num_running_reqs"),
    "TGI": ("tgi_request_input_length", "tgi_request_generated_tokens", "tgi_batch_current_size"),
    "Dynamo": tuple(f"dynamo_frontend_{name}" for name in ("input_sequence_tokens", "output_sequence_tokens", "inflight_requests")),
}
SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
MAX_COMBINATIONS = 100_000  # of a prompt, a step of an output and a batch
LE = re.compile(r'(?:^|,)\s*le="([^"]*)"')


def read(path: str, text: str, allowed: str) -> Mix:
    """The traffic of an engine's histograms. Raises UserError for every line that is wrong, since a histogram counts whole."""
    *histograms, gauge = next((names for names in METRICS.values() if f"{names[0]}_bucket" in text), METRICS["vLLM"])
    buckets: dict[str, dict[float, float]] = {name: defaultdict(float) for name in histograms}
    running, wrong = list[int](), Remainder(path)
    lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    samples = ((number, line) for number, line in lines if line and not line.startswith("#"))
    for _, (name, edge, value) in wrong.each(samples, lambda line: _sample(line, [*histograms, gauge])):
        if name == gauge:
            running.append(round(value))
        else:
            buckets[name][edge] += value
    wrong.close(0, f"allowed: {allowed}")
    if missing := [name for name, counts in buckets.items() if not counts]:
        raise UserError(f"traffic={path}: no {missing[0]}_bucket; allowed: {allowed}")
    notes = [INDEPENDENT.format("histograms")]
    prompts, outputs = (_lengths(path, name, counts, notes) for name, counts in buckets.items())
    batches: list[int | None] = [batch for batch in running if batch > 0]
    if not batches:
        notes.append(f"no batch sizes, since {gauge} is absent or 0")
    contexts = sum(len(steps(0, output, 0)) for output, _ in outputs)
    if (count := len(prompts) * contexts * max(1, len(batches))) > MAX_COMBINATIONS:
        given = f"{len(prompts):,} lengths of prompts, {contexts:,} contexts of outputs and {len(batches):,} batches"
        allowed = f"allowed: up to {MAX_COMBINATIONS:,}; give the metrics of one server"
        raise UserError(f"traffic={path}: {given} make {count:,} combinations; {allowed}")
    decode = [
        TrafficPoint(batch, step.s_kv, step.weight)
        for prompt, of_prompt in prompts
        for output, of_output in outputs
        for step in steps(prompt, output, of_prompt * of_output)
        for batch in batches or [None]
    ]
    return Mix(tuple(decode), tuple(TrafficPoint(None, prompt, weight) for prompt, weight in prompts), tuple(notes))


def _sample(line: str, names: Sequence[str]) -> tuple[str, float, float] | None:
    """Which of the metrics a sample is of, the end of its bucket (0 for a gauge), and its value; None for another metric."""
    sample = SAMPLE.fullmatch(line)
    if sample is None:
        raise ValueError("neither a comment nor a sample, NAME{labels} VALUE")
    *histograms, gauge = names
    metric, labels, value = sample.groups()
    if metric == gauge:
        return gauge, 0, _number(value)
    name = metric.removesuffix("_bucket")
    if name == metric or name not in histograms:
        return None
    if (le := LE.search(labels or "")) is None:
        raise ValueError("a bucket without le")
    return name, math.inf if le[1] == "+Inf" else _number(le[1]), _number(value)


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{word}: allowed: a number from 0 to {MAX_COUNT:g}")
    return value


def _lengths(path: str, name: str, counts: dict[float, float], notes: list[str]) -> list[tuple[float, float]]:
    """The middle of each bucket of a histogram, and its own count. The last bucket has no end: its start stands for it."""
    edges = sorted(counts.items())
    if not math.isinf(edges[-1][0]):
        raise UserError(f'traffic={path}: {name} has no bucket le="+Inf"; give the whole histogram')
    found, start, before = [], 0.0, 0.0
    for edge, upto in edges:
        if upto < before:
            falls = f"falls from {before:g} to {upto:g} at le={edge:g}"
            raise UserError(f"traffic={path}: {name} {falls}; allowed: counts that never fall")
        if upto > before:
            found.append((max(1.0, start if math.isinf(edge) else (start + edge) / 2), upto - before))
            if math.isinf(edge):
                share = f"{(upto - before) / upto:.0%} of {name}"
                notes.append(f"{share} lie above the last bucket, at {start:g}, and count as {start:g}")
        start, before = edge, upto
    if not found:
        raise UserError(f"traffic={path}: {name} counts no request; take the metrics of a server that has served some")
    return found
