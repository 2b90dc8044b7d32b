"""The measured shapes of a dataset, by what one server would serve: a device, a model, and the dtypes of model and cache.

The output has the model's dtype. Queries have it too, or 8 bits over an FP8 cache, which depends on the backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.engines import MAX_DRAFT
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.rough import ROUGH
from orchestrator.formats.engine_config.flags import PHASES, CallOf, LayerKind, Phase

SECTION_KEYS = (
    *("device_name", "cluster", "model", "tp", "num_qo_heads", "num_kv_heads", "out_dtype", "kv_dtype"),
    *("timer", "l2", "icache", "context"),
)
# Two calls of one shape may belong to two routines: drafts run through decode and through prefill kernels.
SHAPE_KEYS = tuple(key for key in PROBLEM_KEYS if key not in (*SECTION_KEYS, "routine", "q_dtype"))
NOT_OK = ("mismatch", "failed", "timeout", "oom")


@dataclass(frozen=True)
class Measured:
    """One call at one shape. `us` is without the launch of a graph, `median_us` is what was timed; both in microseconds.

    `noise_floor` is the share by which two such times may differ by noise alone. A `rough` one is only known within 5%.
    `measured_as` is the backend whose samples it has, if it was credited with them.
    """

    status: str
    reason: str
    shown: str
    us: float = 0.0
    median_us: float = 0.0
    rel_err: float | None = None
    noise_floor: float = DEFAULT_NOISE_FLOOR
    rough: bool = False
    measured_as: str | None = None

    def floor_beside(self, other: Measured) -> float:
        """The share by which its time and another may differ without meaning anything: by noise, and by what is rough."""
        return self.noise_floor + ROUGH * (self.rough + other.rough)


@dataclass(frozen=True)
class Shape:
    """One shape and every call that was measured at it."""

    phase: Phase
    kind: LayerKind
    batch_size: int
    s_qo: int
    s_kv: int
    page_size: int | None
    others: tuple[Any, ...]  # all else that makes it this problem
    fp8_cache: bool
    calls: dict[CallOf, Measured]
    layer: tuple[float | None, int | None] = (
        None,
        None,
    )  # of the table measured_rest: the rest of a layer in µs, the model's layers

    def __str__(self) -> str:
        return f"batch {self.batch_size}, s_qo {self.s_qo}, s_kv {self.s_kv:,}"


@dataclass(frozen=True)
class Section:
    """The shapes that share a server with a GPU.

    `keys` has the values of `SECTION_KEYS`, `major` the GPU's compute capability, `libraries` the packages that were measured.
    """

    keys: dict[str, Any]
    major: int
    libraries: tuple[str, ...]
    shapes: tuple[Shape, ...]
    too_big: str = ""  # which shapes do not count, since their KV cache is larger than the GPU's memory

    def shapes_of(self, kind: LayerKind) -> list[Shape]:
        """The shapes of one kind of layers."""
        return [shape for shape in self.shapes if shape.kind == kind]


def sections(data: Dataset) -> list[Section]:
    """The sections of a dataset, sorted.

    What no flag chooses for is left out: CPUs, trees, mixed batches, padded graphs, and shapes whose KV cache does not fit the GPU.
    """
    too_big = left_out(data, SECTION_KEYS)
    found = sections_of(data.records(_query()))
    return [replace(section, too_big=too_big.get(tuple(section.keys.values()), "")) for section in found]


def sections_of(records: Iterable[Record]) -> list[Section]:
    """The sections of rows, each with its problem's keys and what was measured of it. Rows of a CPU are in none."""
    by_section: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        by_section.setdefault(tuple(record[key] for key in SECTION_KEYS), []).append(record)
    ordered = sorted(by_section.items(), key=lambda part: tuple(map(str, part[0])))
    found = (_section(dict(zip(SECTION_KEYS, values, strict=True)), records) for values, records in ordered)
    return [section for section in found if section is not None]


def _query() -> str:
    return """
        SELECT problems.*, points.backend AS called, points.shown, points.status, points.own_us, points.median_us,
               points.rough, points.measured_as,
               rows.rel_err, rows.reason, rows.libraries, rows.compute_capability,
               coalesce(noise_floor, getvariable('noise_floor')) AS noise_floor, rest_layer_us, model_layers
        FROM points
        JOIN problems USING (problem)
        JOIN rows USING (row)
        LEFT JOIN cache_sizes USING (problem)
        LEFT JOIN noise ON noise.device_name = problems.device_name
            AND points.median_us > from_us AND points.median_us <= to_us
        LEFT JOIN measured_rest AS rest ON rest.model = problems.model AND rest.device_name = problems.device_name
            AND rest.tp = problems.tp AND rest.batch_size = problems.batch_size AND rest.s_qo = problems.s_qo
        WHERE problems.routine IN ('paged_decode', 'paged_prefill', 'ragged_prefill', 'mla') AND problems.mask = 'causal'
            AND problems.min_s_qo IS NULL AND problems.batch_spec IS NULL AND problems.graph_batch IS NULL
            AND problems.max_seq_len IS NULL AND NOT starts_with(problems.out_dtype, 'fp8')
            AND NOT coalesce(cache_bytes > memory_bytes, false)
            AND coalesce(rows.twin, 0) = 0 AND NOT is_reference(points.backend)
        ORDER BY points.row"""


def _section(keys: dict[str, Any], records: list[Record]) -> Section | None:
    """The rows with these keys as a section; None if they were not measured on a GPU."""
    capability = next((r["compute_capability"] for r in records if r["compute_capability"]), None)
    if capability is None:
        return None
    shapes: dict[tuple[Any, ...], Shape] = {}
    for record in records:
        shape = shapes.setdefault(_identity(record), _shape(record))
        shape.calls[(record["routine"], record["called"], record["q_dtype"].startswith("fp8"))] = _measured(record)
    libraries = sorted({part for r in records for part in (r["libraries"] or "").split(", ") if part})
    ordered = sorted(shapes.values(), key=lambda s: (s.kind, s.s_qo, s.batch_size, s.s_kv))
    return Section(keys, int(capability.split(".")[0]), tuple(libraries), tuple(ordered))


def _identity(record: Record) -> tuple[Any, ...]:
    """Which shape a row is of. Decode and drafts are of one shape whichever routine ran them."""
    paged = record["routine"] != "ragged_prefill"
    return (_phase(record), record["routine"] == "mla", paged, *(str(record[key]) for key in SHAPE_KEYS))


def _shape(record: Record) -> Shape:
    others = tuple(str(record[key]) for key in SHAPE_KEYS if key not in ("s_qo",))
    kind: LayerKind = (
        "mla_attention" if record["routine"] == "mla" else "full_attention" if record["window"] is None else "sliding_window"
    )
    page = record["page_size"] if record["routine"] != "ragged_prefill" else None
    sizes = (record["batch_size"], record["s_qo"], record["s_kv"])
    layer = record["rest_layer_us"], record["model_layers"]
    return Shape(_phase(record), kind, *sizes, page, others, record["kv_dtype"].startswith("fp8"), {}, layer)


def _phase(record: Record) -> Phase:
    if record["s_qo"] == 1 and record["s_kv"] > 1:
        return "decode"
    return "verify" if record["s_qo"] <= MAX_DRAFT and record["s_kv"] > record["s_qo"] else "prefill"


def _measured(record: Record) -> Measured:
    if record["status"] != "ok":
        return Measured(record["status"], record["reason"] or "", record["shown"])
    times = record["own_us"], record["median_us"]
    return Measured(
        "ok",
        "",
        record["shown"],
        *times,
        record["rel_err"],
        record["noise_floor"],
        bool(record.get("rough")),
        record.get("measured_as"),
    )


def phases_of(shapes: list[Shape]) -> Iterator[Phase]:
    """The phases that shapes belong to, each once, in the order of serving."""
    for phase in PHASES:
        if any(shape.phase == phase for shape in shapes):
            yield phase


def extent(values: Sequence[int]) -> str:
    """`8,192 to 131,072`, or the only value."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
