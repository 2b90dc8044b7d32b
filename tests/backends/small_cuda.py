"""A kernel module that nvcc compiles in a second: FlashInfer's own take ten, for headers that no test needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashinfer.jit import JitSpec

SOURCE = """
__global__ void doubled(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" int launch(float* x) { doubled<<<1, 32>>>(x); return static_cast<int>(cudaGetLastError()); }
"""


def gen_small_module() -> JitSpec:
    from flashinfer.jit import env, gen_jit_spec

    env.FLASHINFER_GEN_SRC_DIR.mkdir(parents=True, exist_ok=True)
    source = env.FLASHINFER_GEN_SRC_DIR / "small.cu"
    source.write_text(SOURCE)
    return gen_jit_spec("small", [source])
