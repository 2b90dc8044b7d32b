"""Launches FlashInfer's fa3 again and again, and counts the launches that differ from a right one.

Each of a block's eight warps arrives at the barrier of `attention/hopper/epilogue.cuh` and then waits at it, and both count towards
its eight. So four early warps pass it alone, and copy rows of shared memory that others have not written: they hold values of V.
A warp copies 2 of each 16 rows.

    python -m tests.gpu.fa3_barrier KERNEL FILE SECONDS BATCH,S_QO,S_KV KIND[,KIND ...]

KERNEL is `released`, `mended` (warps only wait at the barrier), or one of them behind `late_` (four warps of a block store 5 us
late). KIND is `ragged` or `paged`, `full` or `causal`: `ragged_full`. What other programs do on the GPU meanwhile is the caller's.
FILE gets a line of JSON for each KIND: launches, launches with rows off, and of each of these which rows of their tiles.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

HEADS, KV_HEADS, DIM, TILE, PAGE = 64, 8, 128, 128, 4
HEADER = "data/include/flashinfer/attention/hopper/epilogue.cuh"
STORE = "    cute::copy(smem_tiled_copy_O, tOrO_retile, tOsO);\n"
LATE = "    if (thread_idx >= 128) { for (int i = 0; i < 5; ++i) __nanosleep(1000); }\n" + STORE
ARRIVE = """    cutlass::arch::NamedBarrier::arrive(NUM_MMA_THREADS,
                                        cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
"""

Call = Callable[[torch.Tensor], object]


def patched(kernel: str, folder: Path) -> Path:
    """A copy of FlashInfer under `folder` with that kernel. Raises AssertionError if the release has another epilogue."""
    spec = importlib.util.find_spec("flashinfer")
    assert spec is not None and spec.origin is not None
    copy = folder / kernel
    shutil.copytree(Path(spec.origin).parent, copy / "flashinfer", dirs_exist_ok=True)
    header = copy / "flashinfer" / HEADER
    text = header.read_text(encoding="utf-8")
    assert text.count(STORE) == text.count(ARRIVE) == 1, "FlashInfer's fa3 has another epilogue now: see docs/backends.md"
    text = text.replace(STORE, LATE) if kernel.startswith("late_") else text
    header.unlink()  # a link, where the package was installed so
    header.write_text(text.replace(ARRIVE, "") if kernel.endswith("mended") else text, encoding="utf-8")
    return copy


class Prompts:
    """Random queries, keys and values of equal requests, on a GPU in bf16."""

    def __init__(self, batch: int, s_qo: int, s_kv: int) -> None:
        torch.manual_seed(0)
        self.batch, self.s_qo, self.s_kv = batch, s_qo, s_kv
        shapes = ((batch * s_qo, HEADS), (batch * s_kv, KV_HEADS), (batch * s_kv, KV_HEADS))
        self.q, self.k, self.v = (torch.randn(*shape, DIM, device="cuda").bfloat16() for shape in shapes)

    def call(self, kind: str) -> Call:
        """Fills an output by fa3, planned once."""
        import flashinfer

        steps = torch.arange(self.batch + 1, device="cuda", dtype=torch.int32)
        room, causal = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), kind.endswith("causal")
        dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        if kind.startswith("ragged"):
            ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(room, "NHD", backend="fa3")
            ragged.plan(steps * self.s_qo, steps * self.s_kv, HEADS, KV_HEADS, DIM, causal=causal, **dtypes)
            return lambda out: ragged.run(self.q, self.k, self.v, out=out)
        pages = self.s_kv // PAGE
        order = torch.arange(self.batch * pages, device="cuda", dtype=torch.int32)
        paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend="fa3")
        full = torch.full((self.batch,), PAGE, device="cuda", dtype=torch.int32)
        paged.plan(steps * self.s_qo, steps * pages, order, full, HEADS, KV_HEADS, DIM, PAGE, causal=causal, **dtypes)
        cache = tuple(x.view(-1, PAGE, KV_HEADS, DIM) for x in (self.k, self.v))
        return lambda out: paged.run(self.q, cache, out=out)

    def reference(self, causal: bool) -> torch.Tensor:
        """[tokens, heads, DIM] of torch, head by head, since the logits of all would not fit."""
        out = torch.empty_like(self.q)
        behind = torch.arange(self.s_kv, device="cuda") > torch.arange(self.s_qo, device="cuda")[:, None] + self.s_kv - self.s_qo
        for request in range(self.batch):
            rows, keys = (
                slice(request * self.s_qo, (request + 1) * self.s_qo),
                slice(request * self.s_kv, (request + 1) * self.s_kv),
            )
            for head in range(HEADS):
                of = keys, head * KV_HEADS // HEADS
                logits = (self.q[rows, head] @ self.k[of].T).float() / DIM**0.5
                logits = logits.masked_fill(behind, float("-inf")) if causal else logits
                out[rows, head] = logits.softmax(-1).bfloat16() @ self.v[of]
        return out

    def of_v(self, out: torch.Tensor, token: int, head: int) -> int:
        """How many of the row's 16 pieces of 8 numbers are pieces of V."""
        request = token // self.s_qo
        pieces = self.v[request * self.s_kv : (request + 1) * self.s_kv, head * KV_HEADS // HEADS].reshape(-1, 8)
        return sum(bool((pieces == piece).all(-1).any()) for piece in out[token, head].view(16, 8))


def counted(prompts: Prompts, kind: str, seconds: float) -> dict[str, object]:
    """What a line of FILE says of `kind`; if no launch of eight is right, of the first one alone."""
    call, reference, right = prompts.call(kind), prompts.reference(kind.endswith("causal")), None
    for _ in range(8):
        call(out := torch.zeros_like(reference))
        off = ((out.float() - reference.float()).abs().amax(-1) > 0.03).nonzero()
        if not len(off):
            right = out.clone()
            break
    if right is None:
        return {"kind": kind, "launches": 1, "wrong": 1, "off": [_told(prompts, out, off)]}
    launches, told, end = 0, [], time.time() + seconds
    while time.time() < end:
        call(out.zero_())
        launches += 1
        if len(off := (out != right).any(-1).nonzero()):
            told.append(_told(prompts, out, off))
    return {"kind": kind, "launches": launches, "wrong": len(told), "off": told}


def _told(prompts: Prompts, out: torch.Tensor, off: torch.Tensor) -> dict[str, object]:
    in_tile = off[:, 0] % prompts.s_qo % TILE
    some = off[:: max(1, len(off) // 32)].tolist()
    return {"rows": len(off), "in_tile": in_tile.unique().tolist(), "of_v": [prompts.of_v(out, *row) for row in some]}


def main(kernel: str, file: str, seconds: str, shape: str, kinds: str) -> None:
    folder = Path(file).absolute().parent
    sys.path.insert(0, str(patched(kernel, folder)))
    os.environ["FLASHINFER_WORKSPACE_BASE"] = str(folder / kernel)  # its modules are compiled anew
    prompts = Prompts(*map(int, shape.split(",")))
    with Path(file).open("a", encoding="utf-8") as lines:
        for kind in kinds.split(","):
            lines.write(json.dumps({"kernel": kernel, "shape": shape, **counted(prompts, kind, float(seconds))}) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
