"""Wall time a point against FlashInfer's own `flashinfer_benchmark.py`: the same points, the same GPU, both with compiled kernels.

python benchmarks/against_flashinfer.py CHECKOUT [SECONDS]    # a FlashInfer checkout of the installed version's tag

One test list, of decode lines over contexts to 131,072, is given to the script, which is ended after so many seconds (600); ours
gets the lines that it finished. What either compiles or caches, it has from the first lines, run before; then interpreter, oracle
and reference check are counted. Ours runs twice: with its workers on Ray, as by default, and all in one process, as the script.
The script draws its KV cache on the CPU, so that the ratio grows with batch and context. Nothing of the checkout is kept here.
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
POLL_S = 0.05
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


def started(command: list[str], folder: str) -> subprocess.Popen[bytes]:
    # Appended: whatever else makes the packages importable here stays as it is.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with Path(folder, "output.txt").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=output, stderr=output)


def require(process: subprocess.Popen[bytes], folder: str) -> None:
    if process.returncode:
        words = Path(folder, "output.txt").read_text(errors="replace")[-4000:]
        sys.exit(f"{' '.join(map(str, process.args[:4]))} ... ended with {process.returncode}:\n{words}")  # type: ignore[index]


def peers(checkout: str, cases: list[str], folder: str, limit_s: float) -> tuple[float, int, list[str]]:
    """Until its last row: seconds of the peer, its points, and the cases that it finished."""
    script, file = str(Path(checkout).resolve() / "benchmarks"), Path(folder, "peer.csv")
    began, seen = time.perf_counter(), [(0.0, 0)]
    process = started([sys.executable, "-c", PEER, script, "--testlist", listed(cases, folder), "--output_path", str(file)], folder)
    going_on = True
    while going_on:
        time.sleep(POLL_S)
        going_on = process.poll() is None and time.perf_counter() - began < limit_s  # asked first: what it wrote last counts too
        points = max(0, len(file.read_text().splitlines()) - 1) if file.exists() else 0
        if points > seen[-1][1]:  # it writes the rows of a case when it is through with it
            seen.append((time.perf_counter() - began, points))
            print(f"  {points} rows after {seen[-1][0]:.1f} s", flush=True)
    if process.poll() is None:
        process.kill()
        process.wait()
    else:
        require(process, folder)
    rows_of = itertools.accumulate(1 if "--backends trtllm-native " in case else 3 for case in cases)
    return *seen[-1], [case for case, rows in zip(cases, rows_of, strict=True) if rows <= seen[-1][1]]


def ours(cases: list[str], folder: str, cluster: str) -> tuple[float, pd.DataFrame]:
    """Seconds and rows of ours."""
    path, began = f"{folder}/{cluster}", time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        f"import={listed(cases, folder)}",
        f"results.path={path}",
        f"cluster={cluster}",
    ]
    process = started(command, folder)
    process.wait()
    require(process, folder)
    rows = pd.read_parquet(path)
    return time.perf_counter() - began, rows[rows["attempt"] > 0]


def listed(cases: list[str], folder: str) -> str:
    file = f"{folder}/cases.txt"
    Path(file).write_text("\n".join(f"{case} --refcheck" for case in cases) + "\n")
    return file


def main(checkout: str, limit_s: float = 600) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as folder:
        ours(lines()[:2], first, "local")
        peers(checkout, lines()[:2], first, limit_s)
        peer_s, peer_points, finished = peers(checkout, lines(), folder, limit_s)
        if not finished:
            sys.exit(f"flashinfer_benchmark.py finished no case in {limit_s:g} s; give it more as the second argument")
        print(f"flashinfer_benchmark.py: {peer_points} rows in {peer_s:.1f} s, {peer_s / peer_points:.3f} s a point", flush=True)
        for cluster in ("local", "inline"):
            own_s, rows = ours(finished, folder, cluster)
            in_points_s = (rows["finished_at"].max() - rows["started_at"].min()).total_seconds()
            spent = f"{len(rows)} points in {own_s:.1f} s, {in_points_s:.1f} s of it in points"
            print(f"attention-orchestrator, cluster={cluster}: {spent}", flush=True)
            at_least("times faster a point, whole commands", [peer_s / peer_points / (own_s / len(rows))], 50, "x")
            at_least("... with the start left out of ours alone", [peer_s / peer_points / (in_points_s / len(rows))], 50, "x")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
