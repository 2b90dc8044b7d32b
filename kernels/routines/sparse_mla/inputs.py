"""The tensors of sparse MLA: a paged latent, the index sets, and each query token as a request over pages of one token.

Tokens that no query token chose hold a large number in every element, so a kernel that follows a wrong index, or -1, is wrong by
all of its output in half of its heads. Chosen ones hold planted keys, as in `mla`; one that several query tokens share is planted
for one of them. Besides, the own token of each query token is planted for the one before it, which must not see it.
"""

# B = batch_size, T = query tokens of all requests, P = pages, N = slots a page, D = D_ckv + D_kpe, k = top_k
from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial

from kernels.inputs import Inputs
from kernels.inputs.generate import UNUSED_ENTRY, UNUSED_SLOT, draw_tables, empty_inputs, fill_normal, poison_unused_slots
from kernels.inputs.sentinel_keys import move, plant
from kernels.inputs.sentinel_logit import PLANTED, queries_at, target_products
from kernels.inputs.tensors import bits, generator_of, offsets, query_size, slots, turned
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.routines.sparse_mla.packed import PART, PackedLatent, decoded
from kernels.routines.sparse_mla.problem import DS_MLA, QueryRows, chosen, query_rows

WATCHED = 2**16  # slots that nobody chose and that are filled before each check, at most
DRAWN_AT_ONCE = 2**17  # tokens


@dataclass(frozen=True)
class RowInputs(Inputs):
    """Each query token as a request over pages of one token: `page_table` int32 [T, k] has the slots of its tokens.

    `positions` int64 [T, k] says where they stand in the request, -1 behind the last. `unchosen` int64 [n] are slots that no query
    token chose: those beside one that was chosen, and of the others as many as `WATCHED` allows.
    """

    positions: Tensor
    unchosen: Tensor
    stored: Inputs  # the batch by requests

    @property
    def unused_slots(self) -> tuple[Tensor, Tensor]:
        return self.unchosen, torch.zeros_like(self.unchosen)


@dataclass(frozen=True)
class SparseInputs(Inputs):
    """The batch as it is stored, with `indices` int32 [T, k]: slot `page * N + slot` of each chosen token, and -1.

    `rows` has the same memory, with each query token as a request. -1 stands behind the indices of a query token, with
    `index_padding=within` among them.
    """

    indices: Tensor
    rows: RowInputs

    @cached_property
    def packed(self) -> PackedLatent:
        """The cache as fp8_ds_mla, which all backends of the problem read."""
        return PackedLatent(self.rows.kv[0], self.problem.num_pages, self.rows.kv_indices)

    @property
    def unused_slots(self) -> tuple[Tensor, Tensor]:
        n = self.problem.page_size
        return self.rows.unchosen // n, self.rows.unchosen % n


def draw(problem: Problem, device: torch.device | str) -> SparseInputs:
    """As `kernels.inputs.generate.draw`."""
    rows = query_rows(problem)
    own = {"routine": "mla", "routine_axes": None, "kv_dtype": rows.kv_dtype}
    cached = Problem.model_construct(**{**{name: getattr(problem, name) for name in Problem.model_fields}, **own})
    stored, k = empty_inputs(cached, device), int(problem.axis("top_k") or 1)
    cache = stored.kv[0].view(rows.num_pages, 1, 1, problem.key_dim)
    tensors = {**vars(stored), "kv": (cache, cache[..., : problem.value_dim]), "problem": rows}

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    t = problem.num_q_tokens
    tensors |= {
        "page_table": empty(t, k), "q_lens": empty(t), "qo_indptr": empty(t + 1), "kv_lens": empty(t), "kv_indptr": empty(t + 1),
        "kv_indices": empty(rows.num_listed_pages), "last_page_len": empty(t),
        "positions": empty(t, k, dtype=torch.int64), "unchosen": empty(0, dtype=torch.int64), "stored": stored,
    }  # fmt: skip
    draw_tables(stored, generator := generator_of(problem, device))
    by_row = RowInputs(**tensors)
    _choose(stored, by_row, generator)
    by_row = replace(by_row, unchosen=_beside(by_row))
    inputs = SparseInputs(**{**vars(stored), "problem": problem, "indices": empty(t, k), "rows": by_row})
    redraw(inputs)
    return inputs


def redraw(inputs: SparseInputs) -> None:
    """As `kernels.inputs.generate.redraw`."""
    generator = generator_of(inputs.problem, inputs.device)
    draw_tables(inputs, generator)
    _choose(inputs, inputs.rows, generator)
    inputs.indices.copy_(_with_padding(inputs.rows, generator))
    inputs.rows.unchosen.copy_(_beside(inputs.rows))
    write_values(inputs, generator)


def _choose(stored: Inputs, rows: RowInputs, generator: torch.Generator) -> None:
    """Writes the tokens that each query token attends to, in the order that is asked for."""
    assert isinstance(rows.problem, QueryRows)  # `draw` made it
    p, device = rows.problem.real, rows.device
    first, context, newest = torch.tensor(chosen(p), device=device).T[:, :, None]  # [T, 1] each
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), stored.q_lens.long())
    before = (stored.kv_lens - stored.q_lens).long()  # [B]: tokens of the context
    columns = torch.arange(max(1, int(before.max())), device=device)
    drawn = torch.rand(len(before), len(columns), generator=generator, device=device)
    order = drawn.masked_fill_(columns >= before[:, None], 2).argsort(1)
    column = torch.arange(rows.page_table.shape[1], device=device)
    of_context = order[request[:, None], (first + column) % before[request, None].clamp(min=1)]
    own = before[request] + torch.arange(p.num_q_tokens, device=device) - stored.qo_indptr.long()[request]
    at = torch.where(column < context, of_context, own[:, None] - newest + 1 + column - context)
    count = context + newest
    keys = at if p.axis("index_order") == "ascending" else torch.rand(at.shape, generator=generator, device=device)
    at = at.gather(1, keys.masked_fill(column >= count, 2**40).argsort(dim=1, stable=True))
    rows.positions.copy_(at.masked_fill_(column >= count, -1))
    page, slot = slots(stored, request[:, None].expand_as(at), at.clamp(min=0))
    rows.page_table.copy_(torch.where(column < count, page * p.page_size + slot, UNUSED_ENTRY))
    rows.kv_lens.copy_(count.flatten())
    for lens, indptr in ((rows.q_lens.fill_(1), rows.qo_indptr), (rows.kv_lens, rows.kv_indptr)):
        indptr.copy_(offsets(lens))
    rows.last_page_len.fill_(1)
    rows.kv_indices.copy_(rows.page_table[column < count])


def _with_padding(rows: RowInputs, generator: torch.Generator) -> Tensor:
    """The slots of each query token in their order and -1, int32 [T, k]: behind them, or with `within` at random places."""
    assert isinstance(rows.problem, QueryRows)  # `draw` made it
    rank = torch.arange(rows.page_table.shape[1], device=rows.device).expand_as(rows.page_table)
    if rows.problem.real.axis("index_padding") == "within":
        rank = torch.rand(rank.shape, generator=generator, device=rows.device).argsort(1).argsort(1)
    return torch.full_like(rows.page_table, -1).masked_scatter_(rank < rows.kv_lens[:, None], rows.kv_indices)


def _beside(rows: RowInputs) -> Tensor:
    """Slots that no query token chose: neighbours of chosen ones first, then others at equal distances."""
    is_chosen = torch.zeros(rows.problem.num_pages, dtype=torch.bool, device=rows.device)
    is_chosen[rows.kv_indices.long()] = True
    beside = torch.zeros_like(is_chosen)
    beside[1:] |= is_chosen[:-1]
    beside[:-1] |= is_chosen[1:]
    beside[0] = True  # where a kernel may look for -1
    near = (beside & ~is_chosen).nonzero().flatten()[: WATCHED // 2]
    far = (~beside & ~is_chosen).nonzero().flatten()
    return torch.cat((near, far[:: max(1, 2 * len(far) // WATCHED)]))


def write_values(inputs: SparseInputs, generator: torch.Generator) -> None:
    """Queries and chosen tokens as drawn, with planted keys, and a large number in all others."""
    p, rows = inputs.problem, inputs.rows
    fill_normal(inputs.q, generator, query_size(p))
    cache = rows.kv[0]
    cache.copy_(torch.full((1,), UNUSED_SLOT, device=rows.device).to(cache.dtype))
    parts = torch.unique(rows.kv_indices).long().split(DRAWN_AT_ONCE)
    for at in parts:
        drawn = torch.empty(len(at), *cache.shape[1:], dtype=cache.dtype, device=rows.device)
        fill_normal(drawn, generator)
        bits(cache)[at] = bits(drawn)
    plant(rows)
    _plant_next(inputs)
    if p.kv_dtype == DS_MLA:
        for at in parts:
            cache[at] = decoded(cache[at])
    poison_unused_slots(rows, UNUSED_SLOT)


def moved(inputs: SparseInputs, turn: bool = False) -> AbstractContextManager[None]:
    """Chosen tokens lie in other slots while it lasts, and all index sets name those.

    With `turn` queries and chosen tokens have their values in reverse order, and so has an answer (`reversed_values`). Who keeps
    one, queries, tokens or slots has another one.
    """
    return turned(partial(_move, inputs, turn, *_exchanged(inputs.rows)))


def reversed_values(p: Problem, rows: Tensor) -> Tensor:
    """The values in [..., D] in reverse order: within each part that has a scale of its own, if there are any."""
    part = PART if p.kv_dtype == DS_MLA else p.value_dim
    return rows[..., : p.value_dim].reshape(*rows.shape[:-1], -1, part).flip(-1).flatten(-2)


def moved_rows(inputs: SparseInputs) -> Tensor:
    """Bool [T]: whether the slots that were a query token's hold other tokens while they are moved."""
    table = inputs.rows.page_table
    there = _renamed(table, *_exchanged(inputs.rows), inputs.rows.problem.num_pages)
    return (table.sort(1).values != there.sort(1).values).any(1)


def _exchanged(rows: RowInputs) -> tuple[Tensor, Tensor]:
    """Slots of chosen tokens and those to which they move: that nobody chose, as far as there are so many, or of one another."""
    chosen = torch.unique(rows.kv_indices).long()
    each = torch.cat((rows.unchosen[: len(chosen)], chosen))
    half = len(each) // 2
    return each[:half], each[half : 2 * half]


def _move(inputs: SparseInputs, turn: bool, at: Tensor, to: Tensor) -> None:
    """Undoes itself if it is called again: both slots of a pair exchange what they hold, and their names in all tables."""
    p, rows, cache = inputs.problem, inputs.rows, bits(inputs.rows.kv[0])
    if turn:
        inputs.q[..., : p.value_dim] = reversed_values(p, inputs.q)
        for part in torch.unique(rows.kv_indices).long().split(DRAWN_AT_ONCE):
            cache[part] = torch.cat((reversed_values(p, cache[part]), cache[part][..., p.value_dim :]), -1)
    cache[at], cache[to] = cache[to], cache[at]
    for table in (inputs.indices, rows.page_table, rows.kv_indices, rows.unchosen):
        table.copy_(_renamed(table, at, to, len(cache)))


def _renamed(table: Tensor, at: Tensor, to: Tensor, count: int) -> Tensor:
    """Slots of a table by their names after an exchange; what is none, such as -1, stays."""
    names = torch.arange(count, dtype=table.dtype, device=table.device)
    names[at], names[to] = to.to(names.dtype), at.to(names.dtype)
    is_slot = (table >= 0) & (table < count)
    return torch.where(is_slot, names[table.clamp(0, count - 1).long()], table)


def _plant_next(inputs: SparseInputs) -> None:
    """Each query token's own token, which the one before it must not see, becomes heavy for that one."""
    p, rows = inputs.problem, inputs.rows
    if p.axis("newest") != "listed":
        return
    last = [min(q_len, PLANTED) for q_len in p.q_lens]
    stops = enumerate(zip(p.q_starts[1:], last, strict=True))
    pairs = [(request, row) for request, (stop, count) in stops for row in range(stop - count + 1, stop)]
    if not pairs:
        return
    request, row = torch.tensor(pairs, device=inputs.device).T
    page, slot = slots(inputs, request, inputs.kv_lens.long()[request] - inputs.qo_indptr.long()[request + 1] + row)
    at, products = page * p.page_size + slot, target_products(rows)[row - 1]
    move(rows, (at, torch.zeros_like(at), torch.zeros_like(at)), queries_at(rows, row - 1, row % p.num_qo_heads), products)
