"""Definitions of attention: what their names say, and the file of a definition if it is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.untrusted.door import from_json
from orchestrator.untrusted.files import read_bytes

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
MAX_BYTES = 1_000_000  # of a definition's file


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


def find(name: object, root: Path) -> Definition:
    """A definition by its name. Its file under `definitions/` counts where it is at hand, and the name's parts otherwise.

    Raises ValueError for an operation that this project does not have, and for a file that cannot be read.
    """
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
        parsed = from_json(read_bytes(file, MAX_BYTES))
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
