"""The chunked prefill of DeepSeek's models on FlashInfer: new tokens in one call, the context before them in chunks, and merges.

A prefill multiplies latents back to keys of 192 and values of 128 elements, for a chunk of the context at a time to save memory
(vLLM, `MLACommonImpl._compute_prefill_context`). All requests share a workspace of so many tokens in equal parts. A request with a
shorter context has empty chunks, whose log-sum-exp is minus infinity, and which must not count.

Here keys and values are given, so a chunk is gathered and not multiplied, new tokens too. Read from flashinfer-python 0.7.2.post1.
"""

# T = query tokens, B = batch_size, K = num_kv_heads, D = head_dim

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from kernels.adapter import Device, Inputs, Module, Need, Problem, QueryLengths, Runner
from kernels.lazy import Tensor, torch
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_calls import plan
from kernels.libraries.flashinfer_modules import MERGE_MODULE
from kernels.libraries.flashinfer_plans import parts_words
from kernels.libraries.flashinfer_wrappers import prepared
from kernels.problem.dtypes import HALF, size_bytes, torch_dtype
from kernels.problem.features import USUAL, Feature

VLLM_WORKSPACE = 64 * 1024  # tokens: the most that vLLM sets aside (`determine_chunked_prefill_workspace_size`)
Part = list[tuple[int, int]]  # from which token to which of each request; empty if both are equal


def parts_of(problem: Problem, workspace_tokens: int) -> list[Part]:
    """The new tokens of each request first, then the chunks of the contexts before them."""
    contexts = [kv - q for q, kv in zip(problem.q_lens, problem.kv_lens, strict=True)]
    size = chunk_size(problem, workspace_tokens)
    chunks = [[(min(at, end), min(at + size, end)) for end in contexts] for at in range(0, max(contexts), size)]
    return [list(zip(contexts, problem.kv_lens, strict=True)), *chunks]


def chunk_size(problem: Problem, workspace_tokens: int) -> int:
    """Tokens of each request in a chunk: an equal part of the workspace."""
    return max(1, workspace_tokens // problem.batch_size)


@dataclass(frozen=True, kw_only=True)
class Chunks(common.FlashInferAdapter):
    kernel: Literal["fa2", "fa3"]
    workspace_tokens: int
    routine: str = "ragged_prefill"
    query_lengths: QueryLengths = "varlen"
    takes_soft_cap: bool = True
    gives_lse: bool = True
    skips_unused: bool = True
    passes: frozenset[Feature] | None = (USUAL - {"scales of keys and values"}) | {"a soft cap of logits"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        architecture = Need("SM90 (fa3)", device.is_sm(9)) if self.kernel == "fa3" else common.needs_sm80(device)
        return (
            architecture,
            Need("fp16 or bf16 queries", p.q_dtype in HALF),
            Need("keys, values and output of the query's dtype", p.kv_dtype == p.output_dtype == p.q_dtype),
            Need("head_dims 64, 128, 256 or 192/128", (p.head_dim_qk, p.head_dim_vo) in common.FA3_HEAD_DIMS),
            common.needs_no_tree(p),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (common.prefill_module(problem, self.kernel), MERGE_MODULE)

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        gathered = max(min(self.workspace_tokens, p.num_kv_tokens), p.num_q_tokens) * p.kv_token_elements
        return common.WORKSPACE_BYTES + 2 * p.qo_bytes + size_bytes(p.kv_dtype, gathered) + 8 * p.num_kv_tokens

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        wrappers: list[Any] = []  # one for each part of the batch with the most parts so far
        return prepared(self, partial(self._planned, wrappers, common.workspace(inputs)), inputs, device)

    def _planned(self, wrappers: list[Any], scratch: Tensor, inputs: Inputs) -> Runner:
        """Plans a wrapper for each part of a batch. What is lacking is added to `wrappers`; a shorter batch leaves some unused."""
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        p, (out, lse) = inputs.problem, common.output_with_lse(inputs)
        one, one_lse = torch.empty_like(out), torch.empty_like(lse)
        merge, parts = common.in_place_merge(out, lse, one, one_lse), parts_of(p, self.workspace_tokens)
        wrappers += [BatchPrefillWithRaggedKVCacheWrapper(scratch, "NHD", backend=self.kernel) for _ in parts[len(wrappers) :]]
        room = tuple(cache.new_empty(max(sum(b - a for a, b in part) for part in parts), *cache.shape[2:]) for cache in inputs.kv)
        calls = [_call(wrappers[i], inputs, part, room, causal=p.mask == "causal" and i == 0) for i, part in enumerate(parts)]

        def launch() -> None:
            calls[0](out, lse)  # first, since every row has a key here: what is merged into it may be empty
            for call in calls[1:]:
                call(one, one_lse)
                merge()

        more: dict[str, Any] = {"kernel_config": self._config(p, wrappers[: len(calls)]), "rounded_merges": max(0, len(calls) - 2)}
        more |= {"lse": lse if p.return_lse else None, "lse_base": "2"}
        return Runner(launch, out, f"{self.kernel} over {len(calls)} parts", p.q_dtype, **more)

    def _config(self, problem: Problem, wrappers: list[Any]) -> str:
        """The size of a chunk, and what the plans of the new tokens and of the first chunk chose."""
        planned = {part: (wrapper, self.kernel) for part, wrapper in zip(("new", "first_chunk"), wrappers, strict=False)}
        return " ".join(filter(None, [f"chunk_tokens={chunk_size(problem, self.workspace_tokens)}", parts_words(planned)]))


def _call(wrapper: Any, inputs: Inputs, part: Part, room: tuple[Tensor, ...], *, causal: bool) -> Callable[[Tensor, Tensor], None]:
    """Plans a wrapper for these tokens. The call gathers them into `room`, [tokens, K, D] each, and attends to them."""
    p, device = inputs.problem, inputs.device
    starts = inputs.kv_indptr.tolist()
    tokens = torch.cat([torch.arange(first + a, first + b) for first, (a, b) in zip(starts, part, strict=False)]).to(device)
    lens = torch.tensor([b - a for a, b in part])
    indptr = torch.nn.functional.pad(lens.cumsum(0), (1, 0)).int().to(device)
    plan(
        wrapper, inputs.qo_indptr, indptr, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo, q_dtype=inputs.q.dtype,
        causal=causal, sm_scale=inputs.sm_scale, **common.soft_cap_argument(p), q_data_type=inputs.q.dtype,
        kv_data_type=inputs.kv[0].dtype, o_data_type=torch_dtype(p.output_dtype),
    )  # fmt: skip
    caches, gathered = [cache.squeeze(1) for cache in inputs.kv], [memory[: len(tokens)] for memory in room]

    def call(out: Tensor, lse: Tensor) -> None:
        for cache, memory in zip(caches, gathered, strict=True):
            torch.index_select(cache, 0, tokens, out=memory)
        wrapper.run(inputs.q, *gathered, out=out, lse=lse, return_lse=True)

    return call


ADAPTERS = (
    Chunks(name="fa2_chunks", kernel="fa2", workspace_tokens=VLLM_WORKSPACE),
    Chunks(name="fa2_chunks_8k", kernel="fa2", workspace_tokens=8 * 1024),
    Chunks(name="fa3_chunks", kernel="fa3", workspace_tokens=VLLM_WORKSPACE),
)
