"""Checksums of the tensors that backends share: they show whether one changed what it may only read."""

from __future__ import annotations

import math
from functools import cache, lru_cache

from kernels.inputs.tensors import Inputs, OwnInputs
from kernels.lazy import Tensor, torch
from kernels.problem.routine import by_routine

AT_ONCE = 2**22  # numbers that are multiplied by their weights at a time: 32 MiB
# From this size on a tensor is summed in one kernel: it is read once, and is one launch instead of ten. A cache that no benchmark
# times is not worth compiling it.
FUSED_BYTES = 2**23
WORDS_OF_PROGRAM = 4096
_KERNEL_AGREES: dict[int, bool] = {}  # by the words of a vector
MULTIPLIERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)  # odd, of the mixing function splitmix64


@cache
def triton_works(device: int) -> bool:
    """Whether Triton can compile and run a kernel on this GPU. It needs a C compiler and a folder to write to; torch does not."""
    try:
        from kernels.inputs.checksum_kernel import touch

        flag = torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")
        touch[(1,)](flag)
        return bool(flag.item() == 1)
    except Exception:  # no Triton, no compiler, no folder: torch gives the same sums, more slowly
        return False


@by_routine
def checksums(inputs: Inputs | OwnInputs) -> Tensor:
    """An int64 for each large tensor that backends share, and one for all small ones.

    A word that changes changes its sum, and so does another order. Of a cache it is made of the sum of each vector, so that its
    bytes are read once.
    """
    if isinstance(inputs, OwnInputs):
        return torch.stack([sum_of_words(tensor, of_vectors=tensor.dim() > 1) for tensor in inputs.tensors()])
    inputs = inputs.padded or inputs  # all of its tensors, with the rows of padded requests
    cache = [inputs.kv[0], *inputs.kv[1 : 1 if inputs.problem.latent else 2], *(inputs.kv_scales or ())]
    others = [inputs.page_table, inputs.q_lens, inputs.qo_indptr, inputs.kv_lens, inputs.kv_indptr, inputs.kv_indices]
    others += [inputs.last_page_len, *([] if inputs.sinks is None else [inputs.sinks])]
    others += [inputs.visible] if inputs.problem.tree is not None else []
    others.append(inputs.q)
    small = [tensor for tensor in others if tensor.numel() <= AT_ONCE // 4]
    large = [tensor for tensor in others if tensor.numel() > AT_ONCE // 4]
    together = [torch.cat([_words(tensor).flatten() for tensor in small])] if small else []
    sums = [*map(_sum_of_vectors, cache), *(sum_of_words(tensor, False) for tensor in large + together)]
    return torch.stack(sums)


def _sum_of_vectors(tensor: Tensor) -> Tensor:
    """What `sum_of_words` gives for a tensor's vectors."""
    words, device = _words(tensor), tensor.device
    one_kernel = FUSED_BYTES <= tensor.nbytes < 2**31 * words.shape[-1] and words.dtype == torch.int64  # places of 32 bits
    if one_kernel and words.dim() == 4 and words.stride(-1) == 1 and device.type == "cuda" and triton_works(device.index or 0):
        width = words.shape[-1]
        if width not in _KERNEL_AGREES:
            _KERNEL_AGREES[width] = _kernel_agrees(words[:1])
        if _KERNEL_AGREES[width]:
            return _sum_in_one_kernel(words)
    return sum_of_words(tensor, True)


def _kernel_agrees(words: Tensor) -> bool:
    """Whether the kernel gives torch's number for the first of these words here. Another Triton may not compile it."""
    try:
        return bool(_sum_in_one_kernel(words) == sum_of_words(words, True))
    except Exception:  # Triton has many of its own
        return False


def _sum_in_one_kernel(words: Tensor) -> Tensor:
    """What `sum_of_words` gives for vectors of 64-bit words [A, B, C, W], several times as fast. For CUDA devices."""
    from kernels.inputs.checksum_kernel import sum_of_vectors

    count, size = math.prod(words.shape[:-1]), words.shape[-1]
    width = 1 << (size - 1).bit_length()
    vectors = max(1, WORDS_OF_PROGRAM // width)
    found = words.new_empty(-(-count // vectors))
    layout, (first, second) = (*words.shape[1:3], *words.stride()[:3]), MULTIPLIERS
    sum_of_vectors[(len(found),)](
        words, found, count, *layout, W=size, WIDTH=width, VECTORS=vectors, FIRST_FACTOR=first, SECOND_FACTOR=second
    )
    return found.sum()


def sum_of_words(tensor: Tensor, of_vectors: bool) -> Tensor:
    """The sum of a tensor's words, or of its vectors' sums of 1, 3, 5 ... times their words, each times a weight of its place."""
    words = _words(tensor)
    numbers = math.prod(words.shape[1:-1] if of_vectors else words.shape[1:])  # in an index of the first dimension
    step, odd = max(1, AT_ONCE // math.prod(words.shape[1:])), torch.arange(1, 2 * words.shape[-1], 2, device=words.device)
    totals = []
    for start in range(0, len(words), step):
        part = words[start : start + step]
        part = ((part * odd).sum(-1) if of_vectors else part.long()).flatten()
        totals.append((part * place_weights(start * numbers, len(part), part.device)).sum())
    return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


def _words(tensor: Tensor) -> Tensor:
    """The tensor as integers, as wide as its shape and its strides allow."""
    size = tensor.element_size()
    whole = tensor.shape[-1] * size % 8 == 0 and all(n * size % 8 == 0 for n in tensor.stride()[:-1])
    return tensor.view(torch.int64 if whole else {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


@lru_cache(4)  # of a cache in torch, of all small tensors together, and of an answer: 32 MiB each at most
def place_weights(first: int, count: int, device: torch.device) -> Tensor:
    """Odd numbers that look random, [count], for the places from `first` on: an odd weight hides no change of its word."""
    mixed = torch.arange(first + 1, first + 1 + count, device=device)
    for multiplier in MULTIPLIERS:
        mixed = mixed * multiplier
        mixed ^= mixed >> 31
    return mixed | 1
