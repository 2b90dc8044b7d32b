"""Which measured workloads no deployment on one GPU can have: their KV cache alone is larger than the memory of the GPU.

A row times one layer. A deployment keeps the cache of every layer that its GPU has, so a measured workload may be impossible there.
Weights of the model, activations and the engine itself need memory too, which is not counted: nobody here knows how much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kernels.problem.dtypes import SIZE_BITS
from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import percent
from orchestrator.analysis.sql import literal, query
from orchestrator.config.model import FULL, WINDOWED, layers_of, weights_on_gpu, window_of
from orchestrator.machines import known_devices

NO_ROOM = " does not fit one "
ROOM = 0.9  # of a GPU's memory: weights that take more leave next to none for a cache
OF_CACHE = ("device_name", "model", "tp", "kv_dtype")  # what decides, beside its lengths, how much memory a cache takes
SIZES = (2, 4, 8, 16)  # numbers of GPUs that share a model
BITS = " ".join(f"WHEN {literal(dtype)} THEN {bits}" for dtype, bits in SIZE_BITS.items())


def create(data: Dataset, layers: int | None) -> None:
    """`layer_kinds` of models, and `cache_sizes` (problem, cache_bytes, memory_bytes, layers), before the view `workloads`.

    `layers` of a GPU, None for all. Of a model with full and windowed layers each keeps its own tokens.
    """
    memory = {name: device.memory_bytes for device in known_devices().values() for name in (device.name, *device.match)}
    data.create_table("gpu_memory(device_name VARCHAR, memory_bytes DOUBLE)", memory.items())
    models = [model for (model,) in data.execute("SELECT DISTINCT model FROM problems WHERE model IS NOT NULL")]
    kinds = ((one, window_of(one), *(layers_of(one, of) for of in ([FULL], [WINDOWED], (FULL, WINDOWED)))) for one in models)
    columns = ", ".join(f"{name} BIGINT" for name in ("kept_by_windowed", "full_layers", "windowed_layers", "all_layers"))
    data.create_table(f"layer_kinds(model VARCHAR, {columns})", kinds)
    data.execute(query("cache_sizes", bits=BITS, layers=layers or "NULL"))


def no_room(layers: int | None, device_name: str, model: str | None, tp: int | None) -> str:
    """That a model's weights leave no room for a cache on one of `tp` GPUs, and from how many on they do; empty if they do."""
    known = (one for one in known_devices().values() if one.kind != "cpu")
    room = next((ROOM * one.memory_bytes for one in known if device_name in (one.name, *one.match)), None)
    sizes = {size: weights_on_gpu(model or "", size, layers) for size in (tp or 1, *(size for size in SIZES if size > (tp or 1)))}
    here = sizes[tp or 1]
    if room is None or here is None or here[0] <= room:
        return ""
    fits = next((size for size, needed in sizes.items() if needed and needed[0] <= room), None)
    taken, which, gpus = here
    of_all = (f"over {gpus} GPUs", f" per GPU ({taken * gpus / 1e9:,.0f} GB in all)") if gpus > 1 else (f"at tp {tp or 1}", "")
    weights = f"its {which} weights take {taken / 1e9:,.0f} GB{of_all[1]}"
    needs = f"{weights}, a KV cache more, and the GPU has {room / ROOM / 1e9:,.0f} GB"
    return f"{model} {of_all[0]}{NO_ROOM}{device_name}: {needs}{f'; they fit from tp {fits} on' if fits else ''}"


def _fits_from(cache: Record, memory_bytes: float, layers: int | None) -> str:
    """`; it fits beside 16-bit weights from tp 4 on: tp=4`; empty for one that more GPUs do not share, or not enough."""
    heads, tp = cache["heads"], cache["tp"]
    for size in (size for size in SIZES if size > tp):
        weights, which, _ = weights_on_gpu(cache["model"], size, layers) or (0, "", 0)
        if cache["bytes"] * max(1, heads * tp // size) / heads + weights <= memory_bytes:
            return f"; it fits{f' beside {which} weights' * bool(weights)} from tp {size} on: tp={size}"
    return ""


def left_out(data: Dataset, place: Sequence[str] = OF_CACHE, so: str = "do not count") -> dict[tuple[Any, ...], str]:
    """What is left out of each deployment for its size, in words, by the values of `place`. `so`: what becomes of it."""
    words: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for record in data.records(query("left_out", place=", ".join(place))):
        first, layers = record["first"], record["layers"]
        weight = f", with {percent(record['share'])} of the weight," if record["weighted"] else ""
        of_layers = f"of {layers} layers " if layers > 1 else ""
        words[tuple(record[key] for key in place)].append(
            f"{record['workloads']:,} of {record['whole']:,} measured workloads{weight} {so}: their KV cache {of_layers}alone is "
            f"larger than the GPU's {record['memory_bytes'] / 1e9:,.0f} GB (the smallest: {first['words']}"
            f"{_fits_from(first, record['memory_bytes'], data.draft.layers)}); if GPUs share the layers, type draft.layers=N"
        )
    return {values: "; ".join(several) for values, several in words.items()}
