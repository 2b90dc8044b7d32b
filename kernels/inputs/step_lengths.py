"""The lengths of an engine's steps: on the host, as a plan gets them, and on the device, in tensors that keep their addresses.

Between two steps an engine writes new lengths and pages into the tensors that its kernels read. Its scheduler knows the same
lengths without asking the GPU, so a plan gets them from the host.
"""

# B = batch_size

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kernels.inputs.tensors import Inputs
from kernels.lazy import Tensor, torch
from kernels.problem.padded import PaddedBatch


@dataclass(frozen=True)
class HostLengths:
    """A batch's lengths on the host, int32, in page-locked memory if its tensors are on a GPU, as engines keep them."""

    qo_indptr: Tensor  # [B+1], in tokens
    kv_lens: Tensor  # [B], query tokens included
    kv_indptr: Tensor  # [B+1], in pages
    last_page_len: Tensor  # [B]
    num_pages: int  # listed in `Inputs.kv_indices`


@dataclass(frozen=True)
class StepLengths:
    """The lengths of one step, on the host and on the device."""

    kv_lens: tuple[int, ...]
    host: HostLengths
    kv_indices: Tensor  # int32 [num_pages], on the device

    def write_into(self, inputs: Inputs) -> None:
        """Writes them into the inputs' own tensors. Pages beyond `num_pages` stay as they are."""
        inputs.kv_lens.copy_(self.host.kv_lens)
        inputs.kv_indptr.copy_(self.host.kv_indptr)
        inputs.last_page_len.copy_(self.host.last_page_len)
        inputs.kv_indices[: self.host.num_pages].copy_(self.kv_indices)


def host_lengths(inputs: Inputs) -> HostLengths:
    """The inputs' own lengths on the host."""
    tensors = (inputs.qo_indptr, inputs.kv_lens, inputs.kv_indptr, inputs.last_page_len)
    qo_indptr, kv_lens, kv_indptr, last_page_len = (_on_host(t.cpu(), inputs.device) for t in tensors)
    return HostLengths(qo_indptr, kv_lens, kv_indptr, last_page_len, int(kv_indptr[-1]))


def steps_before(inputs: Inputs, back: int) -> StepLengths:
    """The step so many steps before the inputs' own lengths; 0 is these.

    Each request is shorter by its query tokens in each step before, as if whole drafts had been accepted. It keeps its query tokens
    and a prefix that it shares. Over a ragged cache, where a request's keys would move, all steps have the inputs' own lengths.
    """
    p = inputs.problem
    least = (q + (p.shared_prefix or 0) for q in p.q_lens)
    earlier = (kv - back * q if p.paged else kv for q, kv in zip(p.q_lens, p.kv_lens, strict=True))
    lengths = tuple(map(min, p.kv_lens, map(max, least, earlier)))  # without keys, or in cross attention, there are fewer than that
    real = p.real.batch_size if isinstance(p, PaddedBatch) else p.batch_size
    return of_lengths(inputs, (*lengths[:real], *p.kv_lens[real:]))  # a padded request has the same length in every step


def of_lengths(inputs: Inputs, kv_lens: tuple[int, ...]) -> StepLengths:
    """A step of these KV lengths, none longer than the inputs' own. Each request keeps its first pages."""
    n = inputs.problem.slots_per_page
    pages = [-(-length // n) for length in kv_lens]
    indptr = [0, *accumulate(pages)]
    last = [length - max(0, of_request - 1) * n for length, of_request in zip(kv_lens, pages, strict=True)]
    made = [_on_host(torch.tensor(values, dtype=torch.int32), inputs.device) for values in (kv_lens, indptr, last)]
    host = HostLengths(_on_host(inputs.qo_indptr.cpu(), inputs.device), made[0], made[1], made[2], indptr[-1])
    return StepLengths(kv_lens, host, torch.cat([row[:count] for row, count in zip(inputs.page_table, pages, strict=True)]))


def _on_host(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor
