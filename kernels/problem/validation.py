"""What keys a problem may have together, and the message for each that it may not. Pure Python."""

from __future__ import annotations

import math
from typing import Any

from kernels.problem import batch_spec
from kernels.problem.batch_spec import MAX_REQUESTS
from kernels.problem.fields import ProblemFields
from kernels.problem.routine import Routine, routine_of

PLAIN_MASKS = ("causal", "full", "prefix")
WIDEST_SCALE = 64  # times 1/sqrt(head_dim_qk), or its inverse: models have 1 (head_dim 512) to 1/128 (head_dim 128)
OF_EVERY_ROUTINE = {"routine", "routine_axes", "model", "tp", "seed", "page_size", "enable_pdl"}  # a model brings its page size
PADDED_ROUTINES = ("paged_decode", "paged_prefill", "mla")  # of which engines capture graphs of several requests
KEYLESS_ROUTINES = (*PADDED_ROUTINES, "ragged_prefill")  # whose batches may have requests without keys


def with_listed_lengths(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys with the lengths that their `batch_spec` lists. Raises ValueError if a key contradicts them."""
    listed = batch_spec.keys_of(keys["batch_spec"])
    for key, value in listed.items():
        if key != "batch_spec" and keys.get(key, value) != value:
            raise ValueError(f"{key}={keys[key]!r}: batch_spec={keys['batch_spec']!r} says {value}; leave {key} out")
    return keys | listed


def names_usual_scale(keys: dict[str, Any]) -> bool:
    """Whether the keys give the softmax scale that no key would give, 1/sqrt(head_dim_qk), as fp32 has it."""
    scale, dim = keys.get("softmax_scale"), keys.get("head_dim_qk")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not isinstance(dim, int):
        return False
    if not 0 < scale <= 1 or not 1 <= dim < 2**31:  # beyond, and of too many digits for a square root
        return False
    return math.isclose(scale, 1 / math.sqrt(dim), rel_tol=2**-24)


def require_consistent(problem: ProblemFields) -> None:
    """Raises ValueError with a message for the user if keys of a problem do not fit together."""
    if own := routine_of(problem.routine):
        _require_own_keys(problem, own)
        own.check(problem)
        return
    if problem.routine_axes is not None:
        raise ValueError(f"routine_axes={problem.routine_axes!r}: routine={problem.routine} has no axes of its own; leave it out")
    for check in (_lengths, _room, _heads, _mask, _latent, _shared_prefix, _states, _dtypes, _padding, _scale, _memory):
        check(problem)


def _require_own_keys(p: ProblemFields, own: Routine) -> None:
    """Raises ValueError for a key that this routine does not have, unless it says what no key would say."""
    for name, field in type(p).model_fields.items():
        if name in own.keys or name in OF_EVERY_ROUTINE or field.is_required() or getattr(p, name) == field.default:
            continue
        raise ValueError(
            f"{name}={getattr(p, name)!r}: routine={own.name} has no {name}; leave it out, or type one of its own keys: "
            f"{', '.join(sorted({*own.keys, *own.axes}))}"
        )


def _lengths(p: ProblemFields) -> None:
    for key, requests in (("batch_size", p.batch_size), ("graph_batch", p.graph_batch or 0)):
        several = p.seq_lens != "fixed" or p.min_s_qo is not None or p.window is not None or key == "graph_batch"
        if several and requests > MAX_REQUESTS:
            raise ValueError(
                f"{key}={requests}: allowed: up to {MAX_REQUESTS:,} for requests of several lengths, a window or a graph"
            )
    if p.seq_lens == "listed" and p.batch_spec is None:
        raise ValueError("seq_lens='listed': allowed with a batch_spec, which lists them; type fixed or random, or give batch_spec")
    lacks_keys = p.batch_spec is not None and not all(kv for _, _, kv in batch_spec.parse(p.batch_spec))
    if lacks_keys and p.routine not in KEYLESS_ROUTINES:
        where = f"allowed without keys (s0) with routine {', '.join(KEYLESS_ROUTINES)}, not {p.routine}"
        raise ValueError(f"batch_spec={p.batch_spec!r}: {where}")
    if p.s_qo > p.s_kv and p.mask == "full" and p.window is not None:
        raise ValueError(f"window={p.window}: allowed with s_qo <= s_kv, where each query token has a key of its own")
    if p.s_qo > p.s_kv and p.mask != "full":
        raise ValueError(
            f"s_qo={p.s_qo} is greater than s_kv={p.s_kv}; allowed: s_qo <= s_kv, since s_kv counts the s_qo "
            f"draft tokens too; and any s_qo with mask=full, as in cross attention. Type sweep.s_qo=[...] with smaller values, "
            f"or add an exclude rule for these points"
        )
    if p.min_s_qo is not None and p.min_s_qo > p.s_qo:
        raise ValueError(
            f"s_qo={{min: {p.min_s_qo}, max: {p.s_qo}}}: allowed: a min that is at most max, such as {{min: 1, max: 8}}"
        )


def _room(p: ProblemFields) -> None:
    if p.max_seq_len is not None and p.max_seq_len < p.s_kv:
        raise ValueError(
            f"max_seq_len={p.max_seq_len} is less than s_kv={p.s_kv}; allowed: s_kv or more, the longest request that the engine "
            f"serves, or null for the batch's own longest. Type sweep.max_seq_len=[...] with larger values, or add an exclude rule"
        )


def _heads(p: ProblemFields) -> None:
    if p.num_qo_heads % p.num_kv_heads:
        raise ValueError(
            f"num_qo_heads={p.num_qo_heads} does not divide by num_kv_heads={p.num_kv_heads}; "
            f"allowed: a multiple of num_kv_heads, such as {p.num_kv_heads * 8}"
        )


def _mask(p: ProblemFields) -> None:
    if (p.mask in PLAIN_MASKS) != (p.tree is None):
        raise ValueError(f"mask={p.mask!r}: allowed: {', '.join(PLAIN_MASKS)}, or the name of a tree in conf/trees")
    if p.tree is not None and (
        len(p.tree) != p.s_qo or p.tree[0] != -1 or any(not 0 <= parent < i for i, parent in enumerate(p.tree) if i)
    ):
        raise ValueError(
            f"mask={p.mask!r}: tree {list(p.tree)} for s_qo={p.s_qo}; allowed: s_qo parents, -1 and then earlier tokens"
        )
    if p.mask == "prefix" and (p.mask_prefix is None or not 1 < p.mask_prefix <= p.s_qo):
        raise ValueError(
            f"mask_prefix={p.mask_prefix}: mask=prefix needs it, the tokens that see one another both ways; allowed: 2 to "
            f"s_qo={p.s_qo}; type +sweep.mask_prefix=[{max(2, p.s_qo // 2)}]"
        )
    if p.window is not None and p.has_custom_mask:
        raise ValueError(f"window={p.window}: allowed only with mask=causal or full, not with mask={p.mask!r}")


def _latent(p: ProblemFields) -> None:
    given = p.head_dim_ckv is not None and p.head_dim_kpe is not None
    if p.latent and not given:
        raise ValueError(
            f"head_dim_ckv: routine={p.routine} needs head_dim_ckv and head_dim_kpe; type model=deepseek_v3, or give both"
        )


def require_latent(p: ProblemFields) -> None:
    """Raises ValueError if lengths, heads or scale of a problem over a latent do not fit together."""
    for check in (_lengths, _heads, _latent, _scale):
        check(p)


def _shared_prefix(p: ProblemFields) -> None:
    if p.shared_prefix is None:
        if p.routine == "cascade":
            raise ValueError("shared_prefix: routine=cascade needs it, a whole number of pages; type sweep.shared_prefix=[2048]")
        return
    if p.routine != "cascade":
        raise ValueError(f"shared_prefix={p.shared_prefix}: allowed only with routine=cascade, not with routine={p.routine}")
    if p.window is not None:
        raise ValueError(f"window={p.window}: routine=cascade takes none; a window leaves a shared prefix behind")
    if p.shared_prefix % p.page_size:
        raise ValueError(
            f"shared_prefix={p.shared_prefix}: allowed: whole pages, that is, a multiple of page_size={p.page_size}, "
            f"such as {-(-p.shared_prefix // p.page_size) * p.page_size}"
        )
    shortest = p.s_kv - p.s_qo if p.batch_spec is None else min(kv - q for q, kv in batch_spec.lengths(p.batch_spec))
    if p.shared_prefix > shortest:
        raise ValueError(
            f"shared_prefix={p.shared_prefix}: allowed: at most the shortest request's context, which is {shortest} tokens "
            f"(s_kv without its query tokens); give a longer s_kv"
        )


def _states(p: ProblemFields) -> None:
    if p.routine == "merge_states" and p.num_states is None:
        raise ValueError("num_states: routine=merge_states needs it, the partial answers to merge; type sweep.num_states=[2,4,8]")
    if p.routine != "merge_states" and p.num_states is not None:
        raise ValueError(f"num_states={p.num_states}: allowed only with routine=merge_states, not with routine={p.routine}")
    if p.num_states is not None and p.num_states > p.s_kv:
        raise ValueError(
            f"num_states={p.num_states}: allowed: at most s_kv={p.s_kv}, so that the longest request has keys for each"
        )


def _dtypes(p: ProblemFields) -> None:
    if "nvfp4" in (p.q_dtype, p.output_dtype):
        raise ValueError("dtype nvfp4: allowed only for keys and values; type sweep.dtype=[{q: bf16, kv: nvfp4}]")
    if "fp8_ds_mla" in (p.q_dtype, p.kv_dtype, p.output_dtype):
        raise ValueError("dtype fp8_ds_mla: allowed for the cache of routine=sparse_mla; type kv: fp8_e4m3, or +sweep=sparse_mla")
    dims = (p.head_dim_qk, p.head_dim_vo)
    if p.kv_dtype == "nvfp4" and (p.latent or any(dim % 16 for dim in dims)):
        raise ValueError(f"kv_dtype=nvfp4 with head_dims {dims}: allowed: multiples of 16 (a block has one scale), and no mla")


def _padding(p: ProblemFields) -> None:
    if p.graph_batch is None:
        return
    if p.graph_batch < p.batch_size:
        raise ValueError(
            f"graph_batch={p.graph_batch} is less than batch_size={p.batch_size}; allowed: batch_size or more, the requests that "
            f"the CUDA graph was captured for, or null for the batch itself. Type sweep.graph_batch=[...] with larger values, or "
            f"add an exclude rule"
        )
    if p.routine not in PADDED_ROUTINES:
        raise ValueError(f"graph_batch={p.graph_batch}: allowed with routine {' or '.join(PADDED_ROUTINES)}, not {p.routine}")
    if p.min_s_qo is not None:
        raise ValueError(
            f"graph_batch={p.graph_batch}: allowed if all requests have the same number of query tokens, as in the graphs that "
            f"engines pad; type s_qo={p.s_qo}"
        )


def _scale(p: ProblemFields) -> None:
    usual = p.head_dim_qk**-0.5
    if p.softmax_scale is not None and not usual / WIDEST_SCALE <= p.softmax_scale <= usual * WIDEST_SCALE:
        raise ValueError(
            f"softmax_scale={p.softmax_scale:g}: allowed: {usual / WIDEST_SCALE:.3g} to {usual * WIDEST_SCALE:.3g}, that is, "
            f"1/sqrt(head_dim_qk) times 1/{WIDEST_SCALE} to {WIDEST_SCALE}; null is 1/sqrt(head_dim_qk)"
        )


def _memory(p: ProblemFields) -> None:
    if p.kv_memory == "paired":
        return
    plain = p.paged and not p.latent and p.num_states is None and p.kv_dtype != "nvfp4"
    if not plain or p.head_dim_qk != p.head_dim_vo:
        raise ValueError(
            f"kv_memory={p.kv_memory}: allowed with pages of keys and values of one head_dim that a kernel reads, not with "
            f"routine={p.routine}, head_dims {p.head_dim_qk} and {p.head_dim_vo}, kv_dtype={p.kv_dtype}; type kv_memory=paired"
        )
    if p.kv_memory == "degenerate" and p.num_kv_heads != 1:
        raise ValueError(f"kv_memory=degenerate: allowed with num_kv_heads=1, not {p.num_kv_heads}; type kv_memory=padded")
