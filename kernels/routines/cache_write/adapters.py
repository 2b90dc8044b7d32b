"""What writes a cache in vLLM and with FlashInfer, and the formula in PyTorch.

Read from flashinfer-python 0.7.2.post1 (`page.py`, `rope.py`, `data/include/flashinfer/page.cuh`, `pos_enc.cuh`), from vLLM 0.25.1
and 0.33.0 (`v1/attention/ops/triton_reshape_and_cache_flash.py`, the operators that both wheels register), and from
`csrc/libtorch_stable/cache_kernels.cu` of vllm-project/vllm, commit 00eb0c8.

vLLM gets the slot of each token, FlashInfer its request, its position and pages: an engine makes either once a step. Without rope
an engine has rotated keys and queries in a kernel of its own before.
"""

# T = new tokens, K = KV heads, H = query heads, P = pages, N = slots a page, D = head_dim

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from kernels.adapter import Adapter, Device, Module, Need, Problem, QueryLengths, Runner
from kernels.contract.runner import Restored
from kernels.inputs.guards import guarded_output
from kernels.inputs.tensors import bits, rounded
from kernels.lazy import Tensor, torch
from kernels.libraries.engine_common import VLLM_READ
from kernels.libraries.flashinfer_common import MAX_THREADS, READ_ONLY, needs_sm80
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.problem.dtypes import FP8, HALF, SIZE_BITS
from kernels.problem.features import Feature
from kernels.routines.cache_write.inputs import WriteInputs
from kernels.routines.cache_write.problem import sizes

CHECKED = 16  # bytes that the check takes for an element of the cache, of rows and of queries
ROTATED_AT_ONCE = 32  # elements of a thread and of what they are rotated with
PAGE, ROPE = (flashinfer_module(name) for name in ("page:gen_page_module", "rope:gen_rope_module"))


@dataclass(frozen=True, kw_only=True)
class Write(Adapter):
    """What all backends of this routine share."""

    routine: str = "cache_write"
    query_lengths: QueryLengths = "varlen"
    passes: frozenset[Feature] | None = frozenset(
        {"query lengths that differ", "KV lengths that differ", "scales of keys and values"}
    )

    def workspace_bytes(self, problem: Problem) -> int:
        p, own = problem, sizes(problem)
        return CHECKED * (own.pages * p.page_size * own.elements + p.num_q_tokens * (own.elements + own.queries))

    def prepare(self, inputs: WriteInputs, device: Device) -> Runner:  # type: ignore[override]
        made = [guarded_output(tuple(one.shape), inputs.problem.kv_dtype, inputs.device) for one in (inputs.pool, inputs.q)]
        launch, restored = self.call(inputs, *made), Restored(made[0], inputs.pool)
        return Runner(launch, made[0], self.name, "fp32", lse=made[1] if inputs.q.numel() else None, restore=(restored,))

    @abstractmethod
    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor) -> Callable[[], object]:
        """What writes into `cache`, and with rope into `queries`."""


@dataclass(frozen=True, kw_only=True)
class TorchWrite(Write):
    """Rotation as a product of complex numbers, a division, and PyTorch's own rounding."""

    name: str = "torch_write"
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor) -> Callable[[], object]:
        by_slot, neox = inputs.by_slot(cache), inputs.problem.axis("rope") == "neox"

        def launch() -> None:
            new, q = inputs.new.float(), inputs.q.float()
            if queries.numel():
                turn = torch.complex(*(one.contiguous() for one in inputs.angles[inputs.position.long()].chunk(2, -1)))
                for rows in inputs.rotating(new, q):
                    both = torch.stack(rows.chunk(2, -1), -1) if neox else rows.contiguous().view(*rows.shape[:-1], -1, 2)
                    found = torch.view_as_real(torch.view_as_complex(both) * turn.view(len(rows), *(1,) * (rows.dim() - 2), -1))
                    rows.copy_((found.transpose(-1, -2) if neox else found).flatten(-2))
                queries.copy_(rounded(q / inputs.q_scale, cache.dtype))
            by_slot[inputs.at] = rounded(new / inputs.scale, cache.dtype).view(by_slot.dtype)

        return launch


@dataclass(frozen=True, kw_only=True)
class FlashInferAppend(Write):
    """`append_paged_kv_cache`, or of a latent `append_paged_mla_kv_cache`: copies what was quantised before."""

    name: str = "flashinfer_append"
    distributions: tuple[str, ...] = ("flashinfer-python",)
    imports: str = "flashinfer"
    rules_hold_for: tuple[str, ...] = READ_ONLY
    of: tuple[Module, ...] = (PAGE,)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, apart, bits_of = problem, problem.head_dim_ckv is None, SIZE_BITS[problem.kv_dtype]
        threads = p.num_kv_heads * p.head_dim_qk // max(int(128 / bits_of), p.head_dim_qk // 32)
        return (
            needs_sm80(device),
            Need("keys that are rotated before (rope=none)", p.axis("rope") == "none"),
            Need("new keys of the cache's dtype, in 8 or 16 bits", p.q_dtype == p.kv_dtype and p.kv_dtype in HALF | FP8),
            Need("head_dim 64, 128, 256 or 512", not apart or p.head_dim_qk in (64, 128, 256, 512)),
            Need(f"up to {MAX_THREADS} threads for the heads of a token", not apart or threads <= MAX_THREADS),
            _latent_need(p),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return self.of

    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor) -> Callable[[], object]:
        return _append(inputs, cache, *inputs.split(inputs.new))


def _latent_need(p: Problem) -> Need:
    return Need("a latent of 512 + 64", p.head_dim_ckv is None or (p.head_dim_ckv, p.head_dim_kpe) == (512, 64))


def _append(inputs: WriteInputs, cache: Tensor, *rows: Tensor) -> Callable[[], object]:
    from flashinfer import page

    where, tables = (inputs.request, inputs.position), (inputs.kv_indices, inputs.kv_indptr, inputs.last_page_len)
    if inputs.problem.head_dim_ckv:
        return partial(page.append_paged_mla_kv_cache, *rows, *where, *inputs.split(cache), *tables)
    return partial(page.append_paged_kv_cache, *rows, *where, inputs.split(cache), *tables, inputs.problem.kv_layout)


@dataclass(frozen=True, kw_only=True)
class FlashInferRopeAppend(FlashInferAppend):
    """`rope_quantize_fp8_append_paged_kv_cache`: rotates and quantises keys and queries, and writes keys and values, in one kernel.

    It has one scale for keys and values. With `apart` it is two kernels, `rope_quantize_fp8` and `append_paged_mla_kv_cache`: of
    keys and values the first would leave the values.
    """

    name: str = "flashinfer_rope_append"
    of: tuple[Module, ...] = (ROPE,)
    apart: bool = False

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            needs_sm80(device),
            Need("rope=neox or interleaved", p.axis("rope") != "none"),
            Need("keys in fp16 or bf16 into an FP8 cache", p.q_dtype in HALF and p.kv_dtype in FP8),
            Need(f"a head_dim that is a multiple of {ROTATED_AT_ONCE}", sizes(p).rotated % ROTATED_AT_ONCE == 0),
            Need("a latent, which has no values of its own", not self.apart or p.head_dim_ckv is not None),
            _latent_need(p),
        )

    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor) -> Callable[[], object]:
        from flashinfer import rope

        p, latent, (first, second) = inputs.problem, inputs.problem.head_dim_ckv is not None, inputs.split(inputs.new)
        given: dict[str, Any] = {"cos_sin_cache": inputs.angles, "pos_ids": inputs.position, "is_neox": p.axis("rope") == "neox"}
        given |= {"quant_scale_q": 1 / inputs.q_scale, "quant_scale_kv": 1 / float(inputs.scale.flatten()[0])}
        parts = [inputs.split(one) if latent else (None, one) for one in (inputs.q, queries)]
        given |= dict(zip(("q_nope", "q_rope", "q_nope_out", "q_rope_out"), (*parts[0], *parts[1]), strict=True))
        given |= {"k_nope": first, "k_rope": second} if latent else {"k_nope": None, "k_rope": first}
        if not self.apart:
            given |= {"v": None if latent else second, "paged_kv_cache": inputs.split(cache), "page_size": p.page_size}
            given |= {"kv_indices": inputs.kv_indices, "kv_indptr": inputs.kv_indptr, "kv_layout": p.kv_layout}
            given |= {"batch_indices": inputs.request, "positions": inputs.position}
            return partial(rope.rope_quantize_fp8_append_paged_kv_cache, **given)
        k_nope, k_rope = inputs.split(inputs.new.to(cache.dtype))
        append = _append(inputs, cache, k_nope, k_rope)
        return lambda: (rope.rope_quantize_fp8(**given, k_nope_out=k_nope, k_rope_out=k_rope), append())


@dataclass(frozen=True, kw_only=True)
class VllmWrite(Write):
    """`reshape_and_cache_flash` of FLASH_ATTN, or of a latent `concat_and_cache_mla`: operators of vLLM's compiled library.

    With `triton` TRITON_ATTN's `triton_reshape_and_cache_flash`: copies FP8 keys too (seen on an H200); not called by MLA (read).
    """

    name: str = "vllm_write"
    distributions: tuple[str, ...] = ("vllm",)
    rules_hold_for: tuple[str, ...] = VLLM_READ
    imports: str = "vllm"
    triton: bool = False

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, quantises = problem, problem.q_dtype != problem.kv_dtype
        return (
            needs_sm80(device),
            Need("keys that are rotated before (rope=none)", p.axis("rope") == "none"),
            Need("new keys in 16 or 32 bits", p.q_dtype not in FP8 or (self.triton and p.q_dtype == "fp8_e4m3")),
            Need("a cache of the new keys' dtype, or fp8_e4m3", not quantises or p.kv_dtype == "fp8_e4m3"),
            Need("keys and values, not a latent", not self.triton or p.head_dim_ckv is None),
            Need("one scale for all heads (scales=tensor)", not self.triton or p.axis("scales") == "tensor"),
            Need("SM90 or later for an FP8 cache", not self.triton or p.kv_dtype not in FP8 or device.major >= 9),
        )

    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor) -> Callable[[], object]:
        p, kind, rows = inputs.problem, "fp8" if inputs.quantises else "auto", inputs.split(inputs.new)
        scales = [one.flatten()[: None if p.axis("scales") == "head" else 1] for one in inputs.scale]
        import_module("vllm._C_stable_libtorch")  # registers the operators
        operators, stored = torch.ops._C_cache_ops, cache if self.triton else bits(cache)
        if p.head_dim_ckv and not self.triton:
            return partial(operators.concat_and_cache_mla, *rows, stored, inputs.slot, kind, inputs.scale)
        caches = inputs.by_slot(cache).view(stored.dtype).unbind(2)  # [P, N, K, D] each
        if not self.triton:
            return partial(operators.reshape_and_cache_flash, *rows, *caches, inputs.slot, kind, *scales)
        module = import_module("vllm.v1.attention.ops.triton_reshape_and_cache_flash")
        return partial(module.triton_reshape_and_cache_flash, *rows, *caches, inputs.slot, kind, *scales)


ADAPTERS = (
    FlashInferAppend(),
    FlashInferRopeAppend(),
    FlashInferRopeAppend(name="flashinfer_rope_then_append", apart=True, of=(ROPE, PAGE)),
    VllmWrite(),
    VllmWrite(name="vllm_triton_write", triton=True),
    TorchWrite(),
)
