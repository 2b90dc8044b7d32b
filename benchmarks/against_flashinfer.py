"""Wall time a point against FlashInfer's own `flashinfer_benchmark.py`: the same points, the same GPU, both with compiled kernels.

python benchmarks/against_flashinfer.py CHECKOUT [LINES]    # a FlashInfer checkout of the installed version's tag

One test list, of decode lines over contexts to 131,072, is given to both. What either compiles or caches, it has from its first
lines, run before; then the whole list is counted, interpreter, oracle and reference check included. The script draws its KV
cache on the CPU, so that the ratio grows with batch and context. Nothing of the checkout is kept here.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from figures import ROOT, at_least

# Its scripts and the installed package need not be of one commit: keywords that a helper has lost since are left away.
PEER = """
import inspect, runpy, sys
import flashinfer.testing as t, flashinfer.testing.utils as u

def tolerant(helper):
    known = inspect.signature(helper).parameters
    old = {"kv_dtype": ("k_dtype", "v_dtype")}
    def call(*args, **keys):
        for name in [name for name in keys if name not in known]:
            value = keys.pop(name)
            keys.update({new: value for new in old.get(name, ()) if new in known})
        return helper(*args, **keys)
    return call

name = "attention_tb_per_sec_with_actual_seq_lens"
for module in (t, u):
    if hasattr(module, name):
        setattr(module, name, tolerant(getattr(module, name)))
sys.path.insert(0, sys.argv[1])
sys.argv = [sys.argv[1] + "/flashinfer_benchmark.py", *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LINE = (
    "--routine BatchDecodeWithPagedKVCacheWrapper --backends {backends} --page_size 64 --batch_size {batch} "
    "--s_qo {s_qo} --s_kv {s_kv} "
    "--num_qo_heads 64 --num_kv_heads 8 --head_dim_qk 128 --head_dim_vo 128 --q_dtype bfloat16 --kv_dtype bfloat16"
)


def lines() -> list[str]:
    """Cases that both run, shortest first; beyond one query token the peer keeps XQA alone."""
    shapes = itertools.product(((1, 8192), (8, 8192), (1, 131072), (8, 32768), (8, 131072), (32, 131072)), (1, 4))
    return [
        LINE.format(backends="trtllm-native" if s_qo > 1 else "fa2 fa2_tc trtllm-native", batch=b, s_kv=s_kv, s_qo=s_qo)
        for (b, s_kv), s_qo in shapes
    ]


def seconds(command: list[str], folder: str) -> float:
    started = time.perf_counter()
    # Appended: whatever else makes the packages importable here stays as it is.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - started


def peers(checkout: str, file: str, folder: str) -> tuple[float, int]:
    """Seconds and points of the peer."""
    script, rows = str(Path(checkout).resolve() / "benchmarks"), f"{folder}/peer.csv"
    taken_s = seconds([sys.executable, "-c", PEER, script, "--testlist", file, "--output_path", rows], folder)
    return taken_s, len(Path(rows).read_text().splitlines()) - 1


def ours(file: str, folder: str, timing: str) -> tuple[float, pd.DataFrame]:
    """Seconds and rows of ours."""
    path = f"{folder}/{timing}"
    command = [sys.executable, "-m", "orchestrator", f"import={file}", f"results.path={path}", f"timing={timing}", "rerun=all"]
    taken_s = seconds(command, str(ROOT))
    rows = pd.read_parquet(path)
    return taken_s, rows[rows["attempt"] > 0]


def listed(cases: list[str], folder: str) -> str:
    file = f"{folder}/cases.txt"
    Path(file).write_text("\n".join(f"{line} --refcheck" for line in cases) + "\n")
    return file


def main(checkout: str, count: int = len(lines())) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as folder:
        few, whole = listed(lines()[:2], first), listed(lines()[:count], folder)
        ours(few, first, "default")
        peers(checkout, few, first)
        peer_s, peer_points = peers(checkout, whole, folder)
        print(f"flashinfer_benchmark.py: {peer_points} rows in {peer_s:.1f} s, {peer_s / peer_points:.3f} s a point", flush=True)
        for timing in ("default", "quick"):
            own_s, rows = ours(whole, folder, timing)
            in_points_s = (rows["finished_at"].max() - rows["started_at"].min()).total_seconds()
            print(
                f"attention-orchestrator, timing={timing}: {len(rows)} points in {own_s:.1f} s, {in_points_s:.1f} s of it in points"
            )
            at_least("times faster a point, whole commands", [peer_s / peer_points / (own_s / len(rows))], 50, "x")
            at_least("... with the start left out of ours alone", [peer_s / peer_points / (in_points_s / len(rows))], 50, "x")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
