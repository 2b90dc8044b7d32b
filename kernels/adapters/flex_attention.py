"""PyTorch's FlexAttention over the cache as it lies: a block mask lists the pages, and `mask_mod` turns rows into positions.

This is how engines use it: the whole cache is one long sequence of rows, shared by all requests. On CUDA torch.compile makes a
Triton kernel of it. On a CPU nothing is compiled or fused: all scores of all rows are computed, so the rule allows only small
problems there.
"""

# B = batch_size, T = query tokens of all requests, Q = s_qo, H = num_qo_heads, K = stored KV heads, P = pages, N = slots a page

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.inputs.rows import rows_of
from kernels.lazy import Tensor, torch
from kernels.problem.features import ALL_BUT_BLOCKS, Feature
from kernels.problem.fields import ANY_MEMORY, KvMemory

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


PASSES: frozenset[Feature] = (ALL_BUT_BLOCKS - {"attention sinks", "scales of keys and values"}) | {"a prefix mask"}
QUERY_TILE = 128  # query tokens of one row of the block mask
RAGGED_BLOCK = 128  # keys of one block where there are no pages
CPU_ELEMENTS = 2**27  # the unfused implementation keeps a few tensors of this size, in fp32


@dataclass(frozen=True, kw_only=True)
class FlexAttention(Adapter):
    name: str = "flex_attention"
    query_lengths: QueryLengths = "varlen"
    reads_memory: frozenset[KvMemory] = ANY_MEMORY - {"padded"}  # from page to page it counts blocks of a page
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_prefix_mask: bool = True
    takes_more_queries: bool = True
    takes_soft_cap: bool = True
    max_seq_len: EngineMaximum = "unread"  # its block mask lists the pages in use
    takes_no_keys: bool = True  # "Handle fully masked out rows" (torch/_inductor/kernel/flex): 0
    takes_empty: bool = True  # vLLM captures full graphs with it (FLEX_ATTENTION), whose padded requests have no token
    # `skips_unused` stays False: a masked key has the probability 0, but its value is still multiplied by it.
    distributions: tuple[str, ...] = ("torch",)
    passes: frozenset[Feature] | None = PASSES

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, on_cpu = problem, device.kind == "cpu"
        elements = p.num_pages * p.slots_per_page * p.kv_token_elements
        return (
            Need("a CPU, or a CUDA device of SM80 or later", on_cpu or device.major >= 8),
            Need("fp16 or bf16 queries, or fp32 ones on a CPU", p.q_dtype in ("fp16", "bf16") or (on_cpu and p.q_dtype == "fp32")),
            # Other dtypes are converted by recent versions of torch alone, and FP8 without a scale of its own.
            Need("keys, values and output of the query's dtype", p.kv_dtype == p.output_dtype == p.q_dtype),
            # Triton multiplies no fewer than 16 keys at once, and a block of keys cannot cross a page.
            Need("on CUDA a page_size that is a multiple of 16", on_cpu or not p.paged or p.page_size % 16 == 0),
            Need("on CUDA head_dims of 16 or more", on_cpu or min(p.head_dim_qk, p.head_dim_vo) >= 16),
            # The kernel for long queries computes offsets in 32 bits. The decode kernel is meant to take 64, but does not compile
            # then (torch 2.11 on an H100: "inconsistent types int64 and int32"); its template is the same in torch 2.13.
            Need("on CUDA a cache of up to 2^31 elements", on_cpu or elements <= 2**31),
            Need("on a CPU a small problem, since nothing is fused there", not on_cpu or _unfused_elements(p) <= CPU_ELEMENTS),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        tiles, blocks = -(-p.s_qo // QUERY_TILE), -(-p.s_kv // _block_size(p)) + 1
        tables = 48 * tiles * blocks + 4 * (p.num_pages if p.paged else 0)  # a request; int64 while they are made
        padded = 6 * p.s_qo * p.num_qo_heads * (p.head_dim_qk + p.head_dim_vo)  # a request; sums are fp32
        splits = 2**26  # the decode kernel makes no more than two splits a multiprocessor
        return splits + p.batch_size * (tables + padded)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        import torch._dynamo.config as limits

        p, out = inputs.problem, inputs.empty_output()
        on_cpu = inputs.device.type == "cpu"
        kernel = "unfused" if on_cpu else "decoding" if _decodes(p) else "attention"
        options = {} if on_cpu else options_of(p)
        attend = _uncompiled() if on_cpu else _compiled("inductor")
        (keys, step), (values, _) = (rows_of(p, cache) for cache in inputs.kv)
        keys, values = (rows.transpose(0, 1)[None] for rows in (keys, values))  # [1, K, rows, D]
        # No block of the mask names the rows between two pages.
        mask = _block_mask(inputs, step, keys.shape[2])
        load, store = _batch(inputs, out)

        capped = None if (cap := p.soft_cap) is None else lambda score, *_place: cap * (score / cap).tanh()
        how: dict[str, Any] = {"score_mod": capped, "block_mask": mask, "scale": inputs.sm_scale}
        how |= {"enable_gqa": True, "kernel_options": options}

        def launch() -> None:
            store(attend(load(), keys, values, **how))

        # Each shape is compiled once, here. Torch's limit of 8 shapes is meant for programs that compile by accident.
        with limits.patch(recompile_limit=2**20, accumulated_recompile_limit=2**20):
            launch()
        config = options_words(options)
        return Runner(launch, out, resolved_backend=f"flex_{kernel}", compute_dtype=p.q_dtype, kernel_config=config)


@cache
def _compiled(backend: str) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Tensor] = torch.compile(flex_attention, backend=backend, dynamic=False, fullgraph=True)
    return compiled


@cache
def _uncompiled() -> Callable[..., Tensor]:
    """FlexAttention's own unfused implementation. The compiler would trace each shape for half a second, and then call it too."""
    from torch.nn.attention import flex_attention as flex

    def attend(*args: Any, **keys: Any) -> Tensor:
        # The switch that FlexAttention names for this; without it, it compiles itself.
        with patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
            attended: Tensor = flex.flex_attention(*args, **keys)
        return attended

    return attend


def _decodes(p: Problem) -> bool:
    """Whether FlexAttention takes its decode kernel: all query heads of a KV head in one tile, which must fit a row of the mask."""
    group = p.num_qo_heads // p.num_kv_heads
    tile = group * (1 << (p.s_qo - 1).bit_length())
    return p.s_qo < QUERY_TILE and group & (group - 1) == 0 and tile <= QUERY_TILE


def options_of(p: Problem) -> dict[str, Any]:
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": not _decodes(p)}
    if p.paged:
        options["BLOCK_N"] = min(64, p.page_size & -p.page_size)  # a power of two that divides a page
    return options


def options_words(options: Mapping[str, Any]) -> str:
    """The keys of one block, if they are given. The other option says which kernel runs, as the kernel's own name does."""
    return f"BLOCK_N={options['BLOCK_N']}" if "BLOCK_N" in options else ""


def _block_size(p: Problem) -> int:
    return p.page_size if p.paged else RAGGED_BLOCK


def _unfused_elements(p: Problem) -> int:
    """Elements of the largest tensor without fusion: the scores, or the keys spread over requests and query heads."""
    # Rows between the keys of two pages: see `rows_of`.
    rows = p.num_pages * p.page_size * 2 * (p.num_kv_heads if p.kv_layout == "HND" else 1) if p.paged else p.num_kv_tokens
    return p.batch_size * p.num_qo_heads * rows * max(p.s_qo, p.head_dim_qk, p.head_dim_vo)


def _block_mask(inputs: Inputs, step: int, rows: int) -> BlockMask:
    """For each request and tile of queries, the blocks of rows with a key that it may see, in the order of positions.

    No block is declared full, though most are: the decode kernel would then split the length of the cache, not of the request.
    """
    from torch.nn.attention.flex_attention import BlockMask

    p, size, device = inputs.problem, _block_size(inputs.problem), inputs.device
    first, stop = _seen(inputs)  # [B, tiles]
    if not p.paged:
        first, stop = first + inputs.kv_indptr[:-1, None], stop + inputs.kv_indptr[:-1, None]
    begin = first // size
    count = (-(-stop // size) - begin).clamp(min=0)  # [B, tiles]
    nth = torch.arange(max(1, int(count.max())), device=device)
    block = begin[..., None] + nth  # [B, tiles, blocks]
    listed = nth < count[..., None]
    if p.paged:
        table = inputs.page_table[:, : -(-p.s_kv // p.page_size)].long()
        block = table.gather(1, block.flatten(1).clamp(max=table.shape[1] - 1)).view(block.shape) * (step // size)
    return BlockMask.from_kv_blocks(
        count[:, None].int(),
        torch.where(listed, block, 0)[:, None].int(),
        BLOCK_SIZE=(QUERY_TILE, size),
        mask_mod=_mask_mod(inputs, step),
        seq_lengths=(p.s_qo, rows),
        compute_q_blocks=False,  # only a backward pass reads them
    )


def _seen(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The first position that a tile of queries may see, and the one behind the last: two tensors [B, tiles]."""
    p = inputs.problem
    query = torch.arange(0, p.s_qo, QUERY_TILE, device=inputs.device)
    at = (inputs.kv_lens - inputs.q_lens).long()[:, None] + query  # position of a tile's first query
    stop = inputs.kv_lens.long()[:, None].expand_as(at)
    if p.tree is None and p.mask == "causal":
        stop = torch.minimum(stop, at + QUERY_TILE)
    first = torch.zeros_like(at) if p.window is None else (at - p.window + 1).clamp(min=0)
    return first, stop


def _mask_mod(inputs: Inputs, step: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether query `j` of request `b` sees the key in a row of the cache."""
    p, lens, visible = inputs.problem, inputs.kv_lens, inputs.visible if inputs.problem.tree is not None else None
    context, window, causal = lens - inputs.q_lens, p.window, p.tree is None and p.mask != "full"
    both_ways = p.mask_prefix or 0
    starts = inputs.kv_indptr
    position = _pages(inputs, step) if p.paged else lambda b, row: row - starts[b]

    def mask(b: Tensor, h: Tensor, j: Tensor, row: Tensor) -> Tensor:
        key = position(b, row)
        seen = (key >= 0) & (key < lens[b])
        if visible is not None:
            draft = key - context[b]
            seen = seen & ((draft < 0) | visible[j, draft.clamp(0, p.s_qo - 1)])
        if causal:
            seen = seen & ((key <= context[b] + j) | ((j < both_ways) & (key < context[b] + both_ways)))
        if window is not None:
            seen = seen & (key > context[b] + j - window)
        if window is not None and not causal:
            seen = seen & (key < context[b] + j + window)
        return seen

    return mask


def _pages(inputs: Inputs, step: int) -> Callable[[Tensor, Tensor], Tensor]:
    """From a row of the cache to the position in request `b`; negative if the row is none of its tokens."""
    import torch  # itself, which the compiler knows

    n, table = inputs.problem.page_size, inputs.page_table
    column = torch.arange(table.shape[1], device=table.device)
    request, page = (column < -(-inputs.kv_lens // n)[:, None]).nonzero(as_tuple=True)
    logical = torch.full((len(table), inputs.kv[0].shape[0]), -1, dtype=torch.int32, device=table.device)  # [B, P]
    logical[request, table[request, page].long()] = page.int()

    def position(b: Tensor, row: Tensor) -> Tensor:
        page, slot = logical[b, row // step], row % step
        return torch.where(slot < n, page * n + slot, -1)  # a page of another request is -1, so its slots are negative

    return position


def _batch(inputs: Inputs, out: Tensor) -> tuple[Callable[[], Tensor], Callable[[Tensor], object]]:
    """Two functions: queries [T, H, D] to [B, H, Q, D], and the attended back into `out`. Lengths that differ are padded."""
    p, q = inputs.problem, inputs.q
    shape = (p.batch_size, p.s_qo, p.num_qo_heads, -1)
    if p.num_q_tokens == p.batch_size * p.s_qo:
        queries, output = q.view(shape).transpose(1, 2), out.view(shape)
        return (lambda: queries), (lambda attended: output.copy_(attended.transpose(1, 2)))
    nth = torch.arange(p.s_qo, device=q.device)
    padded = (inputs.qo_indptr[:-1, None] + nth).clamp(max=p.num_q_tokens - 1).flatten()  # [B * Q] into T
    kept = (nth < inputs.q_lens[:, None]).flatten().nonzero().squeeze(1)  # [T] into B * Q
    return (lambda: q[padded].view(shape).transpose(1, 2), lambda attended: out.copy_(attended.transpose(1, 2).flatten(0, 1)[kept]))


ADAPTERS = tuple(FlexAttention(routine=routine) for routine in ("paged_decode", "paged_prefill", "ragged_prefill"))
