"""A process by its number and its start time, as Linux knows it."""

from __future__ import annotations

import os
import subprocess
import sys

from orchestrator.process import start_time


def test_a_process_has_one_start_time_until_it_has_ended():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(child.pid)
    assert started is not None and started == start_time(child.pid)
    assert int(started) >= int(start_time(os.getpid()) or 0)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still listed as a zombie
    assert start_time(child.pid) is None
    child.wait()
    assert start_time(child.pid) is None


def test_a_process_that_paused_collections_ends_without_the_complaints_of_libraries():
    code = "import duckdb\nfrom orchestrator import gc_pause\nduckdb.connect()\nwith gc_pause.paused(): pass"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stderr == ""
