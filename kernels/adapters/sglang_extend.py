"""SGLang's attention in Triton for drafts, prompts and chunks of them (`--attention-backend triton`): `extend_attention_fwd`.

Rules and the call read from SGLang 0.5.23 and 0.5.12.post1: `extend_attention.py`, and `forward_extend` of `triton_backend.py`,
which runs it for prompts and on CUDA devices for every target verify. It reads the context from the cache, and the keys and values
of the query tokens from tensors of their own. An engine has these as the output of its QKV product; here `NewTokens` copies them
from the cache, outside of what is timed.

A tree of drafts is a mask over all keys, of which the kernel reads the drafts' columns alone. SGLang hands one over for a chain
too; here a causal mask is none, and the tree `chain` is one.

Over an FP8 cache its arithmetic on the context is coarse, as that of SGLang's decode kernel: it rounds queries and probabilities to
the cache's dtype, without a scale (`_fwd_kernel`: `q.to(k.dtype)`, `p.to(v.dtype)`). New tokens keep 16 bits.

Keys of 192, as in DeepSeek's prompts, it multiplies as 128 + 64. Over an FP8 cache with values of up to 128, Triton 3.6 compiles
that wrongly for SM90: an H100 was off by 0.59 to 4.6, and right with Triton 3.7.1. The rule is that of other devices too.
"""

# T = query tokens of all requests, B = batch_size, H = num_qo_heads, K = stored KV heads, D = head_dim

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.contract.releases import Since, is_from
from kernels.inputs.copies import NewTokens
from kernels.inputs.masks import flat_custom
from kernels.inputs.rows import rows_of, token_rows
from kernels.lazy import torch
from kernels.libraries.engine_common import needs_of_triton
from kernels.libraries.flashinfer_common import window_left
from kernels.problem.dtypes import FP8, size_bytes
from kernels.problem.features import ALL_BUT_BLOCKS, Feature

TRITON = "triton"  # the compiler, which comes with torch


@dataclass(frozen=True, kw_only=True)
class SglangExtend(Adapter):
    routine: str = "paged_prefill"
    name: str = "sglang_triton"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"  # it reads tokens by request
    copies_new_tokens: bool = True
    # By the source no slot behind the last token is loaded; no GPU has shown it yet, so `skips_unused` stays False.
    distributions: tuple[str, ...] = ("sglang",)
    also_calls: tuple[str, ...] = (TRITON,)  # where the answer depends on its release
    rules_hold_for: tuple[str, ...] = ("sglang>=0.5.12.post1,<0.6",)
    imports: str = "sglang"
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS

    def distributions_for(self, problem: Problem) -> tuple[str, ...]:
        return self.all_distributions if _depends_on_triton(problem) else self.distributions

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        asked = problem.return_lse or problem.key_dim > 128 or problem.key_dim != problem.value_dim
        return (Since("0.5.23", "a log-sum-exp, keys of more than 128 or of another size than values", asked),)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        triton = dict(self.installed).get(TRITON)  # None in a plan for other machines
        is_compiled_right = not _depends_on_triton(p) or triton is None or is_from(triton, "3.7")
        return (
            *needs_of_triton(p, device),
            Need("head_dims of 16 or more", min(p.key_dim, p.value_dim) >= 16),
            # Its kernel pads a head_dim to a power of two, and Triton multiplies 32 elements of 8 bits or more.
            Need("with an FP8 cache, a head_dim of keys of more than 16", p.kv_dtype not in FP8 or p.key_dim > 16),
            Need("with an FP8 cache, keys of 192 and values of up to 128, Triton 3.7 or later", is_compiled_right),
            # SGLang's number is one less, and to the kernel 0 is no window.
            Need("no window of one token", p.window != 1),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        vectors = p.num_q_tokens * p.stored_kv_heads
        copies = size_bytes(p.q_dtype, vectors * (p.key_dim + p.value_dim))
        gathered = vectors * max(p.key_dim, p.value_dim)  # of keys or values at a time: as stored, and times their scale
        picked = size_bytes(p.kv_dtype, gathered) + (4 * gathered if p.kv_dtype in FP8 else 0)
        mask = 2 * sum(q * kv for q, kv in zip(p.q_lens, p.kv_lens, strict=True)) if p.tree else 0
        return copies + picked + 8 * p.num_kv_tokens + mask

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out, lse = inputs.problem, inputs.empty_output(), inputs.empty_lse()
        new = NewTokens(inputs)
        given: dict[str, Any] = {
            "q_extend": inputs.q, "k_extend": new.k, "v_extend": new.v, "o_extend": out, **_context(inputs),
            "qo_indptr": inputs.qo_indptr.long(),  # SGLang's has 64 bits for prompts
            **_mask(inputs), "max_len_extend": p.s_qo, "k_scale": inputs.k_scale, "v_scale": inputs.v_scale,
            "sm_scale": inputs.sm_scale, "logit_cap": p.soft_cap or 0.0, "sinks": inputs.sinks,
        }  # fmt: skip
        try:
            from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

            given |= {"lse_extend": lse, "page_size": 1}
        except ImportError:  # 0.5.12.post1
            from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd
        launch = partial(extend_attention_fwd, **given)
        launch()  # compiles
        # Operands of the context have the cache's dtype. New tokens, of which a prompt from its start consists, have the query's.
        compute_dtype = p.kv_dtype if p.num_kv_tokens > p.num_q_tokens else p.q_dtype
        return Runner(launch, out, "triton_extend", compute_dtype, lse=lse, copies=(new,))


def _depends_on_triton(p: Problem) -> bool:
    """Whether keys are multiplied in two parts of 8 bits, and values in a tile of up to 128."""
    return p.kv_dtype in FP8 and p.key_dim == 192 and p.value_dim <= 128


def _context(inputs: Inputs) -> dict[str, Any]:
    """The cache, and the tokens before a request's query tokens in it; with a window only those that its first one sees.

    `kv_indptr` is int32 [B + 1], `kv_indices` int64 [tokens], `window_kv_offsets` int32 [B]: how many tokens the window leaves out.
    """
    p = inputs.problem
    (k, step), (v, _) = (rows_of(p, cache) for cache in inputs.kv)  # [rows, K, D], with any stride between rows
    left, stop = window_left(p), inputs.kv_lens - inputs.q_lens
    first = torch.zeros_like(stop) if left < 0 else (stop - left).clamp(min=0)
    starts, rows = token_rows(inputs, step, first, stop)
    return {
        "k_buffer": k, "v_buffer": v, "kv_indptr": starts, "kv_indices": rows, "sliding_window_size": left,
        "window_kv_offsets": first if left >= 0 else None,
    }  # fmt: skip


def _mask(inputs: Inputs) -> dict[str, Any]:
    """For a tree: bool [sum of q_len * kv_len], a request after another, row by row, and int64 [B + 1], where each begins."""
    p = inputs.problem
    if p.tree is None:
        return {"custom_mask": None, "mask_indptr": None, "is_causal": p.mask != "full"}
    sizes = inputs.q_lens.long() * inputs.kv_lens.long()
    return {
        "custom_mask": flat_custom(p, inputs.device),
        "mask_indptr": torch.nn.functional.pad(sizes.cumsum(0), (1, 0)),
        "is_causal": True,  # its kernel asks the mask instead
    }


ADAPTERS = (SglangExtend(), SglangExtend(routine="mla", name="sglang_triton_extend"))
