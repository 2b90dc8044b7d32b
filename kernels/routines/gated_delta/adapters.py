"""FlashInfer's and flash-linear-attention's kernels for gated delta nets, and the formula in PyTorch.

Read from flashinfer-python 0.7.2.post1 (`gdn_decode.py`, `gdn_prefill.py`, `gdn_kernels/`) and fla-core 0.6.0
(`ops/gated_delta_rule/`). FlashInfer's kernels for Hopper are CuTe DSL: each is compiled in the first call for its number of
tokens, heads, dtypes and tile, kept on disk, and loaded by a later process. None can be built on a machine without a GPU.

- `gdn_decode` (`gated_delta_rule_decode_pretranspose`, which calls `gated_delta_rule_mtp` for several tokens over fp32 states): one
  or a few tokens, read and written in the pool by the slots of the requests. It makes the gates itself. With `states=each` it
  leaves the pool alone and writes the states beside it, as engines let it do for drafts.
- `gdn_chunk` (`chunk_gated_delta_rule`): prompts. It writes its states into the pool. Gates are given to it, and what makes them is
  not timed: engines do so in a kernel of their own. The normalisation of keys and queries is a kernel of its call. With few
  sequences it cuts them into parts (`use_cp`): `gdn_chunk_whole` never does.
- `fla_recurrent`: the kernel of `fused_recurrent_gated_delta_rule` over states in place, as vLLM's copy of it, which finds them by
  slots. Here they lie in the order of the requests.
- `fla_chunk` (`chunk_gated_delta_rule`): prompts. It makes new tensors in each call; its output is copied, as vLLM copies it.
"""

# B = batch_size, T = s_qo, H = heads of queries and keys, HV = value heads

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from kernels.adapter import Adapter, Device, Need, Problem, QueryLengths, Runner
from kernels.contract.runner import Restored
from kernels.lazy import Tensor, torch
from kernels.problem.dtypes import HALF
from kernels.routines.gated_delta.inputs import DeltaInputs, Gates
from kernels.routines.gated_delta.problem import kept_states, num_slots

CHUNK = 64
UNROLLED = 16  # tokens of gdn_decode: it is documented for drafts, and unrolls them over fp32 states; an H200 was right with 63
BV = 8  # value elements of a program of fla's recurrent kernel, as its wrapper sets them


@dataclass(frozen=True, kw_only=True)
class Delta(Adapter):
    """What all backends of this routine share."""

    routine: str = "gated_delta"
    query_lengths: QueryLengths = "uniform"
    of_prompts: bool = False  # in 16 bits, with the last state alone

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        if not self.of_prompts:
            return ()
        return Need("queries in fp16 or bf16", problem.q_dtype in HALF), _last_state(problem)

    def workspace_bytes(self, problem: Problem) -> int:
        """What the call and the check keep of states, 8 of each in fp32; of a prompt, states and rows of its chunks."""
        p = problem
        kept, state = max(num_slots(p), p.batch_size * kept_states(p)) * p.num_kv_heads, p.head_dim_qk * p.head_dim_vo
        chunks = p.batch_size * p.num_kv_heads * -(-p.s_qo // CHUNK) if p.s_qo > 1 else 0
        return 4 * (8 * kept * state + chunks * (state + 8 * CHUNK * (p.head_dim_qk + p.head_dim_vo + CHUNK)))


@dataclass(frozen=True, kw_only=True)
class TorchDelta(Delta):
    """The formula as products of matrices, one token after the other, in fp32."""

    name: str = "torch_delta"
    distributions: tuple[str, ...] = ("torch",)

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        p, out, states = inputs.problem, inputs.empty_output(), inputs.empty_states()
        by_token, first = inputs.by_request(out), p.s_qo - states.shape[1]

        def unit(rows: Tensor) -> Tensor:
            lengths = (rows.float().square().sum(-1, keepdim=True) + 1e-6).sqrt()
            return (rows / lengths).repeat_interleave(p.num_kv_heads // p.num_qo_heads, 1)

        def launch() -> None:
            gates = (gate[..., None] for gate in (inputs.decay.exp(), inputs.beta))
            rows = (unit(inputs.q) * inputs.scale, unit(inputs.k), inputs.v.float(), *gates)
            q, k, v, alpha, beta = (inputs.by_request(one)[..., None] for one in rows)
            state = inputs.pool[inputs.slots.long()].float()
            for t in range(p.s_qo):
                key = k[:, t].mT  # [B, HV, 1, K]
                state = alpha[:, t] * (state - beta[:, t] * (state @ k[:, t]) @ key) + beta[:, t] * v[:, t] @ key
                by_token[:, t] = (state @ q[:, t]).squeeze(-1)
                if t >= first:
                    states[:, t - first] = state

        return Runner(launch, out, f"torch_delta_{inputs.device.type}", "fp32", lse=states)


@dataclass(frozen=True, kw_only=True)
class FlashInferDelta(Delta):
    """What FlashInfer's kernels share."""

    distributions: tuple[str, ...] = ("flashinfer-python", "nvidia-cutlass-dsl")
    imports: str = "flashinfer"
    rules_hold_for: tuple[str, ...] = ("flashinfer-python>=0.7.2,<0.7.3",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        dims = Need("head_dim 128 of keys and values", problem.head_dim_qk == problem.head_dim_vo == 128)
        return (Need("SM90, SM100 or SM120", device.major in (9, 10, 12)), dims, *super().needs(problem, device))


@dataclass(frozen=True, kw_only=True)
class GdnDecode(FlashInferDelta):
    """`gated_delta_rule_decode_pretranspose` with its own kernels."""

    name: str = "gdn_decode"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            *super().needs(problem, device),
            Need("queries in bf16", problem.q_dtype == "bf16"),
            Need("states in fp32 or bf16", problem.kv_dtype in ("fp32", "bf16")),
            Need(f"up to {UNROLLED} tokens a request", problem.s_qo <= UNROLLED),
        )

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose

        p, out = inputs.problem, inputs.empty_output()
        given: dict[str, object] = {name: inputs.by_request(getattr(inputs, name)) for name in ("q", "k", "v", "a", "b")}
        given |= {"state": None, "A_log": inputs.a_log, "dt_bias": inputs.dt_bias, "output": inputs.by_request(out)}
        restore: tuple[Restored, ...] = ()
        if kept_states(p) > 1:
            states = inputs.empty_states()
            given |= {"initial_state": inputs.pool, "intermediate_states_buffer": states, "disable_state_update": True}
        else:
            restore = (own := inputs.own_states(),)
            states = given["initial_state"] = own.own
        kernel = "bf16_state" if p.kv_dtype == "bf16" else "mtp" if p.s_qo > 1 else "pretranspose"
        launch = partial(gated_delta_rule_decode_pretranspose, **given, initial_state_indices=inputs.slots, backend="flashinfer")
        return Runner(launch, out, f"gdn_decode_{kernel}", "fp32", lse=states, restore=restore)


@dataclass(frozen=True, kw_only=True)
class GdnChunk(FlashInferDelta):
    """`chunk_gated_delta_rule`."""

    name: str = "gdn_chunk"
    of_prompts: bool = True
    use_cp: Literal["auto", False] = "auto"

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        from flashinfer.gdn_prefill import chunk_gated_delta_rule

        p, out, pool, gates = inputs.problem, inputs.empty_output(), inputs.own_states(), Gates(inputs)
        starts = torch.arange(p.batch_size + 1, dtype=torch.int64, device=inputs.device) * p.s_qo
        launch = partial(
            chunk_gated_delta_rule, inputs.q, inputs.k, inputs.v, gates.alpha, gates.beta, initial_state=pool.own,
            output_final_state=True, cu_seqlens=starts, use_qk_l2norm_in_kernel=True, output=out, output_state=pool.own,
            state_indices=inputs.slots, use_cp=self.use_cp, backend="flashinfer", max_seqlen=p.s_qo,
        )  # fmt: skip
        return Runner(launch, out, self.name, p.q_dtype, lse=pool.own, restore=(pool,), copies=(gates,))


def _last_state(problem: Problem) -> Need:
    return Need("the last state alone (states=last)", kept_states(problem) == 1)


@dataclass(frozen=True, kw_only=True)
class FlaDelta(Delta):
    """What flash-linear-attention's Triton kernels share: the states of the requests one after another."""

    distributions: tuple[str, ...] = ("fla-core",)
    imports: str = "fla.ops.gated_delta_rule"
    extra: str = "fla"
    rules_hold_for: tuple[str, ...] = ("fla-core>=0.6,<0.7",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        dims = Need("head_dim up to 256 of keys", problem.head_dim_qk <= 256)
        return (Need("SM80 or later", device.major >= 8), dims, *super().needs(problem, device))


@dataclass(frozen=True, kw_only=True)
class FlaRecurrent(FlaDelta):
    """The kernel of `fused_recurrent_gated_delta_rule`, launched as its wrapper launches it, into given memory."""

    name: str = "fla_recurrent"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (*super().needs(problem, device), _last_state(problem))

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        from fla.ops.gated_delta_rule.fused_recurrent import fused_recurrent_gated_delta_rule_fwd_kernel as kernel

        p, out, states = inputs.problem, inputs.empty_output(), inputs.own_states(by_request=True)
        programs = -(-p.head_dim_vo // BV) * p.batch_size * p.num_kv_heads
        launch = partial(
            kernel[(programs,)], q=inputs.q, k=inputs.k, v=inputs.v, g=inputs.a, gk=None, gv=None, beta=inputs.b,
            A_log=inputs.a_log, dt_bias=inputs.dt_bias, o=out, h0=states.own, ht=states.own, cu_seqlens=None,
            scale=inputs.scale, T=p.s_qo, H=p.num_qo_heads, HV=p.num_kv_heads, K=p.head_dim_qk, V=p.head_dim_vo,
            BK=1 << (p.head_dim_qk - 1).bit_length(), BV=BV, IS_BETA_HEADWISE=True, USE_QK_L2NORM_IN_KERNEL=True,
            APPLY_BETA_SIGMOID=True, ALLOW_NEG_EIGVAL=False, STATE_V_FIRST=True, num_warps=1, num_stages=3,
        )  # fmt: skip
        return Runner(launch, out, "fused_recurrent_gated_delta_rule_fwd_kernel", "fp32", lse=states.own, restore=(states,))


@dataclass(frozen=True, kw_only=True)
class FlaChunk(FlaDelta):
    """`chunk_gated_delta_rule`."""

    name: str = "fla_chunk"
    of_prompts: bool = True

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        out, states, gates = inputs.empty_output(), inputs.own_states(by_request=True, dtype="fp32"), Gates(inputs)
        rows = [inputs.by_request(rows) for rows in (inputs.q, inputs.k, inputs.v, gates.decay, gates.beta)]

        def launch() -> Tensor:
            found, last = chunk_gated_delta_rule(
                *rows, initial_state=states.own, output_final_state=True, use_qk_l2norm_in_kernel=True, state_v_first=True
            )
            inputs.by_request(out).copy_(found)
            kept: Tensor = last
            return kept

        more: dict[str, Any] = {"lse": "returned", "restore": (states,), "copies": (gates,)}
        return Runner(launch, out, "chunk_gated_delta_rule", inputs.problem.q_dtype, **more)


ADAPTERS = (GdnDecode(), GdnChunk(), GdnChunk(name="gdn_chunk_whole", use_cp=False), FlaRecurrent(), FlaChunk(), TorchDelta())
