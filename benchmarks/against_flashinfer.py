"""Wall time a point against FlashInfer's own `flashinfer_benchmark.py`: the same points, the same GPU, both with compiled kernels.

python benchmarks/against_flashinfer.py CHECKOUT [LINES]    # a FlashInfer checkout of the installed version's tag

One test list, of decode lines over contexts to 8,192, is given to both, twice each: the first time loads what is compiled, the
second is counted, interpreter, oracle and reference check included. Nothing of the checkout is kept here.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    """Cases that both run; beyond one query token the peer keeps XQA alone."""
    axes = itertools.product((1, 8, 32), (1024, 4096, 8192), (1, 4))
    return [
        LINE.format(backends="trtllm-native" if s_qo > 1 else "fa2 fa2_tc trtllm-native", batch=b, s_kv=s_kv, s_qo=s_qo)
        for b, s_kv, s_qo in axes
    ]


def seconds(command: list[str], folder: str) -> float:
    """Of the second of two runs."""
    for _ in range(2):
        started = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - started
        if done.returncode:
            sys.exit(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return took


def main(checkout: str, count: int = 18) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases, peer_rows, own_rows = f"{folder}/cases.txt", f"{folder}/peer.csv", f"{folder}/rows"
        Path(cases).write_text("\n".join(f"{line} --refcheck" for line in lines()[:count]) + "\n")
        script = str(Path(checkout).resolve() / "benchmarks")
        peer_s = seconds([sys.executable, "-c", PEER, script, "--testlist", cases, "--output_path", peer_rows], folder)
        peer_points = len(Path(peer_rows).read_text().splitlines()) - 1
        own = [sys.executable, "-m", "orchestrator", f"import={cases}", f"results.path={own_rows}", "rerun=all"]
        own_s = seconds(own, str(ROOT))
        import pandas as pd

        table = pd.read_parquet(own_rows)
        ran = table[table["attempt"] > 0]
        in_points_s = (ran["finished_at"].max() - ran["started_at"].min()).total_seconds()
    print(f"flashinfer_benchmark.py: {peer_points} rows in {peer_s:.1f} s, {peer_s / peer_points:.3f} s a point")
    print(f"attention-orchestrator: {len(ran)} points in {own_s:.1f} s, of which {in_points_s:.1f} s in points")
    at_least("times faster a point, whole commands", [peer_s / peer_points / (own_s / len(ran))], 50, "x")
    at_least("times faster a point, the start of both left out of ours", [peer_s / peer_points / (in_points_s / len(ran))], 50, "x")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
