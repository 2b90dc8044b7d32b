"""vLLM's batch specs: the query and KV lengths of a batch as one string, such as 2q2k_8q1s1k. Pure Python.

    spec    := segment ("_" segment)*
    segment := [count] "q" length ["s" length]
    length  := digits ["k"]

`k` is 1024. `s` is the whole KV length including the query tokens, as `s_kv` is. A segment without `s` is a prompt, s = q. One with
`s0` has query tokens and no key, as a rank has that holds none of a request's keys (decode context parallelism), or an empty slot.
The grammar is that of vLLM's benchmarks/attention_benchmarks/batch_spec.py, except that any other s < q is an error here. Its older
dialect wrote `kv` for `s`, which is accepted; other words of it get an error that gives today's spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import groupby

Segment = tuple[int, int, int]  # requests, query tokens of each, KV tokens of each

MAX_REQUESTS = 1 << 20  # of several lengths, which are kept as a list
SEGMENT = re.compile(r"(?P<count>[0-9]+)?q(?P<q>[0-9]+)(?P<qk>k?)(?:(?:s|kv)(?P<s>[0-9]+)(?P<sk>k?))?")
OLDER = re.compile(r"(?P<count>[0-9]*)(?:spec(?P<draft>[0-9]+))?s(?P<s>[0-9]+k?)")


@cache
def parse(spec: str) -> tuple[Segment, ...]:
    """The segments of a spec in order, with equal neighbours merged. Raises ValueError that names the wrong segment."""
    segments = tuple(_joined(_segment(spec, text) for text in spec.split("_")))
    if len(segments) > 1 and (requests := sum(count for count, _, _ in segments)) > MAX_REQUESTS:
        raise ValueError(f"batch_spec {spec[:50]!r}: {requests:,} requests of several lengths; allowed: up to {MAX_REQUESTS:,}")
    if not any(kv for _, _, kv in segments):
        raise ValueError(
            f"batch_spec {spec!r}: no request has a key; allowed: s=0 for some requests of a batch, such as 7q1s1k_q1s0"
        )
    return segments


def lengths(spec: str) -> tuple[tuple[int, int], ...]:
    """(query tokens, KV tokens) of each request."""
    return tuple((q, kv) for count, q, kv in parse(spec) for _ in range(count))


def name(lens: Iterable[tuple[int, int]]) -> str:
    """The shortest spec of a batch of (query, KV) lengths. Equal batches get equal names."""
    return spelled(_joined((1, q, kv) for q, kv in lens))


def spelled(segments: Iterable[Segment]) -> str:
    return "_".join(map(_written, segments))


def keys_of(spec: str) -> dict[str, int | float | str | None]:
    """A spec as keys of a problem. A batch of equal requests gets `batch_spec` None.

    `batch_size` counts all requests, `s_qo` and `s_kv` are the longest lengths and `min_s_qo` is the shortest query. `seq_lens` is
    `listed` if KV lengths differ. Raises ValueError as `parse` does.
    """
    segments = parse(spec)
    queries, kvs = {q for _, q, _ in segments}, {kv for _, _, kv in segments}
    return {
        "batch_size": sum(count for count, _, _ in segments),
        "s_qo": max(queries),
        "min_s_qo": min(queries) if len(queries) > 1 else None,
        "s_kv": max(kvs),
        "seq_lens": "listed" if len(kvs) > 1 else "fixed",
        "batch_spec": spelled(segments) if len(segments) > 1 else None,
    }


def _segment(spec: str, text: str) -> Segment:
    found = SEGMENT.fullmatch(text)
    if not found:
        raise ValueError(f"batch_spec {spec!r}: {_refusal(text)}")
    count, q = int(found["count"] or 1), _tokens(found["q"], found["qk"])
    kv = _tokens(found["s"], found["sk"]) if found["s"] else q
    if not count or not q:
        raise ValueError(f"batch_spec {spec!r}: {text!r} has no request or no query token; allowed: counts and lengths from 1")
    if 0 < kv < q:
        raise ValueError(
            f"batch_spec {spec!r}: {text!r} has s={kv} below q={q}; allowed: s >= q, since s counts the query tokens too, or s0"
        )
    return count, q, kv


def _refusal(text: str) -> str:
    if older := OLDER.fullmatch(text):
        return f"{text!r} is vLLM's older dialect; type '{older['count']}q{older['draft'] or 1}s{older['s']}'"
    return f"{text!r} is not a segment; allowed: [count]q<tokens>[s<KV tokens>], tokens as 512 or 2k, such as 8q1s1k or 2q2k"


def _tokens(digits: str, k: str) -> int:
    return int(digits) * (1024 if k else 1)


def _written(segment: Segment) -> str:
    count, q, kv = segment
    return f"{count if count > 1 else ''}q{_length(q)}{'' if kv == q else f's{_length(kv)}'}"


def _length(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    return [(sum(count for count, _, _ in group), *lens) for lens, group in groupby(segments, key=lambda segment: segment[1:])]
