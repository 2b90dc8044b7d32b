"""The command line: exit codes, messages, modes. Wrong input starts nothing."""

from __future__ import annotations

import ast
import pkgutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest

from orchestrator import ROOT, cli, commands
from orchestrator.config.modes import MODES
from orchestrator.config.settings import Format, Question
from tests.helpers.command_line import Invoke, command, environment, run, run_from_scratch


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["sweep: none given", "+sweep=NAME, or question=best to read what was measured, where"]),
        (["traffic=mine.csv"], ["+sweep=specdec_long_ctx, or question=one_backend"]),
        (["mode=support", "adapters=[no.such]"], ["adapters=['no.such']", "ADAPTERS"]),
        (
            ["+sweep=smoke", "sweep.s_qo={min: 1, max: 8}"],
            ["sweep.s_qo: its value is a list", "type 'sweep.s_qo=[{min: 1, max: 8}]'"],
        ),
        (["+sweep=nope"], ["sweep: unknown 'nope'", "smoke, sparse_mla, specdec_long_ctx"]),
        (["+sweep=smoke", "sweep.bach_size=1"], ["sweep.bach_size: unknown key", "did you mean 'sweep.batch_size'?"]),
        (["+sweep=smoke", "limit.point_seconds=3"], ["did you mean 'limits.point_seconds'?"]),
        (["+sweep=smoke", "cluster=moon"], ["cluster: unknown 'moon'", "inline, kuberay, local, ray, slurm"]),
        (["+sweep=smoke", "sweep.s_qo=[1"], ["[1"]),
        (["+sweep=smoke", "sweep.num_qo_heads=[12]"], ["type +sweep.num_qo_heads="]),
        (["+sweep=smoke", "mode=plan", "cluster=ray", "cluster.address=h:1"], ["device: mode=plan starts nothing", "device=h200"]),
        (["+sweep=smoke", "model=null"], ["model: unknown 'null'", "llama_3_1_70b"]),
        (["+sweep=smoke", "sweep.s_qo=0"], ["sweep.s_qo=0"]),
        (["+sweep=smoke", "mode=replay", "point=abc"], ["point='abc'", "24 points"]),
        (["+sweep=smoke", "results.path=/dev/null/x"], ["results.path='/dev/null/x'", "cannot be written"]),
        (["+sweep=smoke", "mode=report", "results.path=/tmp/no-such-dataset"], ["no rows there", "+sweep=NAME"]),
        (
            ["mode=report", "results.path=results", "question=best"],
            [
                "results.path='results': this folder holds no dataset; a dataset is a folder with rows.parquet",
                "below it: results/h100_drafts, results/h100_engines,",
                "more; type results.path=results/h100_drafts, or 'results.path=results/*'",
            ],
        ),
        (
            ["mode=report", "results.path=docs"],
            ["results.path='docs': this folder holds no dataset", "none lies below it", "type results.path=DIR", "+sweep=NAME"],
        ),
        (
            ["mode=report", "results.path=results/h200_main/specdec_long_ctx_noise", "question=best"],
            ["mode=noise or mode=check_power", "type results.path=results/h200_main/specdec_long_ctx with"],
        ),
        (
            ["mode=report", "results.path=results/h200_main/specdec_long_ctx", "question=crossover"],
            [
                "question=crossover: no rows of results.path='results/h200_main/specdec_long_ctx' answer it",
                "it needs paged_decode and paged_prefill",
                "leave question out",
            ],
        ),
        (["mode=report"], ["sweep: none given", "+sweep=NAME, or results.path=DIR"]),
        (["mode=watch", "device=h200"], ["sweep: none given", "type +sweep=auto_guard, or +sweep=NAME, where"]),
        (["+sweep=smoke", "results.path=${nothing}"], ["nothing"]),
        (["-m", "+sweep=smoke", "cluster=inline,moon"], ["moon"]),
    ],
)
def test_wrong_input_ends_with_code_2_and_one_message(args: list[str], words: list[str], invoke: Invoke):
    done = invoke(*args)

    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error: ")
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stdout == ""


def test_help_names_the_groups_and_starts_nothing(invoke: Invoke):
    done = invoke("--help")

    assert done.returncode == 0
    assert all(
        word in done.stdout
        for word in ("specdec_long_ctx", "mode=plan device=b200", "cluster: inline, kuberay, local, ray, slurm", "h200")
    )
    assert all(
        f"{key}={' | '.join(get_args(values))}" in done.stdout for key, values in (("question", Question), ("format", Format))
    )
    assert "branches" not in done.stdout and "max_rel_err" in done.stdout  # every key, and no tokens of trees


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['orchestrator', '--help']\n"
        "from attention_orchestrator.__main__ import main\n"
        "code = main()\n"
        "assert not code, code\n"
        "bad = {'torch', 'ray', 'flashinfer', 'pandas', 'pyarrow', 'rich'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_a_plan_for_another_gpu_starts_and_imports_nothing(device: str, tmp_path: Path):
    code = (
        "import sys; sys.argv = ['orchestrator', '+sweep=specdec_long_ctx', 'mode=plan', "
        f"'device={device}', 'results.path={tmp_path / 'none'}']\n"
        "from orchestrator.cli import main\n"
        "code = main()\n"
        "assert not code, code\n"
        "bad = {'torch', 'ray', 'flashinfer', 'pandas', 'pyarrow'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    for words in (
        "1920 points",
        "run",
        "unsupported",
        "why not",
        "kernel modules to compile",
        "GB of device memory",
        "estimated time",
    ):
        assert words in done.stdout
    assert not (tmp_path / "none").exists()


def test_report_prints_tables_and_markdown_from_the_dataset_alone(tmp_path: Path):
    args = ["+sweep=smoke", "cluster=inline", "timing=quick", f"results.path={tmp_path}"]
    assert run_from_scratch(*args).returncode == 0
    terminal, markdown = run(*args, "mode=report", "full=true"), run(f"results.path={tmp_path}", "mode=report", "format=markdown")

    assert terminal.returncode == markdown.returncode == 0
    assert "fastest backend" in terminal.stdout and "torch_sdpa" in terminal.stdout
    assert "| s_qo | batch | s_kv 256 | s_kv 1,000 |" in markdown.stdout


@pytest.mark.parametrize("cudnn", [True, False])
def test_what_a_library_counts_after_the_last_word_is_not_shown(cudnn: bool):
    """cuDNN's bindings print each graph that FlashInfer keeps as leaked; here the C library says something at exit."""
    code = "import ctypes, sys; libc = ctypes.CDLL(None)\n"
    code += "libc.__cxa_atexit(ctypes.cast(libc.malloc_stats, ctypes.c_void_p), None, None)\n"
    code += "sys.modules['cudnn'] = sys\n" if cudnn else ""
    code += "from orchestrator.__main__ import main; sys.argv[1:] = ['mode=nonsense']; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)

    assert done.returncode == 2 and "mode='nonsense'" in done.stderr
    assert ("Arena" in done.stderr) != cudnn


def test_a_python_without_the_packages_says_what_to_type(tmp_path: Path):
    code = "import sys, runpy; sys.modules['hydra'] = None; runpy.run_module('orchestrator', run_name='__main__', alter_sys=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)

    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: hydra is not installed for ") and "type pip install . to read" in done.stderr


def test_an_old_name_of_a_state_works_and_is_told(invoke: Invoke):
    old, new = (invoke("+sweep=smoke", "mode=plan", "device=cpu", f"timing.l2={name}") for name in ("cold", "dirty"))

    assert (old.returncode, old.stdout) == (0, new.stdout)
    assert old.stderr == "note: timing.l2=cold is now called dirty; type timing.l2=dirty (docs/timing.md)\n"
    assert new.stderr == ""


def test_report_answers_one_question_alone(invoke: Invoke):
    draft = ["draft.acceptance=[0.9,0.8,0.7]", "draft.layers=80", "draft.cost_us=500"]
    done = invoke("mode=report", "results.path=results/h200_main/specdec_long_ctx", "question=draft", *draft)

    assert done.returncode == 0, done.stderr
    assumed = "at acceptance 0.9, 0.8, 0.7, 80 layers of attention, nothing for the rest of a step, 500 µs a drafted token"
    assert assumed in " ".join(done.stdout.split())
    assert "fastest backend" not in done.stdout


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), (None, commands.WIDTH)])
def test_whole_tables_are_as_wide_as_the_terminal_that_columns_names(
    columns: str | None, widest: int, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", raising=False)
    report = invoke("mode=report", "results.path=results/h200_main/specdec_tp8", "question=fp8", "full=true").stdout
    lines = report.splitlines() if columns else [line for line in report.splitlines() if line[0] in "┃│"]

    assert widest - 5 < max(map(len, lines)) <= widest


def test_an_export_takes_several_datasets_and_chosen_rows(invoke: Invoke):
    done = invoke("export=flashinfer_csv", "results.path=results/h200_*/*_verify", "where={backend: fa2, s_qo: [1, 2], status: ok}")
    table = pd.read_parquet(ROOT / "results" / "h200_drafts" / "target_verify.parquet")
    wanted = table[(table["backend"] == "fa2") & table["s_qo"].isin([1, 2]) & (table["status"] == "ok")]

    assert done.returncode == 0, done.stderr
    left_out = sum(int(line.split()[2]) for line in done.stderr.splitlines() if line.startswith("left out"))
    assert len(done.stdout.splitlines()) - 1 + left_out == len(wanted) > 0


@pytest.mark.parametrize("form", ["markdown", "svg"])
def test_a_reader_that_closes_the_pipe_is_no_error(form: str):
    args = command("mode=report", "results.path=results/h200_main/specdec_long_ctx", f"format={form}")
    writer = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.close()

    assert writer.stderr.read() == ""
    assert writer.wait() == 141


def test_a_question_to_several_datasets_is_about_their_measurements(invoke: Invoke):
    """The pattern in the docs also matches A/A pairs and mutants."""
    done = invoke(
        "mode=report", "results.path=results/h200_main/specdec_long_ctx*", "question=best", "where={s_qo: [4], batch_size: 8}"
    )

    assert done.returncode == 0, done.stderr
    assert "fa2_tc" in done.stdout or "trtllm-native" in done.stdout
    assert "\n│ 8 " not in done.stdout and "│ 1    │ 8 " not in done.stdout


def test_a_multirun_lands_in_one_dataset_with_a_row_a_point_and_cluster(tmp_path: Path):
    done = run("-m", "+sweep=smoke", "timing=quick", "cluster=inline,local", "sweep.s_kv=[256]", f"results.path={tmp_path}")
    table = pd.read_parquet(tmp_path)

    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr  # as nanobind says of what DuckDB holds at the end
    assert table.groupby("cluster")["point_id"].nunique().to_dict() == {"inline": 12, "local": 12}
    assert len(table) == 24


def test_an_interrupted_job_ends_a_multirun(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    jobs: list[list[str]] = []

    def interrupted(config: dict[str, Any], overrides: list[str]) -> int:
        jobs.append(overrides)
        return 130

    monkeypatch.setattr(cli, "execute", interrupted)
    done = invoke("+sweep=smoke", "cluster=inline,local", "-m")

    assert done.returncode == 130
    assert jobs == [["+sweep=smoke", "cluster=inline"]]


def test_a_multirun_runs_every_job_and_ends_with_the_worst_code(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    codes = iter([0, 1, 0])
    monkeypatch.setattr(cli, "execute", lambda config, overrides: next(codes))

    assert invoke("+sweep=smoke", "--multirun", "cluster=inline,local,slurm").returncode == 1
    assert list(codes) == []


@pytest.mark.parametrize("arguments", [[], ["-m"]])
def test_a_bug_is_no_user_error(arguments: list[str], invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    def broken(config: dict[str, Any], overrides: list[str]) -> int:
        raise ValueError("a bug")

    monkeypatch.setattr(cli, "execute", broken)

    with pytest.raises(ValueError, match="a bug"):
        invoke("+sweep=smoke", *arguments)


def test_the_arguments_and_signals_of_the_process_are_left_as_they_were(invoke: Invoke):
    before = sys.argv, signal.getsignal(signal.SIGTERM)
    invoke("mode=plan")

    assert (sys.argv, signal.getsignal(signal.SIGTERM)) == before


def test_every_mode_has_a_command_and_every_command_a_mode():
    files = {module.name for module in pkgutil.iter_modules(commands.__path__)} - {"invocation", "profile"}

    named = [rules.command.partition(".") for rules in MODES.values()]
    assert {module for module, _, _ in named} == files
    assert all(callable(getattr(import_module(f"orchestrator.commands.{module}"), does or "execute")) for module, _, does in named)


def test_the_command_line_names_no_mode():
    """Its keys may: `export`, `import` and `noise` are. What a mode takes is in `ModeRules`."""
    files = [ROOT / "orchestrator" / "cli.py", *(ROOT / "orchestrator" / "composing").glob("*.py")]
    words = {node.value for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}

    assert len(files) > 3
    assert words & {*MODES} <= {"export", "import", "noise"}


def test_an_edited_backend_is_run_again_and_an_unedited_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plugin = tmp_path / "mine.py"
    plugin.write_text("from tests.backends.faulty import Faulty, nothing\nADAPTERS = (Faulty(name='mine', fault=nothing),)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    args = ["+sweep=smoke", "cluster=inline", "timing=quick", "adapters=[mine]", "sweep.backend=[mine]"]

    def again() -> str:
        done = run(*args, f"results.path={tmp_path / 'rows'}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "8 rows in" in again()
    assert "0 rows in" in again()
    plugin.write_text(plugin.read_text() + "# another kernel\n")
    assert "8 rows in" in again()


def test_a_full_disk_stops_the_run_and_keeps_reported_rows(tmp_path: Path):
    args = ["+sweep=smoke", "cluster=inline", "timing=quick", f"results.path={tmp_path}"]
    # No file beyond 80 KiB, as on a disk that is full; one without a row has 71 KiB.
    limited = ["bash", "-c", 'ulimit -f 80; exec "$@"', "bash", *command(*args)]
    full = subprocess.run(limited, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    again = run(*args)

    assert full.returncode == 1, full.stderr
    assert "cannot be written" in full.stdout and "Traceback" not in full.stdout + full.stderr
    assert again.returncode == 0
    assert len(pd.read_parquet(tmp_path)) == 24


def test_a_module_that_does_not_compile_fails_only_its_points(tmp_path: Path):
    done = run(
        "+sweep=smoke",
        "cluster=inline",
        "timing=quick",
        "adapters=[tests.backends.uncompilable]",
        "sweep.backend=[torch_sdpa,uncompilable]",
        f"results.path={tmp_path}",
    )
    table = pd.read_parquet(tmp_path)

    assert done.returncode == 1
    assert {b: set(s) for b, s in table.groupby("backend")["status"]} == {"torch_sdpa": {"ok"}, "uncompilable": {"failed"}}
    assert all("did not compile: mha.cu(7): error" in reason for reason in table.query("status == 'failed'")["reason"])


def test_a_command_leaves_no_file_in_the_working_directory(tmp_path: Path):
    args = command("+sweep=smoke", "mode=plan")
    done = subprocess.run(args, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
