"""Reads the attention lists of InferenceX's OperatorX as points: JSON, a list of operations with their shapes and dtypes.

experimental/operatorx in https://github.com/SemiAnalysisAI/InferenceX: ops/attention.py has the arguments, testlists/attention.json
about 2,300 shapes of production. An operation names no backend and no page size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kernels.problem import default_output
from orchestrator.config.engine import MAX_DRAFT
from orchestrator.errors import NotTaken, UserError
from orchestrator.remainder import Remainder
from orchestrator.untrusted.door import any_json
from orchestrator.untrusted.files import read_text

Rule = dict[str, Any]

MHA, MLA = "attention_mha", "attention_mla"
MAX_BYTES = 64 * 10**6
OF_WEIGHTS = frozenset({"nvfp4", "int4"})  # its lists have the precision of the weights there
ROUNDED = "with queries of 4 bits, as no kernel has them; taken as those of the output, in MLA of the latent"
DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8_e4m3"}
PAGE_SIZE = 64  # of a paged cache whose pages it does not name
SHAPE = ("batch_size", "seq_len_q", "seq_len_kv", "num_heads")
NEEDED = {
    MHA: frozenset({*SHAPE, "num_heads_kv", "head_dim"}),
    MLA: frozenset({*SHAPE, "head_dim_qk_nope", "head_dim_qk_rope", "head_dim_v", "kv_lora_rank"}),
}
OF_DTYPES = frozenset({"dtype_q", "dtype_k", "dtype_v", "dtype_kv", "dtype_o"})
OPTIONS = OF_DTYPES | {"causal", "sliding_window", "rope", "kv_layout", "block_size"}


def read(path: str) -> tuple[list[Rule], str]:
    """A rule for each different operation, and what was assumed and left out in words. Raises UserError if none is left."""
    entries = any_json(read_text(path, "import", MAX_BYTES))
    if not isinstance(entries, list) or not entries:
        raise UserError(f"import={path}: no list of operations; give an attention list of OperatorX, [{{type: {MHA}, args: ...}}]")
    rest, found = Remainder(path, "operation"), dict[str, Rule]()
    for number, keys in rest.each(enumerate(entries, 1), _keys):
        if rest.problem(number, keys) is not None:
            found[json.dumps(keys, sort_keys=True)] = keys
            if (query := entries[number - 1]["args"].get("dtype_q")) in OF_WEIGHTS:
                rest.add(number, ROUNDED, query)
    left = rest.close(len(found), f"the number after the file is that of the operation, from 1; allowed: {MHA}, {MLA}")
    return list(found.values()), f"{len(found):,} different operations of {path}, over pages of {PAGE_SIZE} tokens{left}"


def _keys(entry: object) -> Rule:
    """The keys of an operation's problem. Raises ValueError for an argument that is missing or has no counterpart."""
    kind, args = (str(entry.get("type")), entry.get("args")) if isinstance(entry, Mapping) else ("None", None)
    if kind not in NEEDED:
        raise NotTaken("of other types", kind[:80])
    if not isinstance(args, Mapping):
        raise ValueError(f"args={args!r:.80}: allowed: a mapping of {', '.join(sorted(NEEDED[kind]))}")
    if missing := sorted(NEEDED[kind] - args.keys()):
        raise ValueError(f"args: {missing[0]} is missing")
    if unknown := sorted(map(str, args.keys() - NEEDED[kind] - OPTIONS)):
        raise ValueError(f"args.{unknown[0]} has no counterpart here")
    if wrong := sorted(key for key in NEEDED[kind] if type(args[key]) is not int):
        raise ValueError(f"args.{wrong[0]}={args[wrong[0]]!r:.80}: allowed: a whole number")
    latent, q_len, kv_len = kind == MLA, args["seq_len_q"], args["seq_len_kv"]
    is_prompt = q_len == kv_len and q_len != 1
    cached = "mla" if latent else "paged_decode" if q_len <= MAX_DRAFT else "paged_prefill"
    keys = {
        "routine": "ragged_prefill" if is_prompt else cached,
        "batch_size": args["batch_size"],
        "s_qo": q_len,
        "s_kv": kv_len,
        "num_qo_heads": args["num_heads"],
        "num_kv_heads": args["num_heads" if latent else "num_heads_kv"],  # of MLA before absorption
        "head_dim_qk": args["head_dim_qk_nope"] + args["head_dim_qk_rope"] if latent else args["head_dim"],
        "head_dim_vo": args["head_dim_v" if latent else "head_dim"],
        "mask": "causal" if args.get("causal", True) else "full",
        "window": args.get("sliding_window"),
        "sinks": False,
        **_dtypes(args, latent, is_prompt),
    }
    if is_prompt:
        return keys
    if latent:
        keys |= {"head_dim_ckv": args["kv_lora_rank"], "head_dim_kpe": args["head_dim_qk_rope"]}
    return {**keys, "page_size": args.get("block_size") or PAGE_SIZE}


def _dtypes(args: Mapping[str, Any], latent: bool, is_prompt: bool) -> dict[str, object]:
    """Dtypes of queries, cache and output. MLA's queries are as its latent, its prompts as the output."""
    out, cache = args.get("dtype_o", "bf16"), args.get("dtype_k", args.get("dtype_kv", "bf16"))
    query = args.get("dtype_q", "bf16")
    if args.get("dtype_v", cache) != cache:
        raise ValueError(f"args.dtype_v={args['dtype_v']!r}: allowed: that of the keys, {cache!r}")
    if latent and is_prompt:
        query = cache = out
    elif query in OF_WEIGHTS:
        query = cache if latent else out
    for key, word in (("dtype_k", cache), ("dtype_q", query), ("dtype_o", out)):
        if word not in DTYPES:
            raise ValueError(f"args.{key}={word!r}: allowed: {', '.join(DTYPES)}")
    usual = default_output(DTYPES[query])
    return {"q_dtype": DTYPES[query], "kv_dtype": DTYPES[cache], "out_dtype": None if usual == DTYPES[out] else DTYPES[out]}
