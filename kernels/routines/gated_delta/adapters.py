"""FlashInfer's and flash-linear-attention's kernels for gated delta nets, and the chunks of the paper in PyTorch.

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

# B = batch_size, T = s_qo, H = heads of queries and keys, HV = value heads, C = tokens of a chunk

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.problem.dtypes import HALF
from kernels.routines.gated_delta.problem import kept_states, num_slots, state_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.device import Device
    from kernels.problem import Problem
    from kernels.routines.gated_delta.inputs import DeltaInputs

CHUNK = 64
UNROLLED = 16  # tokens over which gdn_decode is unrolled at most: engines draft fewer
BV = 8  # value elements of a program of fla's recurrent kernel, as its wrapper sets them


@dataclass(frozen=True, kw_only=True)
class Delta(Adapter):
    """What all backends of this routine share."""

    routine: str = "gated_delta"
    query_lengths: QueryLengths = "uniform"

    def workspace_bytes(self, problem: Problem) -> int:
        """States that the call writes, and what the check keeps to compare launches."""
        kept = problem.batch_size * kept_states(problem) if kept_states(problem) > 1 else num_slots(problem)
        elements = kept * problem.num_kv_heads * problem.head_dim_vo * problem.head_dim_qk
        return 2 * kept * state_bytes(problem) + 6 * 4 * elements


@dataclass(frozen=True, kw_only=True)
class TorchDelta(Delta):
    """Chunks of tokens in fp32, as the paper's appendix has them (WY representation): no token waits for the one before."""

    name: str = "torch_delta"
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def workspace_bytes(self, problem: Problem) -> int:
        tokens = problem.batch_size * problem.num_kv_heads * (problem.head_dim_qk + problem.head_dim_vo + CHUNK)
        return super().workspace_bytes(problem) + 4 * 8 * tokens * problem.s_qo

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        out, states, slots = inputs.empty_output(), inputs.empty_states(), inputs.slots.long()
        size = 1 if kept_states(inputs.problem) > 1 else CHUNK

        def launch() -> None:
            found, kept = in_chunks(inputs, inputs.pool[slots].float(), size)
            out.copy_(found.flatten(0, 1))
            states.copy_(kept if size == 1 else kept[:, -1:])

        return Runner(launch, out, f"torch_delta_{inputs.device.type}", "fp32", lse=states)


def in_chunks(
    inputs: DeltaInputs, state: Tensor, size: int, rounded: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, HV, V] and the state behind each chunk [B, chunks, HV, V, K], from the states before [B, HV, V, K], fp32.

    With decays d of a chunk, added up from its begin, each token's missing value is U - W S^T, where (U, W) = (1 + A)^-1
    (beta v, beta exp(d) k) and A_ij = beta_i exp(d_i - d_j) k_i.k_j for j < i. `rounded` is what a kernel does to each factor.
    """
    import torch

    group = inputs.problem.num_kv_heads // inputs.problem.num_qo_heads

    def heads(rows: Tensor) -> Tensor:  # [B, HV, T, ...]
        return inputs.by_request(rows).transpose(1, 2)

    def unit(rows: Tensor) -> Tensor:
        wide = rows.float()
        return rounded(wide * (wide.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).repeat_interleave(group, 1)

    q, k, v, beta, decay = (
        unit(heads(inputs.q)),
        unit(heads(inputs.k)),
        heads(inputs.v.float()),
        heads(inputs.beta),
        heads(inputs.decay),
    )
    outs, states = [], []
    for start in range(0, q.shape[2], size):
        qs, ks, vs, bs, gs = (t[:, :, start : start + size] for t in (q, k, v, beta, decay))
        d = gs.cumsum(-1)[..., None]
        between = (d - d.transpose(-1, -2)).tril().exp().tril()  # [B, HV, C, C]
        a = (bs[..., None] * between * (ks @ ks.transpose(-1, -2))).tril(-1)
        inverse = rounded(
            torch.linalg.solve_triangular(
                a + torch.eye(a.shape[-1], device=a.device), torch.eye(a.shape[-1], device=a.device).expand_as(a), upper=False
            )
        )
        u, w = inverse @ rounded(bs[..., None] * vs), inverse @ rounded(bs[..., None] * d.exp() * ks)
        missing = rounded(u) - rounded(w) @ rounded(state).transpose(-1, -2)
        inside = rounded(between * (qs @ ks.transpose(-1, -2))) @ rounded(missing)
        outs.append((d.exp() * (qs @ rounded(state).transpose(-1, -2)) + inside) * inputs.scale)
        left = (d[:, :, -1:] - d).exp()
        state = d[:, :, -1:].exp() * state + rounded(left * missing).transpose(-1, -2) @ ks
        states.append(state)
    return torch.cat(outs, 2).transpose(1, 2), torch.stack(states, 1)


@dataclass(frozen=True, kw_only=True)
class FlashInferDelta(Delta):
    """What FlashInfer's kernels share."""

    distributions: tuple[str, ...] = ("flashinfer-python", "nvidia-cutlass-dsl")
    imports: str = "flashinfer"
    rules_hold_for: tuple[str, ...] = ("flashinfer-python>=0.7.2,<0.7.3",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            Need("SM90, SM100 or SM120", device.major in (9, 10, 12)),
            Need("head_dim 128 of keys and values", (p.head_dim_qk, p.head_dim_vo) == (128, 128)),
        )


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

        out, each = inputs.empty_output(), kept_states(inputs.problem) > 1
        pool, beside = (inputs.pool, inputs.empty_states()) if each else (inputs.pool.clone(), None)
        rows = {name: inputs.by_request(getattr(inputs, name)) for name in ("q", "k", "v", "a", "b")}
        more: dict[str, Any] = {"intermediate_states_buffer": beside, "disable_state_update": True} if each else {}

        def launch() -> None:
            gated_delta_rule_decode_pretranspose(
                **rows, state=None, A_log=inputs.a_log, dt_bias=inputs.dt_bias, output=inputs.by_request(out),
                initial_state=pool, initial_state_indices=inputs.slots, backend="flashinfer", **more,
            )  # fmt: skip

        name = (
            "gdn_decode_bf16_state"
            if inputs.problem.kv_dtype == "bf16"
            else "gdn_decode_mtp"
            if inputs.problem.s_qo > 1
            else "gdn_decode_pretranspose"
        )
        restore = None if each else lambda: pool.copy_(inputs.pool)
        return Runner(launch, out, name, "fp32", lse=pool if beside is None else beside, restore=restore)


@dataclass(frozen=True, kw_only=True)
class GdnChunk(FlashInferDelta):
    """`chunk_gated_delta_rule`."""

    name: str = "gdn_chunk"
    use_cp: Literal["auto", False] = "auto"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            *super().needs(problem, device),
            Need("queries in fp16 or bf16", problem.q_dtype in HALF),
            Need("the last state alone (states=last)", kept_states(problem) == 1),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        chunks = -(-p.s_qo // CHUNK) * p.batch_size * p.num_kv_heads
        return (
            super().workspace_bytes(p)
            + 4 * chunks * p.head_dim_vo * p.head_dim_qk
            + 16 * p.num_q_tokens * p.num_kv_heads * p.head_dim_qk
        )

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        import torch
        from flashinfer.gdn_prefill import chunk_gated_delta_rule

        p, out, pool = inputs.problem, inputs.empty_output(), inputs.pool.clone()
        starts = torch.arange(p.batch_size + 1, dtype=torch.int64, device=inputs.device) * p.s_qo
        alpha, beta = torch.empty_like(inputs.decay), torch.empty_like(inputs.beta)

        def restore() -> None:
            pool.copy_(inputs.pool)
            alpha.copy_(inputs.decay.exp())
            beta.copy_(inputs.beta)

        def launch() -> None:
            chunk_gated_delta_rule(
                inputs.q, inputs.k, inputs.v, alpha, beta, initial_state=pool, output_final_state=True, cu_seqlens=starts,
                use_qk_l2norm_in_kernel=True, output=out, output_state=pool, state_indices=inputs.slots, use_cp=self.use_cp,
                backend="flashinfer", max_seqlen=p.s_qo,
            )  # fmt: skip

        restore()
        return Runner(launch, out, self.name, p.q_dtype, lse=pool, restore=restore)


@dataclass(frozen=True, kw_only=True)
class FlaDelta(Delta):
    """What flash-linear-attention's Triton kernels share: the states of the requests one after another."""

    distributions: tuple[str, ...] = ("fla-core",)
    imports: str = "fla.ops.gated_delta_rule"
    extra: str = "fla"
    rules_hold_for: tuple[str, ...] = ("fla-core>=0.6,<0.7",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            Need("SM80 or later", device.major >= 8),
            Need("the last state alone (states=last)", kept_states(problem) == 1),
            Need("head_dim up to 256 of keys", problem.head_dim_qk <= 256),
        )


@dataclass(frozen=True, kw_only=True)
class FlaRecurrent(FlaDelta):
    """The kernel of `fused_recurrent_gated_delta_rule`, launched as its wrapper launches it, into given memory."""

    name: str = "fla_recurrent"

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        import torch
        from fla.ops.gated_delta_rule.fused_recurrent import fused_recurrent_gated_delta_rule_fwd_kernel as kernel

        p, out, slots = inputs.problem, inputs.empty_output(), inputs.slots.long()
        states = inputs.pool[slots]
        blocks = -(-p.head_dim_vo // BV)

        def launch() -> None:
            kernel[(blocks * p.batch_size * p.num_kv_heads,)](
                q=inputs.q, k=inputs.k, v=inputs.v, g=inputs.a, gk=None, gv=None, beta=inputs.b, A_log=inputs.a_log,
                dt_bias=inputs.dt_bias, o=out, h0=states, ht=states, cu_seqlens=None, scale=inputs.scale, T=p.s_qo,
                H=p.num_qo_heads, HV=p.num_kv_heads, K=p.head_dim_qk, V=p.head_dim_vo, BK=_power_of_2(p.head_dim_qk), BV=BV,
                IS_BETA_HEADWISE=True, USE_QK_L2NORM_IN_KERNEL=True, APPLY_BETA_SIGMOID=True, ALLOW_NEG_EIGVAL=False,
                STATE_V_FIRST=True, num_warps=1, num_stages=3,
            )  # fmt: skip

        def restore() -> None:
            torch.index_select(inputs.pool, 0, slots, out=states)

        return Runner(launch, out, "fused_recurrent_gated_delta_rule_fwd_kernel", "fp32", lse=states, restore=restore)


@dataclass(frozen=True, kw_only=True)
class FlaChunk(FlaDelta):
    """`chunk_gated_delta_rule`."""

    name: str = "fla_chunk"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (*super().needs(problem, device), Need("queries in fp16 or bf16", problem.q_dtype in HALF))

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        chunks = -(-p.s_qo // CHUNK) * p.batch_size * p.num_kv_heads
        rows = p.num_q_tokens * p.num_kv_heads
        return (
            super().workspace_bytes(p)
            + 2 * chunks * p.head_dim_vo * p.head_dim_qk
            + 12 * rows * (p.head_dim_qk + p.head_dim_vo + CHUNK)
        )

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        import torch
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        out, slots, states = inputs.empty_output(), inputs.slots.long(), inputs.pool[inputs.slots.long()].float()
        q, k, v = (inputs.by_request(rows) for rows in (inputs.q, inputs.k, inputs.v))
        decay, beta = (inputs.by_request(torch.empty_like(gate)) for gate in (inputs.decay, inputs.beta))

        def restore() -> None:
            states.copy_(inputs.pool[slots])
            decay.copy_(inputs.by_request(inputs.decay))
            beta.copy_(inputs.by_request(inputs.beta))

        def launch() -> Tensor:
            found, last = chunk_gated_delta_rule(
                q,
                k,
                v,
                decay,
                beta,
                initial_state=states,
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
                state_v_first=True,
            )
            inputs.by_request(out).copy_(found)
            kept: torch.Tensor = last
            return kept

        restore()
        return Runner(launch, out, "chunk_gated_delta_rule", inputs.problem.q_dtype, lse="returned", restore=restore)


def _power_of_2(count: int) -> int:
    return 1 << (count - 1).bit_length()


ADAPTERS = (GdnDecode(), GdnChunk(), GdnChunk(name="gdn_chunk_whole", use_cp=False), FlaRecurrent(), FlaChunk(), TorchDelta())
