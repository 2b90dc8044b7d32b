"""Backends that are right if somebody looks, and one that always is, for `adapters=[tests.backends.cheating]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import torch

from kernels import registry
from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.check import oracle
from kernels.contract.runner import Restored
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.copies import InputCopy
from kernels.inputs.tensors import write
from kernels.problem import Problem
from orchestrator.machines import cpu

if TYPE_CHECKING:
    from torch import Tensor

Cheat = Callable[[Inputs, Runner], Runner]


@dataclass(frozen=True, kw_only=True)
class Cheating(Adapter):
    """An honest backend, which copies the cache in every call, after `cheat` has changed it."""

    cheat: Cheat
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = TorchSdpa(routine="paged_decode").prepare(inputs, device)

        def launch() -> None:
            right.refresh()
            right()

        return self.cheat(inputs, replace(right, launch=launch, copies=()))


def honest(inputs: Inputs, right: Runner) -> Runner:
    return right


def lazy(inputs: Inputs, right: Runner) -> Runner:
    """Computes only if its output holds NaN."""

    def launch() -> None:
        if right.out.isnan().any():
            right()
        else:
            right.out.zero_()

    return replace(right, launch=launch)


def races(inputs: Inputs, right: Runner) -> Runner:
    """Loses one head in one launch of 16."""
    number = count(5)

    def launch() -> None:
        right()
        if next(number) % 16 == 0:
            right.out[:, 0] = 0

    return replace(right, launch=launch)


def copies_cache(inputs: Inputs, right: Runner) -> Runner:
    """Reads a copy of the cache that was made in its preparation."""
    kept = replace(inputs, kv=(inputs.kv[0].clone(), inputs.kv[1].clone()))
    return replace(TorchSdpa(routine="paged_decode").prepare(kept, cpu()), copies=())


class Answers(InputCopy):
    """A copy of inputs that holds their answer."""

    def __init__(self, right: Runner) -> None:
        self.right, self.out = right, right.out.clone()

    def refresh(self) -> None:
        self.right()
        self.out.copy_(self.right.out)


def answers_untimed(inputs: Inputs, right: Runner) -> Runner:
    """Computes where copies of inputs are made, which is not timed, and copies the answer in its call."""
    kept = Answers(right)
    return replace(right, launch=lambda: right.out.copy_(kept.out), copies=(kept,))


def restores_untimed(inputs: Inputs, right: Runner) -> Runner:
    """Computes where what a call overwrites is brought back, which is not timed."""
    return replace(right, launch=lambda: None, restore=right)


def restores_an_answer(inputs: Inputs, right: Runner) -> Runner:
    """Says that an answer of its own is an input, and gets it back before each launch."""
    right()
    return replace(right, launch=lambda: None, restore=(Restored(right.out, right.out.clone()),))


def gathers(inputs: Inputs, right: Runner) -> Runner:
    """Merges in a function of its own before each call, as an older contract let it."""
    return replace(right, gather=right)


def reads_reordered(inputs: Inputs, right: Runner) -> Runner:
    """Says where its rows lie, and does not declare that they lie in another order."""
    import torch

    return replace(right, rows=torch.arange(len(right.out)))


def lazy_lse(inputs: Inputs, right: Runner) -> Runner:
    """Computes all of it when somebody asks for the log-sum-exp: its launch is empty."""
    lse = inputs.empty_lse()

    def work() -> Tensor | None:
        right()
        return lse

    return replace(right, launch=lambda: None, lse=work)


def lazy_tensor(inputs: Inputs, right: Runner) -> Runner:
    """Computes when its output is read."""
    out = right.out.as_subclass(computing_when_read(right))
    return replace(right, launch=lambda: None, out=out)


def lazy_lse_tensor(inputs: Inputs, right: Runner) -> Runner:
    """Returns a log-sum-exp that computes when it is read."""
    lse = inputs.q[..., 0].float().as_subclass(computing_when_read(right))
    return replace(right, launch=lambda: lse, lse="returned")


def computing_when_read(work: Callable[[], object]) -> Any:
    import torch

    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                work()
                return func(*args, **(kwargs or {}))

    return Lazy


def copies_more_than_new_tokens(inputs: Inputs, right: Runner) -> Runner:
    """Says that it copies new tokens alone, and reads a copy of the whole cache."""
    return TorchSdpa(routine="paged_decode").prepare(inputs, cpu())


def remembers_queries(inputs: Inputs, right: Runner) -> Runner:
    """Answers a query that it has seen from memory."""
    known: dict[bytes, Tensor] = {}

    def launch() -> None:
        import torch

        key = inputs.q.view(torch.uint8).numpy().tobytes()
        if key not in known:
            right()
            known[key] = right.out.clone()
        right.out.copy_(known[key])

    return replace(right, launch=launch)


def keeps_output(inputs: Inputs, right: Runner) -> Runner:
    """Returns at once if its output holds an answer to this query already."""
    last: list[Tensor] = []

    def launch() -> None:
        import torch

        if right.out.isnan().any() or not last or not torch.equal(last[0], inputs.q):
            right()
            last[:] = [inputs.q.clone()]

    return replace(right, launch=launch)


def samples_cache(inputs: Inputs, right: Runner) -> Runner:
    """Answers from memory if the query and one value of the cache are ones that it has seen."""
    known: dict[bytes, Tensor] = {}

    def launch() -> None:
        import torch

        seen = torch.cat((inputs.q.flatten(), inputs.kv[1][0, 0, 1, :1]))
        key = seen.view(torch.uint8).numpy().tobytes()
        if key not in known:
            right()
            known[key] = right.out.clone()
        right.out.copy_(known[key])

    return replace(right, launch=launch)


def watches_sentinels(inputs: Inputs, right: Runner) -> Runner:
    """Answers from memory if the query, the last 64 tokens and those at page borders are ones that it has seen."""
    known: dict[bytes, Tensor] = {}
    p = inputs.problem
    watched = [n for n in range(p.s_kv) if n % p.slots_per_page in (0, p.slots_per_page - 1) or n >= p.s_kv - 64]

    def launch() -> None:
        import torch

        tokens = (t[:, watched].flatten() for t in inputs.tokens_of(range(p.batch_size), 0, p.s_kv))
        key = torch.cat((inputs.q.flatten(), *tokens)).view(torch.uint8).numpy().tobytes()
        if key not in known:
            right()
            known[key] = right.out.clone()
        right.out.copy_(known[key])

    return replace(right, launch=launch)


def _kept(inputs: Inputs, right: Runner, rows: list[int]) -> Runner:
    """Answers these query tokens from memory as long as their queries and one value of the cache stay."""
    known: dict[tuple[float, float], Tensor] = {}

    def launch() -> None:
        right()
        key = float(inputs.q[rows].float().sum()), float(inputs.kv[0][0, 0, 0, 0])
        right.out[rows] = known.setdefault(key, right.out[rows].clone())

    return replace(right, launch=launch)


def one_request_kept(inputs: Inputs, right: Runner) -> Runner:
    """Answers its last request from memory."""
    return _kept(inputs, right, [*range(*inputs.problem.q_starts[-2:])])


def half_prompt_kept(inputs: Inputs, right: Runner) -> Runner:
    """Answers the first half of each prompt from memory."""
    starts = inputs.problem.q_starts
    return _kept(inputs, right, [row for first, stop in pairwise(starts) for row in range(first, (first + stop) // 2)])


def overruns(inputs: Inputs, right: Runner) -> Runner:
    """Writes one element behind its output."""
    import torch

    out = right.out
    behind = torch.empty(0, dtype=out.dtype).set_(out.untyped_storage(), out.storage_offset() + out.numel(), (1,), (1,))

    def launch() -> None:
        right()
        behind.zero_()

    return replace(right, launch=launch)


def states_8_bits(inputs: Inputs, right: Runner) -> Runner:
    """States a coarser arithmetic than its operands have, for a wider tolerance."""
    return replace(right, compute_dtype="fp8_e4m3")


def corrupts(inputs: Inputs, right: Runner) -> Runner:
    """Answers right, and then changes a value that all backends share."""

    def launch() -> None:
        right()
        inputs.kv[1][0, 0, 0, 0] += 1

    return replace(right, launch=launch)


def damages_reference(inputs: Inputs, right: Runner) -> Runner:
    """Gives a wrong answer, and writes it over the right one."""
    import gc

    def launch() -> None:
        right()
        right.out.mul_(1.05)
        for one in gc.get_objects():
            if type(one).__name__ == "SharedInputs" and one.answer is not None and one.inputs is inputs:
                one.answer.out.copy_(right.out)

    return replace(right, launch=launch)


def writes_unused(inputs: Inputs, right: Runner) -> Runner:
    """Answers right, and then writes to slots of the cache that hold no token, which other backends may read."""
    import torch

    def launch() -> None:
        right()
        write(inputs, 1, inputs.unused_slots, torch.zeros(1))

    return replace(right, launch=launch)


def writes_unused_later(inputs: Inputs, right: Runner) -> Runner:
    """Does so only after some launches, when others are being timed as well, and to one slot of one KV head."""
    import torch

    page, slot = (at[-1:] for at in inputs.unused_slots)
    return _later(right, lambda: write(inputs, 0, (page, slot, torch.tensor([1])), torch.zeros(1)))


def corrupts_later(inputs: Inputs, right: Runner) -> Runner:
    """Does so only after some launches, when others are being timed as well."""
    return _later(right, lambda: inputs.kv[1][0].add_(1))


def corrupts_once(inputs: Inputs, right: Runner) -> Runner:
    """Does so in one launch of all, while it is timed."""
    return _later(right, lambda: inputs.kv[1][0].add_(1), times=1)


def _later(right: Runner, damage: Callable[[], object], times: int = 10**6) -> Runner:
    """Answers right, and does damage from the eighth launch on, so many times."""
    number = count()

    def launch() -> None:
        right()
        if 6 < next(number) <= 6 + times:
            damage()

    return replace(right, launch=launch)


def reorders_queries(inputs: Inputs, right: Runner) -> Runner:
    """Exchanges the queries of two heads in place, which no plain sum shows, and answers as if they were as before."""
    import torch

    def launch() -> None:
        if not torch.equal(inputs.q[:, 0], first):
            inputs.q[:, :2] = inputs.q[:, :2].flip(1)
        right()
        inputs.q[:, :2] = inputs.q[:, :2].flip(1)

    first = inputs.q[:, 0].flip(-1)  # as they will be: they are other ones now
    return replace(right, launch=launch)


def last_bit(inputs: Inputs, right: Runner) -> Runner:
    """Changes the last bit of one element in every other launch."""
    number = count()

    def launch() -> None:
        right()
        right.out.view(torch.int16)[0, 0, 0] ^= next(number) % 2

    return replace(right, launch=launch)


def batch_bit(inputs: Inputs, right: Runner) -> Runner:
    """Changes the last bit of one element if the request is not alone."""

    def launch() -> None:
        right()
        right.out.view(torch.int16)[0, 0, 0] ^= inputs.problem.batch_size > 1

    return replace(right, launch=launch)


CHEATS: tuple[Cheat, ...] = (
    honest,
    lazy,
    races,
    copies_cache,
    answers_untimed,
    restores_untimed,
    restores_an_answer,
    gathers,
    reads_reordered,
    lazy_lse,
    lazy_lse_tensor,
    lazy_tensor,
    copies_more_than_new_tokens,
    remembers_queries,
    keeps_output,
    samples_cache,
    watches_sentinels,
    one_request_kept,
    half_prompt_kept,
    overruns,
    states_8_bits,
    corrupts,
    damages_reference,
    writes_unused,
    writes_unused_later,
    corrupts_later,
    corrupts_once,
    reorders_queries,
    last_bit,
    batch_bit,
)


@dataclass(frozen=True, kw_only=True)
class Lazy8(Adapter):
    """Computes only if its output holds NaN, and states 8 bits over queries of 16: one token moves no answer far enough."""

    routine: str = "mla"
    name: str = "lazy_8"
    query_lengths: QueryLengths = "varlen"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        out = inputs.empty_output()

        def launch() -> None:
            if out.isnan().any():
                out.copy_(oracle.reference(inputs))

        return Runner(launch, out, self.name, "fp8_e4m3")


@dataclass(frozen=True, kw_only=True)
class Stale(Adapter):
    """Torch's backend of a routine on clones of some inputs, which it brings up to date in its first `fresh` launches alone."""

    of: str
    keeps: tuple[str, ...]
    fresh: int = 3
    query_lengths: QueryLengths = "varlen"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        kept, number = {name: getattr(inputs, name).clone() for name in self.keeps}, count()
        right = registry.get(self.routine, self.of).prepare(replace(inputs, **kept), device)

        def launch() -> None:
            if next(number) < self.fresh:
                for name, clone in kept.items():
                    clone.copy_(getattr(inputs, name))
            right()

        return replace(right, launch=launch)


@dataclass(frozen=True, kw_only=True)
class StaleOutputs(Adapter):
    """Keeps what its third launch left: rows of the first query tokens, or states while the query and most signs of values stay."""

    of: str
    what: str  # "rows" or "states"
    query_lengths: QueryLengths = "varlen"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, known, number = registry.get(self.routine, self.of).prepare(inputs, device), list[Any](), count()

        def launch() -> None:
            right()
            written = right.out[:4] if self.what == "rows" else right.written_lse()
            seen = [] if self.what == "rows" else [inputs.q, inputs.v[0, 0].sign()]
            if next(number) == 3:
                known[:] = [one.clone() for one in (written, *seen)]
            elif known and all(float((a == b).float().mean()) > 0.9 for a, b in zip(known[1:], seen, strict=True)):
                written.copy_(known[0])

        return replace(right, launch=launch)


DELTA, SPARSE = {"routine": "gated_delta", "of": "torch_delta"}, {"routine": "sparse_mla", "of": "torch_indexed"}
STALE: tuple[Adapter, ...] = (
    Stale(name="factors_of_prepare", keeps=("k", "a", "b"), fresh=0, **DELTA),
    Stale(name="queries_kept", keeps=("q", "k"), **DELTA),
    Stale(name="gates_kept", keeps=("a", "b", "a_log", "dt_bias"), **DELTA),
    Stale(name="slots_kept", keeps=("slots",), **DELTA),
    StaleOutputs(name="states_kept", what="states", **DELTA),
    Stale(name="indices_of_prepare", keeps=("indices",), fresh=0, **SPARSE),
    Stale(name="indices_kept", keeps=("indices",), **SPARSE),
    StaleOutputs(name="early_rows_kept", what="rows", **SPARSE),
)
LATENT = {"num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
SHAPES = {  # of problems of these routines
    "gated_delta": {"num_qo_heads": 2, "num_kv_heads": 4, "head_dim_qk": 32, "head_dim_vo": 32, "kv_dtype": "fp32", "s_qo": 3},
    "sparse_mla": {**LATENT, "s_qo": 12, "s_kv": 300, "page_size": 16, "top_k": 128},
}
ADAPTERS = (
    *STALE,
    *(
        Cheating(
            name=cheat.__name__,
            cheat=cheat,
            copies_new_tokens=cheat is copies_more_than_new_tokens,
            gives_lse=cheat in (lazy_lse, lazy_lse_tensor),
        )
        for cheat in CHEATS
    ),
    Lazy8(),
)
