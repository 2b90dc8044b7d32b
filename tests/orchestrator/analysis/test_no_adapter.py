"""Rows are read without the adapters: one that cannot be imported ends no report."""

from __future__ import annotations

from pathlib import Path

from kernels import registry
from orchestrator.analysis.names import REFERENCES
from tests.helpers.command_line import run_code
from tests.helpers.datasets import MAIN, RESULTS

# Every adapter fails to import, as a file with an error in it does. Each argument is a command.
BROKEN = """
import sys
for name in [name for name in sys.modules if name.startswith(("kernels", "orchestrator"))]:
    del sys.modules[name]  # what the process had already

class Broken:
    def find_spec(self, name, path, target=None):
        if name.startswith("kernels.adapters."):
            raise ImportError(f"{name} is broken")

sys.meta_path.insert(0, Broken())
from orchestrator.cli import main
codes = [main(command.split()) for command in sys.argv[1:]]
print("imported:", [name for name in sys.modules if name.startswith("kernels.adapters.")], "codes:", codes)
"""


def test_a_dataset_is_read_though_no_adapter_can_be_imported(tmp_path: Path):
    rows = f"results.path={MAIN}"
    commands = [
        f"mode=report {rows}",
        f"mode=dashboard {rows} export={tmp_path}/page.html",
        f"mode=site {rows} export={tmp_path}/site",
        f"mode=export {rows} export=vllm where={{kv_dtype:bf16}}",
        f"mode=export {rows} export=aiconfigurator:{tmp_path}/tables",
        f"mode=compare baseline={RESULTS}/h200_main/specdec_all_candidates candidate={MAIN}",
    ]
    compared_slower = 1

    done = run_code(BROKEN, *commands, timeout=200)

    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == f"imported: [] codes: {[0, 0, 0, 0, 0, compared_slower]}", done.stderr


def test_the_references_are_those_of_the_adapters():
    assert set(REFERENCES) == {adapter.name for adapter in registry.adapters().values() if adapter.copies_cache}
