"""The tables of question=fp8: for which workloads an FP8 cache or FP8 queries are faster, and for which slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions import fp8_answer
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import across_contexts, describe_point, fetch, split_by_title
from orchestrator.analysis.rough import legend, mark
from orchestrator.tables import Grid

TITLE = (
    "is an FP8 cache worth it? By time, each draft length with the queries that are faster; an error is the kernel's own rounding: "
    "what storing K and V in FP8 loses is not measured here"
)
SERVER = ("device_name", "model", "l2")
FP8_KINDS = {"fp8_kv": "FP8 keys and values", "fp8_q": "FP8 queries, keys and values"}


def grids(data: Dataset) -> list[Grid]:
    """Yes or no for each batch; then the speed-up over a 16-bit cache, each with its best backend; below 1 FP8 is slower."""
    found = _answers(data)
    for kind, words in FP8_KINDS.items():
        for name, part in _by_server(data, f"{kind}_gain IS NOT NULL"):
            best = "each at its best (the FP8 one's backend; err: relative error of its worst row)"
            best += legend(*(r[f"{kind}_rough"] for r in part))
            title = f"{words}: time of a 16-bit cache over theirs, {best} · {name}"
            found.append(across_contexts(title, part, _cell(kind)))
    return [*found, *_memory(data)]


def _answers(data: Dataset) -> list[Grid]:
    cells = [(name, words) for name, part in _by_server(data) for words in fp8_answer.sentences(part)]
    rough = legend(*(r[f"{kind}_rough"] for _, part in _by_server(data) for r in part for kind in FP8_KINDS))
    return [Grid(TITLE + rough, ("workloads", "answer"), tuple(cells))] if cells else []


def _memory(data: Dataset) -> list[Grid]:
    """The workloads whose 16-bit cache is larger than the GPU: their gain compares kernels, and a server could not choose."""
    cells = [
        (
            f"{model} on {device}",
            f"{big:,} of {workloads:,} workloads have a 16-bit cache of {layers} layers that is larger than the GPU's "
            f"{memory / 1e9:,.0f} GB. There the ratio compares kernels only. An FP8 cache of that size holds twice the tokens",
        )
        for device, model, layers, memory, big, workloads in data.execute("""
            SELECT device_name, model, any_value(layers), any_value(memory_bytes),
                   count(DISTINCT problem) FILTER (cache_bytes > memory_bytes) AS big, count(DISTINCT problem)
            FROM problems JOIN cache_sizes USING (problem)
            WHERE kv_dtype IN ('bf16', 'fp16') GROUP BY ALL HAVING big > 0 ORDER BY ALL""")
    ]
    return [Grid("memory", ("server", "note"), tuple(cells))] if cells and data.scalar("SELECT count(*) FROM fp8") else []


def _by_server(data: Dataset, where: str = "true") -> Iterator[tuple[str, list[Record]]]:
    records = fetch(data, "fp8", ("device_name", "model", "dtype", "l2"), where=where)
    yield from split_by_title(records, ("s_qo", "batch_size", "s_kv", "dtype"), SERVER)


def _cell(kind: str) -> Callable[[Record], str]:
    def cell(record: Record) -> str:
        backend, kernel, rel_err = (record[f"{kind}_{what}"] for what in ("backend", "kernel", "rel_err"))
        half = record["half_rel_err"]
        words = error(rel_err, None if not half else (rel_err or 0) / half, "that of the 16-bit cache")
        return f"{mark(record[f'{kind}_rough'])}{record[f'{kind}_gain']:.2f} {named(backend, kernel)} {words}"

    return cell


def summary(data: Dataset) -> str | None:
    """For each kind, the number of workloads where it is faster and slower, and the worst workload."""
    return "; ".join(_sentences(data)) or None


def _sentences(data: Dataset) -> list[str]:
    sentences = []
    for kind, words in FP8_KINDS.items():
        gain = f"{kind}_gain"
        count, pays, slower, middle = data.single_row(f"""
            SELECT count({gain}), count_if({gain} > 1 + {SAME}), count_if({gain} < 1 / (1 + {SAME})), median({gain}) FROM fp8""")
        if not count:
            continue
        sentences.append(
            f"{words} pay at {pays:,} of {count:,} workloads ({middle:.2f} times as fast at the median), are slower at {slower:,}"
        )
        if slower:
            worst = data.records(
                f"SELECT *, 'bf16' AS q_dtype, 'bf16' AS kv_dtype FROM fp8 ORDER BY {gain}, s_kv, batch_size LIMIT 1"
            )[0]
            sentences[-1] += f", at worst {worst[gain]:.2f} ({describe_point(worst).rpartition(',')[0]})"
    return sentences
