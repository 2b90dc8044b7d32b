"""Reads traffic from a file: Mooncake's traces, JSON lines of batches and lengths, or the text of vLLM's Prometheus endpoint.

Mooncake: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces: `timestamp`, `input_length`, `output_length`, `hash_ids`.
vLLM: `vllm/v1/metrics/loggers.py`: the histograms `vllm:request_prompt_tokens` and `vllm:request_generation_tokens`, and the gauge
`vllm:num_requests_running`. Text format 0.0.4 of Prometheus.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from orchestrator.analysis.traffic.mix import Mix, TrafficPoint
from orchestrator.errors import UserError
from orchestrator.untrusted.door import fault, from_json, reading
from orchestrator.untrusted.files import read_text

MAX_SHOWN = 20
MAX_BYTES = 256 * 10**6  # a trace of a million requests has 100 MB or so
STEPS = 8  # contexts that stand for the steps of one request
MAX_TOKENS = 10**8
MAX_COUNT = 1e15  # of requests, and weights
PROMPTS, OUTPUTS, RUNNING = "vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:num_requests_running"
SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s]+)(?:\s+-?\d+)?\s*")
LE = re.compile(r'(?:^|,)\s*le="(?P<le>[^"]*)"')
ALLOWED = (
    'lines such as {"input_length": 6758, "output_length": 500} (a trace of Mooncake), '
    'lines such as {"batch_size": 8, "s_kv": 4096, "weight": 3}, '
    f"or the text of vLLM's /metrics with {PROMPTS} and {OUTPUTS}"
)


def read(path: str) -> Mix:
    """The traffic in a file. Raises UserError that names every line that cannot be read."""
    text = read_text(path, "traffic", MAX_BYTES)
    if not text.strip():
        raise UserError(f"traffic={path}: it is empty; allowed: {ALLOWED}")
    with reading(f"traffic={path}", f"allowed: {ALLOWED}"):
        return _of_lines(path, text) if text.lstrip().startswith("{") else _of_metrics(path, text)


# ---- JSON lines


def _of_lines(path: str, text: str) -> Mix:
    decode: list[TrafficPoint] = []
    prompts: list[TrafficPoint] = []

    def take(line: str) -> None:
        entry = _entry(line)
        if "s_kv" in entry:
            batch = _whole(entry, "batch_size") if "batch_size" in entry else None
            decode.append(TrafficPoint(batch, _whole(entry, "s_kv"), _weight(entry)))
        elif "batch_size" in entry:
            raise ValueError("batch_size goes with s_kv, and not with input_length, since a request is decoded in many batches")
        else:
            prompt, output = _whole(entry, "input_length"), _whole(entry, "output_length", least=0)
            prompts.append(TrafficPoint(None, prompt, 1))
            decode.extend(_steps(prompt, output, 1))

    _each(path, text, take)
    if not decode:
        raise UserError(f"traffic={path}: no request has output tokens, so nothing is decoded; give one that does")
    with_batch = sum(point.batch_size is not None for point in decode)
    if 0 < with_batch < len(decode):
        raise UserError(f"traffic={path}: {with_batch} of {len(decode)} lines have a batch_size; allowed: all of them or none")
    notes = () if with_batch else ("no batch sizes, so a report counts all measured ones alike",)
    return Mix(tuple(decode), tuple(prompts), notes)


def _entry(line: str) -> dict[str, Any]:
    entry = from_json(line)
    if not ("s_kv" in entry or {"input_length", "output_length"} <= entry.keys()):
        raise ValueError("neither s_kv nor input_length with output_length")
    return entry


def _whole(entry: dict[str, Any], key: str, least: int = 1) -> int:
    value = entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_TOKENS:
        raise ValueError(f"{key}={value!r}: allowed: a whole number from {least} to {MAX_TOKENS:,}")
    return value


def _weight(entry: dict[str, Any]) -> float:
    value = entry.get("weight", 1)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_COUNT:
        raise ValueError(f"weight={value!r}: allowed: a number above 0, up to {MAX_COUNT:g}")
    return float(value)


def _steps(prompt: float, output: float, weight: float) -> list[TrafficPoint]:
    """The contexts of a request's decode steps, prompt + 1 to prompt + output, as at most STEPS of equal weight."""
    count = min(math.ceil(output), STEPS)
    return [TrafficPoint(None, prompt + 0.5 + output * (i + 0.5) / count, weight * output / count) for i in range(count)]


# ---- Prometheus


def _of_metrics(path: str, text: str) -> Mix:
    buckets: dict[str, dict[float, float]] = {PROMPTS: defaultdict(float), OUTPUTS: defaultdict(float)}
    running: list[int] = []

    def take(line: str) -> None:
        if line.startswith("#"):
            return
        sample = SAMPLE.fullmatch(line)
        if sample is None:
            raise ValueError("neither a comment nor a sample, NAME{labels} VALUE")
        name, value = sample["name"], sample["value"]
        if name == RUNNING:
            running.append(round(_number(value)))
        elif name.removesuffix("_bucket") in buckets and name.endswith("_bucket"):
            le = LE.search(sample["labels"] or "")
            if le is None:
                raise ValueError("a bucket without le")
            buckets[name.removesuffix("_bucket")][_edge(le["le"])] += _number(value)

    _each(path, text, take)
    notes = ["prompt and output lengths taken as independent, since histograms do not pair them"]
    prompts, outputs = (_lengths(path, name, buckets[name], notes) for name in (PROMPTS, OUTPUTS))
    batches = [batch for batch in running if batch > 0]
    if not batches:
        notes.append(f"no batch sizes, since {RUNNING} is absent or 0")
    batches_or_none: list[int | None] = [*batches] or [None]
    decode = [
        TrafficPoint(batch, step.s_kv, step.weight)
        for prompt, of_prompt in prompts
        for output, of_output in outputs
        for step in _steps(prompt, output, of_prompt * of_output)
        for batch in batches_or_none
    ]
    return Mix(tuple(decode), tuple(TrafficPoint(None, prompt, weight) for prompt, weight in prompts), tuple(notes))


def _lengths(path: str, name: str, counts: dict[float, float], notes: list[str]) -> list[tuple[float, float]]:
    """The middle of each bucket of a histogram, and its own count. The last bucket has no end: its start stands for it."""
    if not counts:
        raise UserError(f"traffic={path}: no {name}_bucket; allowed: {ALLOWED}")
    edges = sorted(counts.items())
    if not math.isinf(edges[-1][0]):
        raise UserError(f'traffic={path}: {name} has no bucket le="+Inf"; give the whole histogram')
    found, start, before = [], 0.0, 0.0
    for edge, upto in edges:
        if upto < before:
            raise UserError(
                f"traffic={path}: {name} falls from {before:g} to {upto:g} at le={edge:g}; allowed: counts that never fall"
            )
        if upto > before:
            found.append((max(1.0, start if math.isinf(edge) else (start + edge) / 2), upto - before))
            if math.isinf(edge):
                notes.append(
                    f"{(upto - before) / upto:.0%} of {name} lie above the last bucket, at {start:g}, and count as {start:g}"
                )
        start, before = edge, upto
    if not found:
        raise UserError(f"traffic={path}: {name} counts no request; take the metrics of a server that has served some")
    return found


def _edge(word: str) -> float:
    """The end of a bucket of lengths; infinity for the last one."""
    return math.inf if word == "+Inf" else _number(word)


def _number(word: str, most: float = MAX_COUNT) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"{word!r} is no number") from None
    if not 0 <= value <= most:
        raise ValueError(f"{word}: allowed: a number from 0 to {most:g}")
    return value


def _each(path: str, text: str, take: Callable[[str], None]) -> None:
    """Takes each line that is not empty. Raises UserError with the first errors by line."""
    errors = []
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold what splitlines() takes for the end of a line
        if line.strip():
            try:
                take(line.strip())
            except Exception as error:  # what is wrong with a file's data may raise anything
                errors.append(f"{path}:{number}: {fault(error)}")
    if errors:
        more = [f"and {len(errors) - MAX_SHOWN} more"] if len(errors) > MAX_SHOWN else []
        raise UserError("\n".join([*errors[:MAX_SHOWN], *more, f"nothing of traffic={path} was taken; allowed: {ALLOWED}"]))
