"""Inputs of further layers: other tensors of other values, to which the reference of the first layer still applies.

A layer's queries and keys are those of the first layer, rolled along the head dimension, and so are its values. A dot product
does not change if both sides are rolled alike, so its output is the first layer's, rolled. One reference serves all layers, and a
kernel that reads the queries or the cache of another layer is as wrong as with random ones. Page tables and lengths are shared,
as in an engine.
"""

# D = head_dim, T = query tokens of all requests

from __future__ import annotations

from dataclasses import replace

from kernels.inputs import Inputs
from kernels.inputs.tensors import bits
from kernels.lazy import Tensor, torch
from kernels.problem import Problem


def inputs_of_layer(first: Inputs, layer: int) -> Inputs:
    """The inputs of a layer, from those of layer 0, in memory of their own. Raises torch.OutOfMemoryError if there is none."""
    p = first.problem
    if p.latent:
        cache = torch.empty_like(first.kv[0])
        kv = (cache, cache[..., : p.value_dim])
    elif (whole := first.kv[0]._base) is not None:  # keys and values that lie in one allocation
        both = torch.empty_like(whole)
        k, v = (both.as_strided(cache.shape, cache.stride(), cache.storage_offset()) for cache in first.kv)
        kv = (k, v)
    else:
        kv = (torch.empty_like(first.kv[0]), torch.empty_like(first.kv[1]))
    made = replace(first, q=torch.empty_like(first.q), kv=kv)
    refill(first, made, layer)
    return made


def refill(first: Inputs, of: Inputs, layer: int) -> None:
    """Writes the values of a layer into its tensors, also if a backend has overwritten these."""
    p = first.problem
    _roll_into(of.q, first.q, layer, _key_parts(p))
    _roll_into(of.kv[0], first.kv[0], layer, _key_parts(p))
    if not p.latent:
        _roll_into(of.kv[1], first.kv[1], layer, (p.value_dim,))


def as_first(out: Tensor, layer: int) -> Tensor:
    """An output [T, H, D_vo] of a layer as the first layer would have given it."""
    return bits(out).roll(-layer, -1).view(out.dtype)


def _key_parts(p: Problem) -> tuple[int, ...]:
    """The parts of a key that are rolled each for itself: the latent's first part is its value too."""
    return (p.head_dim_ckv or 0, p.head_dim_kpe or 0) if p.latent else (p.head_dim_qk,)


def _roll_into(into: Tensor, source: Tensor, by: int, parts: tuple[int, ...]) -> None:
    start = 0
    for size in parts:
        end, shift = start + size, by % size
        into[..., start + shift : end].copy_(source[..., start : end - shift])
        into[..., start : start + shift].copy_(source[..., end - shift : end])
        start = end
