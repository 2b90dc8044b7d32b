"""An attention flag of an engine as a backend: `vllm/FLASHINFER`. The engine alone calls its kernels, in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner

DEFAULT, OFF = "default", ":no-"  # what the engine takes by itself; `FLASHINFER:no-use_trtllm_attention` has an option off
# The engines by the names of their packages, each with the release that fits this project's torch (vLLM's 0.33.0 was seen too).
ENGINES = {"vllm": "0.25.1", "sglang": "0.5.12.post1"}
PAGES = {"sglang": 1}  # tokens of a page, where that is the engine's own choice and not the model's
KV_DTYPES = {"bf16": "auto", "fp8_e4m3": "fp8"}  # of a cache, and vLLM's names of them


@dataclass(frozen=True, kw_only=True)
class EngineFlag(Adapter):
    """What an engine runs by a flag."""

    query_lengths: QueryLengths = "uniform"
    takes_window: bool = True
    takes_sinks: bool = True
    max_seq_len: EngineMaximum = "passed"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        plain = (p.mask, p.seq_lens, p.batch_spec, p.graph_batch) == ("causal", "fixed", None, None)
        layer = p.routine == "mla" if p.latent else p.routine == "paged_decode" and p.head_dim_qk == p.head_dim_vo
        in_vllm = self.distributions == ("vllm",)
        return (
            Need("SGLang's Llama: full layers without a latent or sinks", in_vllm or not (p.latent or p.window or p.sinks)),
            Need("a model's own layers: paged_decode with one head_dim, or mla", layer),
            Need("requests of one length under a causal mask, without padding: an engine's own steps", plain),
            Need(f"queries in bf16 and a cache in {' or '.join(KV_DTYPES)}", p.q_dtype == "bf16" and p.kv_dtype in KV_DTYPES),
        )

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        """Raises TypeError: an engine's kernels are not called by a worker."""
        raise TypeError(f"{self.name} runs inside its engine alone")

    def how_to_install(self, lacking: Sequence[str]) -> str:
        """An engine has an environment of its own, which may exist."""
        return (
            f"type 'sweep.env=[{lacking[0]}:{ENGINES[lacking[0]]}]' to make an environment of it, or '+env.mine={{python: PATH}}' "
            f"'sweep.env=[mine]' with the interpreter of one that is there"
        )


def parsed(backend: str) -> tuple[str, str] | None:
    """The engine and the flag of a backend's name; None for a backend of another kind."""
    engine, slash, flag = backend.partition("/")
    return (engine, flag) if slash and engine in ENGINES and flag else None


def adapter_of(routine: str, backend: str) -> EngineFlag | None:
    """The backend of an engine's flag; None if the name is of another kind."""
    names = parsed(backend)
    return None if names is None else EngineFlag(routine=routine, name=backend, distributions=names[:1])
