"""Reads flashinfer-trace: workloads as points, by their tensors' lengths or split evenly; evaluations as rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from kernels.device import Device
from kernels.problem import Problem, batch_spec
from orchestrator import machines
from orchestrator.errors import UserError
from orchestrator.formats import imported
from orchestrator.formats.flashinfer_trace.safetensors import read_vector
from orchestrator.formats.flashinfer_trace.writer import AUTHOR
from orchestrator.point import Point, fingerprint
from orchestrator.remainder import Remainder
from orchestrator.storage.row import Row, Status, finish
from orchestrator.untrusted.door import from_json
from orchestrator.untrusted.files import read_bytes, read_text

HEADS, LATENT, PAGE = r"h(?P<h>\d+)_kv(?P<kv>\d+)_d(?P<d>\d+)", r"ckv(?P<ckv>\d+)_kpe(?P<kpe>\d+)", r"_ps(?P<ps>\d+)"
TABLE = "(?P<table>trtllm|xqa)_batch"
# Of the public data set, and those that FlashInfer writes by itself (flashinfer/trace/templates/attention.py): its wrappers' names
# leave `_causal` out, and the calls behind XQA and trtllm-gen have page tables.
NAMES = (
    ("paged_decode", re.compile(f"(?:gqa_paged|{TABLE})_decode_{HEADS}{PAGE}")),
    ("paged_prefill", re.compile(f"(?:gqa_paged_prefill(?:_causal)?|{TABLE}_context)_{HEADS}{PAGE}")),
    ("ragged_prefill", re.compile(f"gqa_ragged_(?:prefill_)?(?:causal_)?{HEADS}")),
    ("mla", re.compile(rf"mla_paged_(?:decode|prefill|prefill_causal)_h(?P<h>\d+)_{LATENT}{PAGE}")),
    ("mla", re.compile(rf"{TABLE}_decode_mla_(?:dense_|ragged_)?h(?P<h>\d+)_d_qk\d+_{LATENT}_nope(?P<nope>\d+){PAGE}")),
)
AXES = {"num_qo_heads": "h", "num_kv_heads": "kv", "head_dim": "d", "page_size": "ps", "head_dim_ckv": "ckv", "head_dim_kpe": "kpe"}
OF_TABLES = {"num_qo_heads": "num_heads", "head_dim_ckv": "kv_lora_rank", "head_dim_kpe": "qk_rope_head_dim"}  # their names there
ALLOWED = "gqa_paged_decode_*, gqa_paged_prefill_*, gqa_ragged_*, mla_paged_*, trtllm_batch_*, xqa_batch_*"
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
ENDS = {"": "bf16", "_fp8e4m3": "fp8_e4m3"}  # of a name, and the dtypes of queries and cache
TENSORS = {"q_dtype": ("q", "q_nope", "query"), "kv_dtype": ("k_cache", "k", "ckv_cache", "kv_cache")}
NOPE, VALUES = 128, 128  # of DeepSeek, whose softmax scale the definitions of MLA name: 1/sqrt(128 + 64)
MAX_DEFINITION = 1_000_000  # bytes of its file
Rule = dict[str, Any]
Lengths = tuple[list[int], list[int]]  # query and KV tokens of each request

MAX_REQUESTS = 100_000
MAX_BYTES = 256 * 10**6
GIVE = "give a file of flashinfer-trace's workloads or traces"
ORIGIN = "flashinfer_trace"  # `orchestrator_version` of an imported row
MISMATCHES = ("INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE")
STATUSES: dict[str, Status] = {
    "PASSED": "ok",
    **dict.fromkeys(MISMATCHES, "mismatch"),
    **dict.fromkeys(("RUNTIME_ERROR", "COMPILE_ERROR"), "failed"),
    "TIMEOUT": "timeout",
}
SCALE_ERROR = 1e-3  # relative; float32 and the digits that were printed


def read(path: str) -> tuple[list[Rule], str]:
    """A rule for each different workload, and what was assumed and left out in words. Raises UserError if none is left."""
    rest, root = Remainder(path), root_of(Path(path))
    found: dict[str, Rule] = {}
    taken = exact = 0
    for number, trace in traces_of(path, rest):
        rule = rest.collect(number, partial(rule_of, trace, root))
        if rule is not None and rest.problem(number, {**rule[0]}) is not None:
            taken, exact = taken + 1, exact + rule[1]
            found[json.dumps(rule[0], sort_keys=True)] = rule[0]
            if trace.get("evaluation"):
                rest.add(number, "with an evaluation, which becomes a row without +sweep and mode=plan", str(trace.get("solution")))
    left = rest.close(taken, GIVE)
    even = f"; {taken - exact} of {taken} workloads without their tensors, whose lengths are split evenly" if exact < taken else ""
    return list(found.values()), f"workloads of flashinfer-trace ({path}{even}{left})"


def traces_of(path: str, rest: Remainder) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The traces of a file with their lines. Raises UserError if it has no lines."""
    lines = [(n, line) for n, line in enumerate(read_text(path, "import", MAX_BYTES).split("\n"), 1) if line.strip()]
    if not lines:
        raise UserError(f"import={path}: it has no lines; {GIVE}, one JSON object a line")
    return rest.each(lines, _trace)


def _trace(line: str) -> Mapping[str, Any]:
    trace = from_json(line)
    if not isinstance(trace.get("workload"), dict):
        hint = "; type traffic=FILE for lengths of requests" if "input_length" in trace else ""
        raise ValueError(f"no workload in it; allowed: a trace with definition and workload{hint}")
    return trace


def root_of(path: Path) -> Path:
    """The folder of the trace set, which paths in a workload start from: the one that holds `workloads/`."""
    parents = path.resolve().parents
    return next((parent.parent for parent in parents if parent.name in ("workloads", "traces")), parents[0])


def rule_of(trace: Mapping[str, Any], root: Path) -> tuple[Rule, bool]:
    """The keys of a workload's problem, and whether its lengths are exact. Raises ValueError in words."""
    definition = definition_of(trace.get("definition"), root)
    axes, inputs = (trace["workload"].get(key) for key in ("axes", "inputs"))
    if not isinstance(axes, dict) or not isinstance(inputs, dict):
        raise ValueError("workload: axes and inputs are needed, each a mapping")
    tensors = _tensors(inputs, root)
    if definition.has_table:
        lengths = _of_table(definition, axes, inputs, tensors)
    else:
        lengths = _exact(definition, axes, tensors) if tensors else _even(definition, axes)
    batch = batch_spec.name(_checked(*lengths, least=0 if tensors else 1))
    keys = definition.keys | batch_spec.keys_of(batch) | {"mask": "causal", "sinks": False}
    if "page_size" in keys and not definition.has_table:
        keys |= _order(tensors)
    return keys | _scale(definition, inputs), bool(tensors)


def _scale(definition: Definition, inputs: Mapping[str, Any]) -> Rule:
    """The softmax scale, if one is given. That of a call over FP8 tables holds the cache's scale as well."""
    given = inputs.get("sm_scale", inputs.get("bmm1_scale") if definition.keys["kv_dtype"] in ("bf16", "fp16") else None)
    value, usual = given.get("value") if isinstance(given, dict) else None, definition.keys["head_dim_qk"] ** -0.5
    is_usual = value is None or (isinstance(value, int | float) and math.isclose(value, usual, rel_tol=SCALE_ERROR))
    return {} if is_usual else {"softmax_scale": value}


def _tensors(inputs: Mapping[str, Any], root: Path) -> dict[str, list[int]]:
    """The vectors of lengths that are at hand, by name. None of them counts if one of their files is absent."""
    found = {}
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "seq_lens", "cum_seq_lens_q"):
        source = inputs.get(name)
        if not isinstance(source, dict) or source.get("type") != "safetensors":
            continue
        path, key = source.get("path"), source.get("tensor_key")
        if not isinstance(path, str) or not isinstance(key, str):
            raise ValueError(f"{name}: a safetensors input needs path and tensor_key, both text")
        file = (root / path).resolve()
        if not file.is_relative_to(root):
            raise ValueError(f"{name}: path={path!r} leads out of {root.name}/; allowed: a path inside the trace set")
        if not file.is_file():
            return {}
        found[name] = read_vector(file, key)
    return found if found.keys() & {"kv_indptr", "seq_lens"} else {}


def _of_table(
    definition: Definition, axes: Mapping[str, Any], inputs: Mapping[str, Any], tensors: Mapping[str, list[int]]
) -> Lengths:
    """Lengths beside a page table, or all as long as the longest, or as the table is wide."""
    if (kvs := tensors.get("seq_lens")) is None:
        given = {name: inputs[name]["value"] for name in ("max_seq_len", "max_kv_len") if "value" in (inputs.get(name) or {})}
        longest = _whole(given, next(iter(given))) if given else _whole(axes, "max_pages_per_seq") * definition.page_size
        kvs = [longest] * _requests(axes)
    if not 1 <= len(kvs) <= MAX_REQUESTS:
        raise ValueError(f"seq_lens: {len(kvs):,} requests; allowed: 1 to {MAX_REQUESTS:,}")
    if "cum_seq_lens_q" in tensors:
        queries = _differences("cum_seq_lens_q", tensors["cum_seq_lens_q"])
    else:
        total = _whole(axes, "q_len_per_request") * len(kvs) if "q_len_per_request" in axes else _whole(axes, "num_tokens")
        queries = _split(total, len(kvs))
    return queries, kvs


def _exact(definition: Definition, axes: Mapping[str, Any], tensors: Mapping[str, list[int]]) -> Lengths:
    pages = _differences("kv_indptr", tensors["kv_indptr"])
    queries = [1] * len(pages) if definition.is_decode else _differences("qo_indptr", tensors.get("qo_indptr", []))
    last = tensors.get("kv_last_page_len", [definition.page_size] * len(pages))
    if definition.page_size > 1 and ("kv_last_page_len" not in tensors or len(last) != len(pages)):
        raise ValueError("kv_last_page_len: one number a request is needed with pages of several tokens")
    if wrong := [tokens for count, tokens in zip(pages, last, strict=True) if not min(count, 1) <= tokens <= definition.page_size]:
        raise ValueError(f"kv_last_page_len={wrong[0]}: allowed: 1 to page_size {definition.page_size}")
    kvs = [(count - 1) * definition.page_size + tokens if count else 0 for count, tokens in zip(pages, last, strict=True)]
    total = axes.get("num_kv_indices", axes.get("total_kv"))
    if total is not None and total != sum(pages):
        raise ValueError(f"kv_indptr ends at {sum(pages)} and the axes say {total}")
    return queries, kvs


def _order(tensors: Mapping[str, list[int]]) -> Rule:
    """The order of pages if they are at hand: `sequential` if those of each request follow one another in memory."""
    indices, indptr = tensors.get("kv_indices", []), tensors.get("kv_indptr", [])
    if not indptr or len(indices) < indptr[-1]:
        return {}
    parts = (indices[start:end] for start, end in pairwise(indptr))
    return {"page_order": "sequential" if all(b == a + 1 for part in parts for a, b in pairwise(part)) else "random"}


def _even(definition: Definition, axes: Mapping[str, Any]) -> Lengths:
    """Lengths from the sums alone, as even as they can be. Pages of several tokens count as full."""
    batch = _requests(axes)
    total = _whole(axes, "num_kv_indices" if "num_kv_indices" in axes else "total_kv")
    queries = batch if definition.is_decode else _whole(axes, "total_q")
    kvs = [pages * definition.page_size for pages in _split(total, batch)]
    return _split(queries, batch), kvs


def _requests(axes: Mapping[str, Any]) -> int:
    if not axes.keys() & {"batch_size", "len_indptr"}:
        raise ValueError("axes: batch_size or len_indptr is needed")
    batch = _whole(axes, "batch_size") if "batch_size" in axes else _whole(axes, "len_indptr") - 1
    if not 1 <= batch <= MAX_REQUESTS:
        raise ValueError(f"axes: a batch of {batch} requests; allowed: 1 to {MAX_REQUESTS:,}")
    return batch


def _split(total: int, parts: int) -> list[int]:
    share, rest = divmod(total, parts)
    return [share + (i < rest) for i in range(parts)]


def _whole(axes: Mapping[str, Any], key: str) -> int:
    value = axes.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise ValueError(f"axes.{key}={value!r}: allowed: a whole number")
    return value


def _differences(name: str, offsets: list[int]) -> list[int]:
    if not 2 <= len(offsets) <= MAX_REQUESTS + 1 or offsets[0] != 0:
        raise ValueError(f"{name}: allowed: offsets from 0 on, one more than there are requests")
    if min(found := [b - a for a, b in pairwise(offsets)]) < 0:
        raise ValueError(f"{name}: the offsets fall; allowed: offsets that never fall")
    return found


def _checked(queries: list[int], kvs: list[int], *, least: int) -> list[tuple[int, int]]:
    """The lengths of each request. Raises ValueError if one has no query token, fewer than `least` KV tokens, or too few."""
    if len(queries) != len(kvs):
        raise ValueError(f"queries of {len(queries)} requests and keys of {len(kvs)}; allowed: as many of both")
    for query, kv in zip(queries, kvs, strict=True):
        if query < 1 or kv < least:
            raise ValueError(f"a request with {query} query and {kv} KV tokens; allowed: at least one of each")
        if query > kv > 0:
            why = "since they count the query tokens. Such workloads were captured on a prefix only"
            raise ValueError(f"a request with {query} query tokens over {kv} KV tokens; allowed: as many KV tokens or more, {why}")
    return list(zip(queries, kvs, strict=True))


def rows_of(path: str, device: Device | None, sweep: str) -> list[Row]:
    """A row for each evaluation, the last of a solution at a workload. Raises UserError if none is left."""
    rest, root = Remainder(path), root_of(Path(path))
    common = imported.common(path, read_bytes(path, MAX_BYTES), sweep, ORIGIN)
    rows: dict[str, Row] = {}
    for number, (row, status, words) in rest.each(traces_of(path, rest), lambda trace: _row(trace, root, device, common)):
        reason = f"imported: line {number} of {common['cluster']}, {words}"
        rows[row["point_id"] + row["device_name"]] = finish(row, status, reason)
    rest.close(len(rows), GIVE)
    return list(rows.values())


def _row(trace: Mapping[str, Any], root: Path, device: Device | None, common: Row) -> tuple[Row, Status, str]:
    """The row of a trace, its status, and a word on it. Raises ValueError for a value without a counterpart."""
    evaluation, solution = trace.get("evaluation"), str(trace.get("solution"))
    if not isinstance(evaluation, dict):
        raise ValueError("no evaluation; +sweep.backend=[auto] makes a point of its workload")
    if (word := str(evaluation.get("status"))) not in STATUSES:
        raise ValueError(f"evaluation.status={word!r:.80}: allowed: {', '.join(STATUSES)}")
    keys, is_exact = rule_of(trace, root)
    environment, status, us = _mapping(evaluation, "environment"), STATUSES[word], None
    own = solution.removeprefix(f"{AUTHOR}_").removesuffix(f"_{trace['definition']}")
    libs = {name: str(version) for name, version in _mapping(environment, "libs").items()}
    error = _mapping(evaluation, "correctness").get("max_relative_error")
    if status == "ok":
        us = imported.microseconds("latency_ms", _mapping(evaluation, "performance").get("latency_ms"))
    backend = own if solution.startswith(AUTHOR) else solution
    row: Row = {
        **imported.timed(Point(Problem.model_validate(keys), backend, fingerprint([ORIGIN, solution])), us, common),
        "device_name": _device_name(str(environment.get("hardware", "")).replace("_", " "), device),
        "torch_version": libs.get("torch"),
        "cuda": libs.get("cuda"),
        "libraries": ", ".join(f"{k} {v}" for k, v in sorted(libs.items()) if k not in ("torch", "cuda", AUTHOR)) or None,
        "check": f"not_checked: imported; its max_relative_error is {error!r:.40}",
        "timer": f"{ORIGIN}, which does not say how",
    }
    return row, status, word if is_exact else f"{word}, lengths split evenly"


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _device_name(hardware: str, device: Device | None) -> str:
    """The driver's name of the GPU, of which traces may have the first words. Raises ValueError for another than `device`."""
    known = [device] if device is not None else machines.known_devices().values()
    found = next((one.name for one in known for name in (one.name, *one.match) if hardware and name.startswith(hardware)), None)
    if found is None and (device is not None or not hardware):
        raise ValueError(f"evaluation.environment.hardware={hardware!r:.80}: allowed: {device.name if device else 'a GPU'}")
    return found or hardware


@dataclass(frozen=True)
class Definition:
    """One definition: its name, whether its requests have one query token each, and the keys of a problem that it fixes.

    With `has_table` its pages are in a table, with the length of each request beside it, else in lists with offsets.
    """

    name: str
    is_decode: bool
    keys: dict[str, Any]
    has_table: bool = False

    @property
    def page_size(self) -> int:
        """Tokens in a page; 1 for a ragged cache."""
        return int(self.keys.get("page_size", 1))


def definition_of(name: object, root: Path) -> Definition:
    """A definition by its file under `definitions/`, else by its name. Raises ValueError for no operation here, and a bad file."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_]{1,200}", name):
        raise ValueError(f"definition={str(name)[:80]!r}: allowed: the name of a definition, of letters, digits and _")
    matches = ((routine, pattern.match(name)) for routine, pattern in NAMES)
    routine, found = next(((routine, found) for routine, found in matches if found), ("", None))
    if found is None:
        raise ValueError(f"definition={name}: no operation of this project; allowed: {ALLOWED}")
    if (end := name[found.end() :]) not in ENDS:
        raise ValueError(f"definition={name}: {end!r} is not known at the end of such a name; allowed: nothing or _fp8e4m3")
    groups = found.groupdict()
    parts = {axis: int(groups[part]) for axis, part in AXES.items() if part in groups}
    parts, dtypes = _of_file(name, root, parts, dict.fromkeys(("q_dtype", "kv_dtype"), ENDS[end]))
    nope, has_table = int(groups.get("nope") or NOPE), bool(groups.get("table"))
    keys = _keys(routine, parts, NOPE if nope == parts.get("head_dim_ckv") else nope)  # some say the absorbed one
    if has_table:
        keys.pop("kv_layout", None)
    return Definition(name, "_decode_" in name and not has_table, {**keys, **dtypes}, has_table)


def _keys(routine: str, axes: dict[str, int], nope: int) -> dict[str, Any]:
    keys: dict[str, Any] = {"routine": routine, **axes}
    if routine == "mla":
        return keys | {"num_kv_heads": axes["num_qo_heads"], "head_dim_qk": nope + axes["head_dim_kpe"], "head_dim_vo": VALUES}
    keys |= dict.fromkeys(("head_dim_qk", "head_dim_vo"), keys.pop("head_dim"))
    return keys | {"kv_layout": "NHD"} if "page_size" in axes else keys  # [num_pages, page_size, num_kv_heads, head_dim]


def _of_file(name: str, root: Path, axes: dict[str, int], dtypes: dict[str, str]) -> tuple[dict[str, int], dict[str, str]]:
    """The constant axes and the dtypes of a definition's file, or those given if there is none."""
    file = next((root / "definitions").glob(f"*/{name}.json"), None)
    if file is None:
        return axes, dtypes
    try:
        parsed = from_json(read_bytes(file, MAX_DEFINITION))
        constants = parsed["axes"]
        written = {axis: constants[axis if axis in constants else OF_TABLES[axis]]["value"] for axis in axes}
        inputs = {key: parsed["inputs"][key]["dtype"] for keys in TENSORS.values() for key in keys if key in parsed["inputs"]}
    except (OSError, ValueError, KeyError, TypeError):
        words = f"is no definition with the axes {', '.join(axes)}; correct it or move it away"
        raise ValueError(f"definition={name}: {file.name} {words}") from None
    if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in written.values()):
        raise ValueError(f"definition={name}: {file.name} has a constant axis that is no whole number above 0")
    if wrong := [key for key, dtype in inputs.items() if dtype not in DTYPES]:
        raise ValueError(f"definition={name}: {wrong[0]} has the dtype {inputs[wrong[0]]!r}; allowed: {', '.join(DTYPES)}")
    found = {kind: [DTYPES[inputs[key]] for key in keys if key in inputs] for kind, keys in TENSORS.items()}
    return written, dtypes | {kind: several[0] for kind, several in found.items() if several}
