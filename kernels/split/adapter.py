"""The backend that makes both calls. It is composed of two adapters, and has no kernel of its own.

Engines order a batch before they compute its queries, so that the requests of the decode call come first, and each call gets
consecutive rows of queries and output. What that costs them is a few copies on the host at the steps where requests change
places. So the order is no part of the timed call here: if a problem lists its requests in another order, `OrderedQueries` has
the queries in the engine's order, and `Runner.rows` says where the rows of the answer lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner
from kernels.contract.releases import Versions
from kernels.inputs.copies import OrderedQueries
from kernels.lazy import Tensor, torch
from kernels.problem.dtypes import FP8, UNIT_ROUNDOFF
from kernels.problem.features import Feature
from kernels.split.batch import Halves, halves_of

Plan = Callable[["Inputs"], Runner]


@dataclass(frozen=True)
class PartInputs(Inputs):
    """Inputs of some requests of a batch. Their page table is as wide as the batch's, as when an engine passes rows of its own."""

    out: Tensor  # [T of these requests, H, D_vo], a view of the batch's output

    def empty_output(self) -> Tensor:
        """The part of the batch's output that belongs to these requests."""
        return self.out


@dataclass(frozen=True)
class Ordered:
    """Queries and output in the order of an engine: the decode call's requests first. `copy` is None if the problem's is that."""

    q: Tensor  # [T, H, D_qk]
    out: Tensor  # [T, H, D_vo]
    copy: OrderedQueries | None


def ordered(inputs: Inputs, order: Sequence[int]) -> Ordered:
    """Memory for the batch in this order of its requests, with the queries in it."""
    out = inputs.empty_output()
    if list(order) == sorted(order):
        return Ordered(inputs.q, out, None)
    copy = OrderedQueries(inputs, order)
    return Ordered(copy.q, out, copy)


def part_of(inputs: Inputs, problem: Problem, requests: Sequence[int], batch: Ordered, first_row: int) -> PartInputs:
    """The inputs of `requests`, which are `problem`, and whose queries begin at `first_row` of the ordered batch.

    Keys, values and their scales are those of the batch, at the same addresses. Lengths and pages are the requests' own.
    """
    at, rows = torch.tensor(requests, device=inputs.device), slice(first_row, first_row + problem.num_q_tokens)
    whole = inputs.problem
    pages_of = [-(-length // whole.slots_per_page) for length in whole.kv_lens]
    start = list(accumulate(pages_of, initial=0))
    own = {
        "problem": problem, "q": batch.q[rows], "page_table": inputs.page_table[at], "q_lens": inputs.q_lens[at],
        "kv_lens": inputs.kv_lens[at], "last_page_len": inputs.last_page_len[at],
        "qo_indptr": _indptr((whole.q_lens[i] for i in requests), inputs),
        "kv_indptr": _indptr((pages_of[i] for i in requests), inputs),
        "kv_indices": torch.cat([inputs.kv_indices[start[i] : start[i + 1]] for i in requests]),
    }  # fmt: skip
    shared = {field.name: getattr(inputs, field.name) for field in fields(Inputs)}
    return PartInputs(**{**shared, **own}, out=batch.out[rows])


def _indptr(counts: Iterable[int], inputs: Inputs) -> Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=inputs.device)


@dataclass(frozen=True)
class Both:
    """The two calls of a batch, its requests in the order of the calls."""

    halves: Halves
    batch: Ordered
    decode: Runner
    prefill: Runner


@dataclass(frozen=True, kw_only=True)
class Split(Adapter):
    """A decode call for the requests of the common query length, and a prefill call for the rest, timed as one call."""

    decode: Adapter
    prefill: Adapter
    threshold: int | None = None  # the most query tokens of a request in the decode call; None: any number
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True  # as far as both parts do: their own rules say so
    takes_two_sided_window: bool = True
    takes_prefix_mask: bool = True
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    max_seq_len: EngineMaximum = "passed"
    takes_pdl: bool = True

    @classmethod
    def from_parts(cls, routine: str, name: str, decode: Adapter, prefill: Adapter, threshold: int | None) -> Split:
        """The backend made of these two."""
        return cls(
            routine=routine, name=name, decode=decode, prefill=prefill, threshold=threshold,
            distributions=_each_once((*decode.distributions, *prefill.distributions)),
            copies_cache=decode.copies_cache or prefill.copies_cache,
            copies_new_tokens=decode.copies_new_tokens or prefill.copies_new_tokens,
            imports=decode.imports or prefill.imports,  # a second library is loaded at the first point
            extra=decode.extra or prefill.extra,
        )  # fmt: skip

    @property
    def all_distributions(self) -> tuple[str, ...]:
        return _each_once((*self.decode.all_distributions, *self.prefill.all_distributions))

    def distributions_for(self, problem: Problem) -> tuple[str, ...]:
        calls = self._calls(problem)
        return _each_once(tuple(name for part, of in calls for name in part.distributions_for(of))) if calls else self.distributions

    def to_install(self, names: Sequence[str]) -> tuple[str, ...]:
        of_parts = [part.to_install([n for n in names if n in part.all_distributions]) for part in (self.decode, self.prefill)]
        return _each_once(tuple(one for asked in of_parts for one in asked))

    def for_versions(self, versions: Versions) -> Split:
        decode, prefill = self.decode.for_versions(versions), self.prefill.for_versions(versions)
        return replace(super().for_versions(versions), decode=decode, prefill=prefill)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        halves = halves_of(problem, self.threshold)
        several = Need(self._several(), halves is not None)
        if halves is None:
            return (several,)
        return (
            several,
            Need("an output that is not FP8 (each call would have a scale of its own)", problem.output_dtype not in FP8),
            *(
                Need(f"{part.name} for {call}: {need.sentence}", need.met)
                for call, (part, of) in zip(("decode", "prefill"), self._calls(problem), strict=True)
                for need in part.conditions(of, device)
            ),
        )

    def _several(self) -> str:
        if self.threshold is None:
            return "requests of two query lengths or more"
        return f"requests for both calls: some of a query length up to {self.threshold}, and some of another"

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return tuple(dict.fromkeys(module for part, of in self._calls(problem) for module in part.modules(of, device)))

    def workspace_bytes(self, problem: Problem) -> int:
        calls = self._calls(problem)
        return problem.query_bytes + sum(part.workspace_bytes(of) for part, of in calls) if calls else 0

    def skips_unused_in(self, problem: Problem) -> bool:
        calls = self._calls(problem)
        return bool(calls) and all(part.skips_unused_in(of) for part, of in calls)

    def passed_on(self, device: Device) -> frozenset[Feature]:
        """What both calls get. The split itself gives each call its requests' query lengths."""
        lengths: frozenset[Feature] = frozenset({"query lengths that differ"})
        return lengths | (self.decode.passed_on(device) & self.prefill.passed_on(device))

    def takes_pdl_in(self, problem: Problem, device: Device) -> bool:
        return all(part.takes_pdl_in(of, device) for part, of in self._calls(problem))

    def lacks_choice(self, problem: Problem, device: Device) -> bool:
        return any(part.lacks_choice(of, device) for part, of in self._calls(problem))

    def reorders(self, problem: Problem) -> bool:
        halves = halves_of(problem, self.threshold)
        return halves is not None and list(halves.order) != sorted(halves.order)

    def _choices(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()  # those of both parts are among their conditions, which name the part

    _hardware_of_choices = _choices

    def _calls(self, problem: Problem) -> tuple[tuple[Adapter, Problem], ...]:
        """The backend of each call with its requests; none if the batch cannot be split."""
        halves = halves_of(problem, self.threshold)
        return () if halves is None else ((self.decode, halves.decode), (self.prefill, halves.prefill))

    def config_of(self, runner: Runner, problem: Problem) -> str:
        return runner.kernel_config  # with what each part says of itself

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        anew = (partial(self.decode.prepare, device=device), partial(self.prefill.prepare, device=device))
        first = self._both(inputs, *anew)

        def plan_again(batch: Inputs) -> Runner:
            """A call whose backend has no wrapper is prepared anew. One that has a wrapper knows which batches it can serve."""
            return self._one_call(batch, self._both(batch, first.decode.plan_again or anew[0], first.prefill.plan_again or anew[1]))

        lives_on = first.decode.plan_again or first.prefill.plan_again
        return replace(self._one_call(inputs, first), plan_again=plan_again if lives_on else None)

    def _both(self, inputs: Inputs, plan_decode: Plan, plan_prefill: Plan) -> Both:
        """Both calls on a batch. Raises ValueError if one of them would have no request."""
        halves = halves_of(inputs.problem, self.threshold)
        if halves is None:
            raise ValueError(f"{self.name} needs {self._several()}")
        batch = ordered(inputs, halves.order)
        of_decode, of_prefill = self.parts(inputs, halves, batch)
        return Both(halves, batch, plan_decode(of_decode), plan_prefill(of_prefill))

    def _one_call(self, inputs: Inputs, both: Both) -> Runner:
        halves, batch, decode, prefill = both.halves, both.batch, both.decode, both.prefill
        scale = decode.caller_scale if decode.caller_scale == prefill.caller_scale else 1.0

        def launch() -> None:
            for runner in (decode, prefill):
                runner()
                if runner.caller_scale != scale:  # one call leaves a scale to the caller and the other does not
                    runner.out.mul_(runner.caller_scale)

        return Runner(
            launch,
            batch.out,
            f"{decode.resolved_backend}+{prefill.resolved_backend}@{halves.decode.s_qo}",  # two thresholds may split it alike
            _coarser(decode.compute_dtype, prefill.compute_dtype),
            caller_scale=scale,
            accumulator_dtype=_coarser(decode.accumulator_dtype, prefill.accumulator_dtype),
            rounded_merges=max(decode.rounded_merges, prefill.rounded_merges),
            kernel_config=self._config(halves, decode, prefill),
            copies=(*(() if batch.copy is None else (batch.copy,)), *decode.copies, *prefill.copies),
            rows=None if batch.copy is None else batch.copy.source.argsort(),
        )

    def parts(self, inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
        """The inputs of the decode call and of the prefill call."""
        return (
            part_of(inputs, halves.decode, halves.decode_requests, batch, 0),
            part_of(inputs, halves.prefill, halves.prefill_requests, batch, halves.decode.num_q_tokens),
        )

    def _config(self, halves: Halves, decode: Runner, prefill: Runner) -> str:
        """How many requests and query tokens each call has, what the libraries chose, and who reads no `max_seq_len`."""
        calls = []
        of = (("decode", self.decode, halves.decode, decode), ("prefill", self.prefill, halves.prefill, prefill))
        for part, adapter, problem, runner in of:
            size = f"{part}_requests={problem.batch_size} {part}_q_tokens={problem.num_q_tokens}"
            config = adapter.config_of(runner, problem)
            calls.append(f"{size} ({config})" if config else size)
        return " ".join(calls)


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _coarser(one: str, other: str) -> str:
    """The dtype that rounds more: the answer is judged as a whole, at the tolerance of the less exact call."""
    return max(one, other, key=UNIT_ROUNDOFF.__getitem__)
