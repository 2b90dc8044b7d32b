"""The tensors of a cache write. All slots hold random numbers before it, so a slot that is not written, or wrongly, is seen.

Where keys are quantised, an element of each token is too large for fp8_e4m3, and must become the largest number.
"""

# B = batch_size, T = new tokens of all requests, P = pages, N = slots a page, K = KV heads, H = query heads, D = head_dim,
# R = rows of a token: 2 K, keys and then values, of D elements; of a latent one of D_ckv + D_kpe

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.inputs.generate import fill_normal
from kernels.inputs.guards import guarded_output
from kernels.inputs.tensors import K_SCALE, V_SCALE, bits, generator_of, offsets, turned
from kernels.problem import Problem
from kernels.problem.dtypes import torch_dtype
from kernels.routines.cache_write.problem import SPARE_PAGES, num_slots, query_elements, reached, rotated_dim, token_shape

Q_SCALE = 0.25
LARGE = 300.0  # beyond the largest number of fp8_e4m3 times any of the scales
BASE = 10_000.0  # of the angles: position * BASE^(-2 i / dim)
SMALL = ("request", "position", "kv_indices", "kv_indptr", "last_page_len", "slot")


@dataclass(frozen=True)
class WriteInputs:
    """What every backend reads. The cache that a call writes is its own: `pool` is that cache before it."""

    problem: Problem
    new: Tensor  # [T, R, D], as a QKV product leaves it: the rows of a token adjacent
    q: Tensor  # [T, H, D]; [T, H, 0] without rope
    pool: Tensor  # [P, 2, N, K, D], with HND [P, 2, K, N, D]; of a latent [P, N, D]
    scale: Tensor  # fp32 [R]: the true element is what is stored times its row's
    angles: Tensor  # fp32 [positions, D_rotated]: cosines, then sines
    request: Tensor  # int32 [T]
    position: Tensor  # int32 [T], in its request
    kv_indices: Tensor  # int32: the pages of each request in turn
    kv_indptr: Tensor  # int32 [B + 1]
    last_page_len: Tensor  # int32 [B]
    slot: Tensor  # int64 [T], page * N + slot of each token
    padded: None = None

    @property
    def device(self) -> torch.device:
        return self.new.device

    @property
    def unused_slots(self) -> tuple[Tensor, ...]:
        """None: every slot is compared."""
        return (self.new.new_empty(0),)

    @property
    def quantises(self) -> bool:
        return self.pool.dtype != self.new.dtype

    @property
    def q_scale(self) -> float:
        return Q_SCALE if self.quantises else 1.0

    def empty_like(self, tensor: Tensor) -> Tensor:
        """A cache or queries of the call's own, in the cache's dtype, full of NaN, between guards."""
        return guarded_output(tuple(tensor.shape), self.problem.kv_dtype, self.device)

    def by_slot(self, cache: Tensor) -> Tensor:
        """The bytes or 16-bit numbers of a cache, a view [P, N, 2, K, D]; of a latent [P, N, 1, 1, D]."""
        if self.problem.head_dim_ckv:
            return bits(cache)[:, :, None, None]
        return bits(cache).permute(0, 3, 1, 2, 4) if self.problem.kv_layout == "HND" else bits(cache).transpose(1, 2)

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        """Page and slot of each token."""
        return self.slot // self.problem.page_size, self.slot % self.problem.page_size

    def rotating(self, rows: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Views of what is rotated of rows [T, R, D] and of queries [T, H, D]: keys, and of a latent its end."""
        end = -rotated_dim(self.problem)
        return rows[:, : 1 if self.problem.head_dim_ckv else self.problem.num_kv_heads, end:], q[..., end:]


def draw(problem: Problem, device: torch.device | str) -> WriteInputs:
    """The inputs of a problem, the same for the same seed, problem and kind of device."""
    p, (parts, heads, dim), positions = problem, token_shape(problem), problem.s_kv + 1 if query_elements(problem) else 1
    inner = (heads, p.page_size) if p.kv_layout == "HND" else (p.page_size, heads)
    shape = (p.page_size, dim) if p.head_dim_ckv else (2, *inner, dim)
    given, cached = torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype)
    of_parts = (K_SCALE, V_SCALE if positions == 1 else K_SCALE)[:parts] if cached != given else (1.0, 1.0)[:parts]
    by_head = 1 + 0.25 * (torch.arange(heads) % 4) * (p.axis("scales") == "head")
    frequency = BASE ** (-torch.arange(0, rotated_dim(p), 2, dtype=torch.float64) / rotated_dim(p))
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    inputs = WriteInputs(
        p, torch.empty(p.num_q_tokens, parts * heads, dim, dtype=given, device=device),
        torch.empty(p.num_q_tokens, p.num_qo_heads, dim if positions > 1 else 0, dtype=given, device=device),
        torch.empty(num_slots(p) // p.page_size, *shape, dtype=cached, device=device),
        torch.cat([one * by_head for one in of_parts]).to(device), torch.cat((angle.cos(), angle.sin()), 1).float().to(device),
        *[one.to(device) for one in _tables(p)],  # type: ignore[arg-type]
    )  # fmt: skip
    write_values(inputs, generator := generator_of(p, inputs.device))
    fill_normal(inputs.pool, generator)
    return inputs


def _tables(p: Problem) -> tuple[Tensor, ...]:
    """The tensors of `SMALL`. Pages are in random order; those before the first that is reached are spare ones."""
    q_lens, kv_lens, (first, own) = torch.tensor(p.q_lens), torch.tensor(p.kv_lens), torch.tensor(reached(p)).T
    order = torch.randperm(num_slots(p) // p.page_size, generator=torch.Generator().manual_seed(p.seed))
    starts, indptr = offsets(own).long() + SPARE_PAGES, offsets(first + own).long()
    owner = torch.repeat_interleave(torch.arange(p.batch_size), first + own)
    column = torch.arange(len(owner)) - indptr[owner]
    pages = order[torch.where(column < first[owner], (column + owner) % SPARE_PAGES, starts[owner] + column - first[owner])]
    request = torch.repeat_interleave(torch.arange(p.batch_size), q_lens)
    position = (kv_lens - q_lens)[request] + torch.arange(len(request)) - offsets(q_lens).long()[request]
    slot = pages[indptr[request] + position // p.page_size] * p.page_size + position % p.page_size
    return (*(one.int() for one in (request, position, pages, indptr, (kv_lens - 1) % p.page_size + 1)), slot)


def redraw(inputs: WriteInputs) -> None:
    """Writes the values into their tensors again."""
    for name, drawn in vars(draw(inputs.problem, inputs.device)).items():
        if isinstance(drawn, Tensor):
            getattr(inputs, name).copy_(drawn)


def small_inputs(inputs: WriteInputs) -> list[Tensor]:
    return [getattr(inputs, name) for name in SMALL]


def write_values(inputs: WriteInputs, generator: torch.Generator) -> None:
    """New keys, values and queries."""
    for rows in filter(Tensor.numel, (inputs.new, inputs.q)):
        fill_normal(rows, generator)
        if inputs.quantises:
            token = torch.arange(len(rows), device=rows.device)
            rows[token, token % rows.shape[1], 7 * token % rows.shape[2]] = LARGE


def other_cache(inputs: WriteInputs) -> AbstractContextManager[None]:
    """New keys and values, and the numbers of a cache before them, in reverse order of each row while it lasts."""
    return turned(lambda: [bits(one).copy_(bits(one).flip(-1)) for one in (inputs.new, inputs.pool)])


def copied_tokens(inputs: WriteInputs, copied: Sequence[int]) -> AbstractContextManager[None]:
    """These tokens have opposite signs for a while. Of none: pages and the table of angles are in reverse order."""
    p, last = inputs.problem, len(inputs.pool) - 1
    rows = [rows.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[rows.element_size()]) for rows in (inputs.new, inputs.q)]

    def turn() -> None:
        for one in filter(Tensor.numel, rows if copied else []):
            one[copied] = one[copied] ^ torch.iinfo(one.dtype).min
        if not copied:
            inputs.kv_indices.neg_().add_(last)
            inputs.slot.add_((last - 2 * inputs.at[0]) * p.page_size)
            inputs.angles.copy_(inputs.angles.flip(0))

    return turned(turn)
