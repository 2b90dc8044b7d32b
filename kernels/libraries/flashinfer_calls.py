"""Calls of FlashInfer that are not the same in every release, each in one place.

A call is written as the newest release that was read has it. An older release lacks some of its arguments. Leaving one out is the
same call only if its value is what the older release does anyway; otherwise the call fails, and its row says why. What is there is
read from the functions themselves, so that a release between two others, or a build from source, needs no table.
docs/versions.md says for each release which calls are the same, which are adapted and which it does not have (tools/releases.py).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from kernels.inputs import Inputs
from kernels.lazy import Tensor
from kernels.problem.dtypes import FP8, HALF, torch_dtype

Call = Callable[..., Any]

# Arguments that have come since 0.5.3, and the value that says what a release without the argument does.
# `uniform_q_len` is a promise, by which the plan may choose larger tiles: without it the answer is the same.
ANY = object()
NEUTRAL: dict[str, object] = {
    "causal": True,  # of trtllm_batch_context_with_kv_cache, since 0.6.11
    "cum_seq_lens_q": None,  # 0.6.0
    "enable_pdl": None,
    "k_scale": 1.0,  # of the ragged wrapper's run, 0.6.0
    "kv_cache_sf": None,  # 0.6.7
    "mask": None,  # of xqa_batch_decode_with_kv_cache, 0.6.0
    "max_q_len": None,  # 0.6.0
    "module_surface": "full",  # 0.7.0
    "paged_kv_stride_mode": ANY,  # 0.7.0: before, the kernel found out at run time
    "q_cu_seq_lens": None,  # 0.6.16
    "q_len_per_req": 1,  # of the decode wrapper's plan, 0.6.13
    "sinks": None,
    "uniform_q_len": ANY,  # 0.7.2.post1
}
# Generators of modules that have another name in older releases, with that name.
OLD_NAMES = {"_gen_batch_prefill_primary_module": "gen_batch_prefill_module"}  # 0.7.0 made the private one


def takes(function: Call) -> frozenset[str] | None:
    """The names of the arguments that a function takes; None for any. Since 0.6.15 `plan` of decode hands them to another."""
    owner = getattr(function, "__self__", None)
    function = getattr(owner, "_plan_impl", function) if function.__name__ == "plan" else function
    return _names(getattr(function, "__func__", function))  # a bound method is a new object each time, its function is not


# Weak, since a function that a test or a caller makes may hold tensors.
_KNOWN: WeakKeyDictionary[Call, frozenset[str] | None] = WeakKeyDictionary()


def _names(function: Call) -> frozenset[str] | None:
    if function not in _KNOWN:
        parameters = inspect.signature(function).parameters.values()
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        _KNOWN[function] = None if takes_any else frozenset(one.name for one in parameters)
    return _KNOWN[function]


def fitted(function: Call, given: Mapping[str, Any], neutral: Mapping[str, object] = NEUTRAL) -> Mapping[str, Any]:
    """The arguments without those that this release lacks and whose value changes nothing.

    It is part of plans, whose time on the host is measured, so it does nothing if all are there.
    Raises TypeError for one whose value would change something: the release has no such call.
    """
    known = takes(function)
    if known is None or given.keys() <= known:
        return given
    lacking = given.keys() - known
    for name in sorted(lacking):
        if name not in neutral or (neutral[name] is not ANY and given[name] != neutral[name]):
            raise TypeError(
                f"{function.__name__} of this release of FlashInfer has no argument {name}, which would be {given[name]}"
            )
    return {name: value for name, value in given.items() if name not in lacking}


def bound(function: Call, *args: Any, **given: Any) -> Call:
    """The call with these arguments, as this release takes them."""
    return partial(function, *args, **fitted(function, given))


def plan(wrapper: Any, *args: Any, q_dtype: Any, **given: Any) -> None:
    """Plans a wrapper, as this release takes it. `q_dtype` is that of the output before 0.6.0, which has no choice of it."""
    asked_causal = {"is_causal": given.get("q_len_per_req", 1) > 1}  # 0.7.0: before, it followed from the number of tokens
    wrapper.plan(*args, **fitted(wrapper.plan, given, {**NEUTRAL, "o_data_type": q_dtype, **asked_causal}))


def resolved_decode_backend(wrapper: Any) -> str:
    """The kernel that a planned decode wrapper takes.

    0.7.2 says so itself. Before, `auto` becomes the kernel's name in the plan on tensor cores. The wrapper of 0.5.3 knows fa2 alone
    on tensor cores, whatever `backend` says (it never asks `determine_attention_backend`), and CUDA cores have no other anywhere.
    """
    if hasattr(type(wrapper), "resolved_backend"):
        return str(wrapper.resolved_backend)
    chooses = hasattr(importlib.import_module(type(wrapper).__module__), "determine_attention_backend")
    own = str(wrapper._backend)
    return "fa2" if own == "auto" or (own == "fa3" and not chooses) else own


def module_spec(where: Any, function: str, args: Sequence[Any]) -> Any:
    """The specification of a module, by the name and the arguments of its generator in the newest release that was read.

    `gen_xqa_module` has taken the number of query tokens since 0.6.0 and whether it differs since 0.6.16.
    Raises AttributeError if the release has no such module, and TypeError if it has none for these arguments.
    """
    name = function if hasattr(where, function) else OLD_NAMES.get(function, function)
    generator = getattr(where, name)
    room = len(inspect.signature(generator).parameters)
    if any(arg not in (1, False) for arg in args[room:]):
        raise TypeError(f"{name} of this release of FlashInfer takes {room} arguments, and not {', '.join(map(str, args[room:]))}")
    return generator(*args[:room])


def plan_mla(wrapper: Any, inputs: Inputs, by_page: tuple[Tensor, ...], dense: Mapping[str, Any] | None = None) -> None:
    """Plans the wrapper of MLA. `by_page`: offsets of queries and pages, the pages, KV lengths; `dense`: that by a page table."""
    p, known = inputs.problem, takes(wrapper.plan)
    causal = p.s_qo > 1 and p.mask == "causal"  # there is no word for a tree
    if known is not None and "metadata" not in known:  # before 0.7.0
        if p.output_dtype != p.q_dtype:
            raise TypeError("BatchMLAPagedAttentionWrapper of this release of FlashInfer writes its output in the query's dtype")
        shape = (p.num_qo_heads, p.head_dim_ckv, p.head_dim_kpe, p.page_size)
        wrapper.plan(*by_page, *shape, causal, inputs.sm_scale, inputs.q.dtype, inputs.latent.dtype)
        return
    from flashinfer.mla import MLAPlanMetadata

    of_cache = p.kv_dtype in FP8 and p.q_dtype in HALF
    pages = dict(zip(("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"), by_page, strict=True))
    given = {
        "metadata": MLAPlanMetadata.csr(**pages) if dense is None else MLAPlanMetadata.dual(**pages, **dense),
        "num_heads": p.num_qo_heads, "head_dim_ckv": p.head_dim_ckv, "head_dim_kpe": p.head_dim_kpe, "page_size": p.page_size,
        "causal": causal, "sm_scale": inputs.sm_scale, "enable_pdl": p.enable_pdl, "q_data_type": inputs.q.dtype,
        "kv_data_type": inputs.latent.dtype, "output_dtype": torch_dtype(p.output_dtype),
        "lse_mode": "base2" if p.return_lse else "none",
        "scale_mode": "bmm-scalar" if p.q_dtype in FP8 else "kv-per-tensor" if of_cache else "default",
    }  # fmt: skip
    wrapper.plan(**fitted(wrapper.plan, given))


def mla_call(wrapper: Any, inputs: Inputs, out: Tensor, **given: Any) -> Call:
    """The call of a planned wrapper of MLA. Before 0.7.0 the two parts of queries and latents are arguments of their own."""
    known = takes(wrapper.run)
    if known is None or "query" in known:
        return partial(wrapper.run, query=inputs.q, kv_cache=inputs.latent, out=out, **given)
    ckv = inputs.problem.head_dim_ckv or 0
    q, latent = inputs.q, inputs.latent
    parts = (q[..., :ckv], q[..., ckv:], latent[..., :ckv], latent[..., ckv:])
    return bound(wrapper.run, *parts, out=out, **given)
