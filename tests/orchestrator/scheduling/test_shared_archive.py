"""Two hosts write one module archive on a disk that they share."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from orchestrator import ROOT
from tests.helpers.command_line import environment

EACH = 8
# Of two hosts nothing but the disk is shared: each has a temporary folder and a name of its own, and process numbers may be equal.
HOST = """
import os, sys
from kernels.adapter import Module
from kernels.compile.module_cache import Library
from orchestrator.scheduling import archive

path, host, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.getpid = lambda: 7
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    archive.write(path, {("9.0a", Module(f"host.{host}:m", (i,))): Library(f"{host}_{i}", host.encode() * 100_000)}, {})
"""


def test_no_module_is_lost_and_nothing_else_is_left(tmp_path: Path):
    (disk := tmp_path / "shared").mkdir()
    path = disk / "modules.tar"
    hosts = []
    for host in "ab":
        (own := tmp_path / host).mkdir()
        command = [sys.executable, "-c", HOST, str(path), host, str(EACH)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        hosts.append(subprocess.Popen(command, cwd=ROOT, env={**environment(), "TMPDIR": str(own)}, **pipes))
    for process in hosts:
        assert process.stdout
        process.stdout.readline()
    for process in hosts:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=180)[1] for process in hosts]
    with tarfile.open(path) as tar:
        names = {Path(name).stem for name in tar.getnames()}

    assert [process.returncode for process in hosts] == [0, 0], said
    assert names == {"manifest", *(f"{host}_{i}" for host in "ab" for i in range(EACH))}
    assert list(disk.iterdir()) == [path]
