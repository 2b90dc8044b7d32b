"""A backend with a wrapper that lives on between batches, right or with a plan that leaves something of the one before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.adapter import Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.check.oracle import reference
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem


class Wrapper:
    """What a library's wrapper keeps between plans: its buffers, the lengths of the batch and the kernel that it chose."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.lengths: tuple[int, ...] = ()
        self.before: tuple[int, ...] = ()

    def plan(self, problem: Problem, *, lengths: bool = True, resolve: bool = True) -> None:
        self.lengths = problem.kv_lens if lengths or not self.before else self.before
        self.before = problem.kv_lens
        if resolve or self.backend == "auto":
            self.backend = "masked" if problem.tree is not None else "plain"


@dataclass(frozen=True, kw_only=True)
class Planned(TorchSdpa):
    """A right backend with such a wrapper. `lengths` and `resolve` say what a second plan updates in time."""

    routine: str = "paged_prefill"
    name: str = "auto"
    query_lengths: QueryLengths = "varlen"
    lengths: bool = True
    resolve: bool = True

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (Need("bf16", problem.q_dtype == problem.kv_dtype == problem.output_dtype == "bf16"),)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        wrapper = Wrapper("auto")

        def plan(batch: Inputs) -> Runner:
            wrapper.plan(batch.problem, lengths=self.lengths, resolve=self.resolve)
            out = batch.empty_output()

            def run() -> None:  # reads the wrapper when it is called, as a kernel reads the wrapper's buffers
                lens = zip(batch.problem.q_lens, wrapper.lengths, batch.problem.kv_lens, strict=True)
                batch_spec = "_".join(f"q{q}s{min(planned, real)}" for q, planned, real in lens)
                keys = batch.problem.model_dump(exclude={"batch_size", "s_qo", "min_s_qo", "s_kv", "seq_lens"})
                read = Problem.model_validate({**keys, "batch_spec": batch_spec})
                out.copy_(reference(replace(batch, problem=read)))

            return Runner(run, out, wrapper.backend, "bf16", plan_again=plan)

        return plan(inputs)
