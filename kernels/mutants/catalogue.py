"""Wrong kernels, to prove that the check can fail: each wraps a right one and gives one request of the batch a wrong answer.

They are backends like any other (`mode=check_power`, or `adapters=[kernels.mutants]`). The victim is drawn from the seed. Its
last query tokens are computed anew in fp32 with one thing wrong (`faults.py`); all else is what the wrapped kernel wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kernels import registry
from kernels.adapter import Adapter, EngineMaximum, Module, Need, QueryLengths, Runner
from kernels.check import oracle
from kernels.inputs.planting import PLANTED, narrowest
from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.tensors import is_scaled
from kernels.mutants import faults
from kernels.mutants.faults import donor, victim
from kernels.mutants.reference_case import Case, case_of
from kernels.problem import ROUTINES
from kernels.problem.dtypes import FP8

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

Needs = dict[str, bool]
Applies = Callable[["Problem"], Needs]
Wrong = Callable[[Case], "Tensor"]

WRAPPED = ("fa2_tc", "fa2", "trtllm-native", "torch_sdpa")  # the first that serves the problem; the oracle where none does
LONG = 131072


@dataclass(frozen=True, kw_only=True)
class Mutant(Adapter):
    """One way to be wrong, in a sentence, and where it is wrong at all."""

    about: str
    wrong: Wrong
    applies: Applies
    wraps: Adapter | None = None  # None: the first of `WRAPPED` that serves the problem
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True
    gives_lse: bool = True  # the right one: the output alone shows the fault
    max_seq_len: EngineMaximum = "passed"  # as far as what it wraps takes it
    takes_pdl: bool = True
    takes_empty: bool = True
    gets_padding: bool = False  # the backend that it is made of gets it
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        own = tuple(Need(*pair) for pair in self.applies(problem).items())
        if self.wraps is None:
            return own
        return (*own, Need(f"what {self.wraps.name} serves", not self.wraps.unmet(problem, device)))

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        base = self._base(problem, device)
        return base.modules(problem, device) if base else ()

    def reorders(self, problem: Problem) -> bool:
        return self.wraps is not None and self.wraps.reorders(problem)

    def extra_bytes(self, problem: Problem) -> int:
        rows = problem.group_size * problem.stored_kv_heads * min(problem.s_qo, PLANTED)
        wrapped = self.wraps.extra_bytes(problem) if self.wraps else 0
        return wrapped + 4 * problem.s_kv * (3 * problem.kv_token_elements + 3 * rows)

    def _base(self, problem: Problem, device: Device) -> Adapter | None:
        if self.wraps is not None:
            return self.wraps
        known = registry.adapters()
        right = (known.get((self.routine, name)) for name in WRAPPED)
        return next((adapter for adapter in right if adapter and not adapter.unmet(problem, device)), None)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, request, rows = self.prepare_right(inputs, device)

        def launch() -> None:
            right()
            answer = self.wrong(case_of(inputs, request)) / right.caller_scale
            right.out[rows] = answer.to(right.out.dtype)

        return self._runner(launch, right, inputs.problem)

    def prepare_right(self, inputs: Inputs, device: Device) -> tuple[Runner, int, slice | Tensor]:
        """The wrapped kernel, the victim, and the rows of its last query tokens in the outputs."""
        base = self._base(inputs.problem, device)
        right = base.prepared(inputs, device) if base else _of_oracle(inputs)
        request = victim(inputs.problem)
        queries = inputs.queries(request)
        rows: slice | Tensor = slice(max(queries.start, queries.stop - PLANTED), queries.stop)
        if right.rows is not None and not isinstance(right.rows, slice):  # only padded requests lie behind a slice
            rows = right.rows[rows]
        return right, request, rows

    def _runner(self, launch: Callable[[], object], right: Runner, problem: Problem) -> Runner:
        """Judged at the tolerance of the backend that it was made of, or at the widest that any has for these dtypes."""
        compute = "fp8_e4m3" if narrowest(problem) == "nvfp4" else narrowest(problem)
        sums = "fp16" if problem.q_dtype == problem.kv_dtype == "fp16" and "prefill" in problem.routine else "fp32"  # FMHAv2's
        if self.wraps is not None:
            compute, sums = right.compute_dtype, right.sum_dtype
        name = f"mutant of {right.resolved_backend}"
        own = replace(right, launch=launch, resolved_backend=name, compute_dtype=compute, sum_dtype=sums)
        return replace(own, kernel_config="", plan_again=None)

    @classmethod
    def of(
        cls, routine: str, name: str, wrong: Callable[[Case], Tensor], about: str = "", applies: Applies | None = None
    ) -> Mutant:
        """A mutant of a routine."""
        return cls(routine=routine, name=name, about=about, wrong=wrong, applies=applies or _always)


class Idle(Mutant):
    """Writes nothing."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return self._runner(lambda: None, _of_oracle(inputs), inputs.problem)


class Remembers(Mutant):
    """Computes while it is prepared and gives that answer ever after."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = _of_oracle(inputs)
        right()
        kept = right.out.clone()

        def launch() -> None:
            if right.lse is not None:
                right()  # for its log-sum-exp
            right.out.copy_(kept)

        return self._runner(launch, replace(right, gather=None), inputs.problem)


def _of_oracle(inputs: Inputs) -> Runner:
    out, lse = inputs.empty_output(), inputs.empty_lse()

    def launch() -> None:
        if lse is None:
            out.copy_(oracle.reference(inputs))
        else:
            right = oracle.answer(inputs)
            out.copy_(right.out)
            lse.copy_(right.lse)

    return Runner(launch, out, "oracle", inputs.problem.output_dtype, lse=lse)


def _always(p: Problem) -> Needs:
    return {}


def _lens(p: Problem) -> tuple[int, int]:
    """Query and KV length of the victim, of which alone a rule may speak: the others stay right."""
    return p.q_lens[victim(p)], p.kv_lens[victim(p)]


def _draft(p: Problem) -> Needs:
    causal = p.mask == "causal" and p.window is None
    return {"a victim with a causal draft of two tokens or more": causal and _lens(p)[0] > 1}


def _other_drafts(p: Problem) -> Needs:
    """A draft that is taken to begin too early loses keys; one taken to begin too late sees what follows it, if anything does."""
    (q_len, kv_len), first = _lens(p), p.kv_lens[0] - p.q_lens[0]
    wrong_there = first < kv_len - q_len or (first > kv_len - q_len and q_len > 1)
    return {
        "a causal mask without a window": p.mask == "causal" and p.window is None,
        "a victim whose draft begins elsewhere than that of request 0": wrong_there,
    }


def victims_context(p: Problem) -> Needs:
    q_len, kv_len = _lens(p)
    own_len = kv_len - p.prefix_tokens
    return {"a victim with a context longer than its queries, and no window": own_len > 2 * q_len and p.window is None}


def _own_first(p: Problem) -> Needs:
    return victims_context(p) | {"no shared prefix, whose keys are aimed at a row of one request each": p.shared_prefix is None}


def _ranges(count: int, p: Problem) -> Needs:
    planted = len(context_positions(p, *_lens(p)))
    return victims_context(p) | {f"rows enough to plant a key on either side of {count} splits": planted >= 2 * count}


def _fine(count: int, p: Problem) -> Needs:
    """Where so little can show: kernels that multiply in 8 bits round too coarsely."""
    q_len, kv_len = _lens(p)
    return victims_context(p) | {
        "queries, keys and values of 16 bits": not {p.q_dtype, p.kv_dtype} & {*FP8, "nvfp4"},
        f"two query tokens or more, and a context of {4 * count}": q_len > 1 and kv_len - q_len >= 4 * count,
    }


def victims_pages(p: Problem) -> Needs:
    several = p.paged and 1 < p.page_size < _lens(p)[1]
    return victims_context(p) | {"a victim of several pages, of more than one token each": several}


def _part_page(p: Problem) -> Needs:
    return victims_pages(p) | {"a last page that is partly used": not _full_pages(p), "no nvfp4": p.kv_dtype != "nvfp4"}


def _full_pages(p: Problem) -> bool:
    return _lens(p)[1] % p.slots_per_page == 0


def _order_matters(p: Problem) -> Needs:
    draft_or_end = (_lens(p)[0] > 1 and p.mask == "causal") or not _full_pages(p)
    return victims_pages(p) | {"a causal draft or a partly used last page": draft_or_end, "no nvfp4": p.kv_dtype != "nvfp4"}


def _two_requests(p: Problem) -> Needs:
    return victims_context(p) | {"another request that is as long as the victim": donor(p) is not None}


def _scaled(p: Problem) -> Needs:
    return {"8-bit keys and values": is_scaled(p)}


def _scaled_apart(p: Problem) -> Needs:
    return _scaled(p) | {"keys and values of different scales": not p.latent}


def _groups(p: Problem) -> Needs:
    return {"two query heads a KV head or more": p.group_size > 1}


def _kv_heads(p: Problem) -> Needs:
    return {"two KV heads or more": p.stored_kv_heads > 1}


def _long(p: Problem) -> Needs:
    return {f"a victim of {LONG} tokens or more": _lens(p)[1] >= LONG}


def _windowed(p: Problem) -> Needs:
    return {"a sliding window that the victim has outgrown": p.window is not None and p.window < _lens(p)[1]}


def _branches(p: Problem) -> Needs:
    tree = (p.tree or ())[: _lens(p)[0]]
    return {"a tree in which the victim's queries branch": any(parent != i - 1 for i, parent in enumerate(tree))}


Entry = tuple[str, str, Wrong, Applies]  # name, what is wrong, how, where it is wrong at all


def _split_dropped(splits: int) -> Entry:
    how, applies = partial(faults.split_dropped, splits=splits), partial(_ranges, splits)
    return f"split_of_{splits}_dropped", f"one of {splits} splits of the KV is dropped", how, applies


def _lost_in_one_head(count: int) -> Entry:
    how, applies = partial(faults.tokens_of_one_head, count=count), partial(_fine, count)
    return f"{count}_tokens_lost_in_one_head", f"{count} tokens in a row are not read in one KV head", how, applies


WRONG: tuple[Entry, ...] = (
    ("full_draft", "every query sees the whole draft: full instead of causal", faults.full_draft, _draft),
    ("mask_one_late", "the mask is shifted by one: each query sees the next draft token", faults.mask_late, _draft),
    ("mask_one_early", "the mask is shifted by one: no query sees its own token", faults.mask_early, _always),
    ("draft_alone", "draft tokens see the context and themselves, but no draft before them", faults.draft_alone, _draft),
    ("previous_draft_missed", "each draft token misses the one just before it", faults.previous_draft_missed, _draft),
    ("first_draft_missed", "each draft token misses the first one", faults.first_draft_missed, _draft),
    ("mask_of_request_0", "the mask of request 0 is used for all", faults.mask_of_request_0, _other_drafts),
    ("top_left_causal", "the causal mask begins at the first key instead of ending at the last", faults.top_left, victims_context),
    ("last_page_ignored", "the last page is not read", faults.last_page_ignored, victims_pages),
    ("no_mask", "nothing is masked, not even the unused slots at the end", faults.past_the_end_unmasked, _part_page),
    ("last_page_to_its_end", "the last page is read to its end, where no token lies", faults.past_the_end, _part_page),
    ("page_of_another", "a planted page in the middle is that of another request", faults.page_of_another, _two_requests),
    ("pages_of_another", "the page table of another request is read", faults.pages_of_another, _two_requests),
    ("two_pages_swapped", "the last two pages are swapped", faults.two_pages_swapped, _order_matters),
    ("pages_reversed", "pages are read in reverse order", faults.pages_reversed, _order_matters),
    ("one_token_short", "the KV length is short by one", faults.one_token_short, _always),
    ("first_token_dropped", "the first token is dropped", faults.first_token_dropped, _own_first),
    *map(_split_dropped, (8, 32, 128)),
    *map(_lost_in_one_head, (64, 16)),
    ("merged_without_weights", "two splits are averaged instead of weighted", faults.merged_without_weights, victims_context),
    ("softmax_scale_missing", "logits are not scaled", faults.softmax_scale_missing, _always),
    ("k_scale_missing", "the scale of the keys is forgotten", faults.k_scale_missing, _scaled),
    ("v_scale_missing", "the scale of the values is forgotten", faults.v_scale_missing, _scaled),
    ("scales_exchanged", "keys have the scale of the values and values that of the keys", faults.scales_exchanged, _scaled_apart),
    ("heads_exchanged", "two query heads of a group are exchanged", faults.heads_exchanged, _groups),
    ("group_off_by_one", "the last query head of a group reads the next KV head", faults.next_kv_head, _kv_heads),
    ("values_one_late", "key i meets the value of token i + 1", faults.values_one_late, victims_context),
    ("saturated", "probabilities saturate in 8 bits", faults.saturated, _scaled),
    ("row_copied", "the last draft token gets the answer of the one before", faults.row_copied, _draft),
    ("bf16_sums", "sums over the keys are kept in bf16", faults.bf16_sums, _long),
    ("window_ignored", "the sliding window is ignored", faults.no_window, _windowed),
    ("tree_as_chain", "a tree is read as a chain", faults.causal_tree, _branches),
    ("sinks_ignored", "attention sinks are ignored", faults.sinks_ignored, lambda p: {"attention sinks": p.sinks}),
)  # fmt: skip


def _of_routine(routine: str) -> tuple[Mutant, ...]:
    """Every wrong kernel as a backend of a routine."""
    right = Case.answer
    return (
        *(Mutant.of(routine, name, how, about, applies) for name, about, how, applies in WRONG),
        Idle.of(routine, "output_left", right, "the output is left as it was"),
        Remembers.of(routine, "previous_run", right, "the output of a previous run is returned"),
    )


ADAPTERS = tuple(adapter for routine in ROUTINES for adapter in _of_routine(routine))


def adapters_from(adapter: Adapter) -> tuple[Mutant, ...]:
    """Every wrong kernel made of a backend from a plugin, called `<fault>@<backend>`; the registry asks for them."""
    known = (mutant for mutant in ADAPTERS if mutant.routine == adapter.routine and type(mutant) is Mutant)
    return tuple(replace(mutant, name=f"{mutant.name}@{adapter.name}", wraps=adapter) for mutant in known)
