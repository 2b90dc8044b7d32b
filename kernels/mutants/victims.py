"""The conditions under which a fault can show in a problem and its victim. A wrong kernel does not serve other problems."""

from __future__ import annotations

from collections.abc import Callable

from kernels.inputs.sentinel_keys import LARGE_LOGIT, context_positions, large_row
from kernels.inputs.sentinel_logit import PLANTED, narrowest
from kernels.inputs.shifted_logits import constant_elements
from kernels.inputs.tensors import is_scaled, softmax_scale, usual_scale
from kernels.mutants.faults import donor, victim
from kernels.problem import Problem
from kernels.problem.dtypes import FP8, SIZE_BITS

Needs = dict[str, bool]
Applies = Callable[["Problem"], Needs]


def always(p: Problem) -> Needs:
    return {}


def _lens(p: Problem) -> tuple[int, int]:
    """Query and KV length of the victim, of which alone a rule may speak: the others stay right."""
    return p.q_lens[victim(p)], p.kv_lens[victim(p)]


def drafts(p: Problem) -> Needs:
    causal = p.mask == "causal" and p.window is None
    return {"a victim with a causal draft of two tokens or more": causal and _lens(p)[0] > 1}


def prompts(p: Problem) -> Needs:
    q_len, kv_len = _lens(p)
    return {f"a victim with a prompt of more than {PLANTED} tokens, each with a key": PLANTED < q_len <= kv_len}


def other_drafts(p: Problem) -> Needs:
    """A draft that is taken to begin too early loses keys; one taken to begin too late sees what follows it, if anything does."""
    (q_len, kv_len), first = _lens(p), p.kv_lens[0] - p.q_lens[0]
    wrong_there = first < kv_len - q_len or (first > kv_len - q_len and q_len > 1)
    return {
        "a causal mask without a window": p.mask == "causal" and p.window is None,
        "a victim whose draft begins elsewhere than that of request 0": wrong_there,
    }


def context(p: Problem) -> Needs:
    q_len, kv_len = _lens(p)
    own_len = kv_len - p.prefix_tokens
    return {"a victim with a context longer than its queries, and no window": own_len > 2 * q_len and p.window is None}


def strided(p: Problem) -> Needs:
    """Of padded pages, and of keys and values apart, page 0 lies where it would in a cache of pairs."""
    several = _lens(p)[1] > p.slots_per_page and p.window is None
    return {"a cache that is not pairs of pages": p.kv_memory in ("apart", "by_token", "padded"), "a victim of pages": several}


def own_first_token(p: Problem) -> Needs:
    return context(p) | {"no shared prefix, whose keys are aimed at a row of one request each": p.shared_prefix is None}


def ranges(count: int, p: Problem) -> Needs:
    planted = len(context_positions(p, *_lens(p)))
    return context(p) | {f"rows enough to plant a key on either side of {count} splits": planted >= 2 * count}


def in_16_bits(p: Problem) -> Needs:
    return {"queries, keys and values of 16 bits": not {p.q_dtype, p.kv_dtype} & {*FP8, "nvfp4"}}


def fine_parts(count: int, p: Problem) -> Needs:
    """Where so little can show: kernels that multiply in 8 bits round too coarsely."""
    q_len, kv_len = _lens(p)
    enough = q_len > 1 and kv_len - q_len >= 4 * count
    return context(p) | in_16_bits(p) | {f"two query tokens or more, and a context of {4 * count}": enough}


def pages(p: Problem) -> Needs:
    several = p.paged and 1 < p.page_size < _lens(p)[1]
    return context(p) | {"a victim of several pages, of more than one token each": several}


def part_page(p: Problem) -> Needs:
    return pages(p) | {"a last page that is partly used": not _full_pages(p), "no nvfp4": p.kv_dtype != "nvfp4"}


def _full_pages(p: Problem) -> bool:
    return _lens(p)[1] % p.slots_per_page == 0


def order_matters(p: Problem) -> Needs:
    draft_or_end = (_lens(p)[0] > 1 and p.mask == "causal") or not _full_pages(p)
    return pages(p) | {"a causal draft or a partly used last page": draft_or_end, "no nvfp4": p.kv_dtype != "nvfp4"}


def keyless(p: Problem) -> Needs:
    return {"a request without keys": p.lacks_keys}


def keyless_lse(of_sink: bool, p: Problem) -> Needs:
    return keyless(p) | {"a log-sum-exp (return_lse)": p.return_lse, f"sinks={str(of_sink).lower()}": p.sinks == of_sink}


def two_requests(p: Problem) -> Needs:
    apart = {"requests that share no token": not p.shares_tokens}
    return context(p) | apart | {"another request that is as long as the victim": donor(p) is not None}


def not_unscaled(p: Problem) -> Needs:
    return {"a softmax scale that is not 1": softmax_scale(p) != 1.0}


def of_model_scale(p: Problem) -> Needs:
    """A kernel that multiplies in 8 bits rounds a planted key's logit by as much as a scale that is nearly right would move it."""
    ratio, least = softmax_scale(p) / usual_scale(p), 1.25 if SIZE_BITS[narrowest(p)] <= 8 else 1.05
    return {"a softmax scale that is not nearly 1/sqrt(head_dim_qk)": not 1 / least < ratio < least}


def capped(p: Problem) -> Needs:
    """Of logits near 110 a cap above them changes little, and a kernel that multiplies in 8 bits rounds these by much."""
    highest = LARGE_LOGIT if SIZE_BITS[narrowest(p)] > 8 else LARGE_LOGIT / 2
    shown = p.soft_cap is not None and p.soft_cap <= highest and len(context_positions(p, *_lens(p))) > 1
    return {"a soft cap that the victim's large logits reach": shown and large_row(p, victim(p)) is not None}


def long_keys(p: Problem) -> Needs:
    return context(p) | {"keys of 32 elements or more, not in nvfp4": p.key_dim >= 32 and p.kv_dtype != "nvfp4"}


def growing(p: Problem) -> Needs:
    planted = len(context_positions(p, *_lens(p)))
    enough = planted >= (3 if large_row(p, victim(p)) else 4 * p.stored_kv_heads)
    return context(p) | {"planted keys among which the maximum of some row grows": enough}


def scaled(p: Problem) -> Needs:
    return {"8-bit keys and values": is_scaled(p)}


def shifted(p: Problem) -> Needs:
    return {"logits that can be shifted: no soft cap, and more elements than an nvfp4 block has": constant_elements(p) > 0}


def below_0(p: Problem) -> Needs:
    """Of the last rows of a request one has logits above 100; of a single row that is so in every other request."""
    rows = p.num_qo_heads if p.sinks else p.num_qo_heads * min(_lens(p)[0], 2)
    several = rows > (2 if p.sinks else 1) or not (p.sinks or victim(p) % 2)
    return shifted(p) | {"a victim of several rows, or of one below 0": several}


def windowed(p: Problem) -> Needs:
    return {"a sliding window that the victim has outgrown": p.window is not None and p.window < _lens(p)[1]}


def two_sided(p: Problem) -> Needs:
    several = p.mask == "full" and p.window is not None and p.window > 1 and _lens(p)[0] > 1
    return {"a window under a full mask, and a victim of two query tokens or more": several}


def two_sided_and_left(p: Problem) -> Needs:
    last = min(_lens(p)[0], PLANTED)
    return two_sided(p) | {"a victim with more of the last query tokens than the window": p.window is not None and last > p.window}


def prefixed(p: Problem) -> Needs:
    return {"a mask whose prefix sees both ways, and a victim of two query tokens or more": p.mask == "prefix" and _lens(p)[0] > 1}


def longer_than_prefix(p: Problem) -> Needs:
    return prefixed(p) | {"a victim with more query tokens than the prefix": _lens(p)[0] > (p.mask_prefix or 0)}


def branches(p: Problem) -> Needs:
    tree = (p.tree or ())[: _lens(p)[0]]
    return {"a tree in which the victim's queries branch": any(parent != i - 1 for i, parent in enumerate(tree))}
