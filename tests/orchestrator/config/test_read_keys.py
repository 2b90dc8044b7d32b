"""Keys that nothing reads, answers for a program, our own version, and the name of a model whose heads were changed."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from orchestrator import ROOT
from orchestrator.analysis.dataset import again, open_dataset
from orchestrator.cli import BROKEN_PIPE, main
from orchestrator.commands.invocation import Invocation
from orchestrator.commands.run import _show_replay
from orchestrator.config.read_keys import complaint, only_read
from orchestrator.config.settings import Settings, load
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from orchestrator.planning.replay import overrides_of, replay_command
from orchestrator.reporting import before_after, records
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke, composed
from tests.helpers.compared import MORNING, dataset, timed
from tests.helpers.timed_rows import made

STUDY = "results.path=results/h200_engines/vllm_triton"


@pytest.mark.parametrize(
    ("overrides", "mode", "question", "words"),
    [
        (
            ["format=csv"],
            "run",
            None,
            "format: mode=run does not read it; leave it out, or type mode=plan, report",
        ),
        (["baseline=x"], "report", None, "baseline: mode=report does not read it; leave it out, or type mode=compare"),
        (
            ["draft.layers=80"],
            "report",
            "best",
            "draft.layers: question=best does not read it; leave it out, or type question=draft or",
        ),
        (
            ["draft.cost_us=4"],
            "report",
            "one_backend",
            "draft.cost_us: question=one_backend does not read it; leave it out, or type question=draft or question=step",
        ),
        (
            ["device=h200"],
            "watch",
            None,
            "device: mode=watch measures this machine's GPUs and does not read it; leave it out, or type mode=plan, compile,",
        ),
        (["weights=[]"], "report", "fp8", "weights: question=fp8 does not read it; leave it out, or type question=one_backend"),
        (["drafts=3"], "report", "q_len", "drafts: question=q_len does not read it; leave it out"),
        (
            ["device=h200"],
            "compare",
            None,
            "device: mode=compare does not read it; leave it out, or type mode=plan",
        ),
        (
            ["mode=report", "question=fp8", "export=vllm", "tp=8", "where={kv_dtype: bf16}", "columns=[s_kv]"],
            "report",
            "fp8",
            "export: it is a command of its own; type python -m orchestrator export=vllm tp=8 'where={kv_dtype: bf16}'",
        ),
        (["best.max_rel_err=1"], "report", "roofline", "best.max_rel_err: question=roofline does not read it"),
        (["question=best"], "plan", None, "question: mode=plan does not read it; leave it out, or type mode=report"),
        (
            ["rerun=failed"],
            "report",
            None,
            "rerun: mode=report does not read it; leave it out, or type mode=run, noise",
        ),
        (
            ["where={s_qo: 1}"],
            "support",
            None,
            "where: mode=support does not read it; leave it out, or type mode=run, plan",
        ),
        (
            ["device=h200"],
            "run",
            None,
            "device: mode=run measures this machine's GPUs and does not read it; leave it out, or type mode=plan, compile, report",
        ),
        (["backend=fa2"], "report", None, "backend: mode=report chooses rows by their columns; type 'where={backend: fa2}'"),
        (["backend=fa2"], "run", None, "backend: mode=run takes the backends of its sweep; type sweep.backend=[...]"),
    ],
)
def test_a_key_that_nothing_reads_is_an_error(overrides: list[str], mode: str, question: str | None, words: str):
    assert str(complaint(overrides, mode, question)).startswith(words)


@pytest.mark.parametrize(
    "typed",
    [
        "timing.l2=dirty",
        "limits.point_seconds=3",
        "check=off",
        "cluster=ray",
        "cluster.workers=2",
        "model=gpt_oss_120b",
        "+model.layer={hidden_size: 1}",
        "modules=a.tar.xz",
        "adapters=[my.module]",
        "versions=any",
    ],
)
@pytest.mark.parametrize("mode", ["report", "compare", "dashboard", "site", "export", "support", "conformance"])
def test_a_key_of_measuring_is_an_error_in_a_command_that_measures_nothing(typed: str, mode: str):
    words = complaint([typed, "results.path=x"], mode, None)

    if typed.startswith("model=") and mode in ("report", "site", "export", "compare"):  # it chooses rows
        assert words is None
        return
    if typed.startswith("adapters") and mode in ("support", "conformance"):
        assert words is None
    else:
        key = typed.lstrip("+").partition("=")[0].partition(".")[0]
        said = f"{typed.lstrip('+')}: mode={mode} measures nothing and does not read {key}; leave it out"
        assert words is not None and words.startswith(said)
    assert complaint([typed, "+sweep=smoke"], mode, None) is None
    assert complaint([typed, "import=testlist.txt"], mode, None) is None
    assert all(complaint([typed], measuring, None) is None for measuring in ("run", "plan", "calibrate", "bisect", "replay"))


def test_keys_that_are_read_and_those_of_the_sweep_pass():
    typed = ["+sweep=smoke", "sweep.s_kv=[1]", "timing=quick", "cluster=inline", "results.path=x"]

    assert all(complaint(typed, mode, None) is None for mode in ("run", "report", "replay", "plan"))
    assert (
        complaint(
            ["draft.layers=80", "draft.rest=preset"],
            "report",
            "draft",
        )
        is None
    )
    assert complaint(["draft.layers=80", "weights=[]", "best.max_rel_err=1"], "report", None) is None
    assert complaint(["draft.layers=20", "weights=[]"], "report", "one_backend") is None
    assert complaint(["draft.acceptance=0.7"], "report", "energy") is None
    assert only_read(["+sweep=smoke", "rerun=failed", "format=csv"], "report") == ["+sweep=smoke", "format=csv"]


def test_the_best_of_a_draft_length_is_asked_for_like_a_flag(invoke: Invoke):
    asked = ("mode=report", "question=best", "format=json", "model=llama_3_1_8b", "device=h200")
    every, decode = (json.loads(invoke(*asked, *more).stdout) for more in ((), ("drafts=0",)))

    assert {row["s_qo"] for row in decode} == {1} < {row["s_qo"] for row in every}


def test_rows_of_an_engine_are_chosen_by_their_drafts(invoke: Invoke):
    asked = ("mode=report", "question=in_engine", "model=llama_3_1_70b", "format=json")
    every, drafts = (json.loads(invoke(*asked, *more).stdout) for more in ((), ("drafts=3",)))

    assert {row["s_qo"] for row in drafts} == {4} < {row["s_qo"] for row in every}


def test_a_screen_of_odd_points_has_the_command_of_the_first(invoke: Invoke):
    dataset = "results.path=results/h100_main/specdec_long_ctx"
    whole, screen = (invoke("mode=report", "question=odd", dataset, *more).stdout for more in (("format=json",), ()))
    (spikes,) = (grid for grid in json.loads(whole) if grid["title"] == "spikes")

    assert f"spikes, the first again: {spikes['rows'][0][-1]} " in " ".join(screen.split())
    assert f"mode=replay point=bb7e5d213cbd {dataset}" in spikes["rows"][0][-1]


def test_the_command_line_refuses_it_before_it_starts(invoke: Invoke):
    done = invoke("mode=report", STUDY, "question=best", "same=0.1")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: same: mode=report does not read it; leave it out, or type mode=replay, compare\n"


def test_csv_and_json_hold_every_column_of_the_answer_with_numbers_as_they_are(invoke: Invoke):
    table, listed, tables = (
        invoke("mode=report", STUDY, *how).stdout
        for how in (("question=best", "format=csv"), ("question=best", "format=json"), ("format=json",))
    )
    rows, records, grids = list(csv.DictReader(table.splitlines())), json.loads(listed), json.loads(tables)

    assert len(rows) == len(records) > 10
    assert [float(row["median_us"]) for row in rows] == [record["median_us"] for record in records]
    assert {"kernel", "rel_err", "margin", "s_kv"} <= rows[0].keys() == records[0].keys()
    assert not {"problem", "family"} & rows[0].keys()
    assert isinstance(records[0]["above_noise"], bool) and records[0]["window"] is None
    assert grids[0]["title"].startswith("fastest backend") and len(grids[0]["rows"][0]) == len(grids[0]["columns"])


def test_a_short_table_has_the_columns_that_were_asked_for(invoke: Invoke):
    asked = ("mode=report", STUDY, "question=best", "columns=[batch_size,s_kv,backend,median_us]")
    slide, numbers = invoke(*asked, "format=markdown").stdout, invoke(*asked, "format=csv").stdout

    assert "| batch_size | s_kv | backend | median_us |" in slide and "8,192" in slide
    assert numbers.startswith("batch_size,s_kv,backend,median_us\n") and len(numbers.splitlines()) == len(slide.splitlines()) - 3
    note = "24 rows stand for 4 values of batch_size, s_kv: the others differ in s_qo, q_dtype, kv_dtype; add them to columns="
    assert note in invoke(*asked, "format=markdown").stderr
    assert "did you mean 'batch_size'" in invoke("mode=report", STUDY, "question=best", "columns=[batchsize]").stderr
    assert "type a question too" in invoke("mode=report", STUDY, "columns=[s_kv]").stderr


@pytest.mark.parametrize(
    "words",
    [["mode=report"], ["mode=report", STUDY, "question=best"], ["mode=compare"], ["mode=dashboard", STUDY], ["export=vllm"]],
)
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("kv=bf16", "kv_dtype: bf16"),
        *((f"{key}=fp8", "kv_dtype: fp8_e4m3") for key in ("kv", "cache", "kv_cache")),
        ("kv=8192", "s_kv: 8192"),
        ("+s_kv=[1,2]", "s_kv: [1, 2]"),
        ("batch=8", "batch_size: 8"),
    ],
)
def test_a_column_as_a_bare_key_is_answered_with_where(words: list[str], typed: str, meant: str, invoke: Invoke):
    done = invoke(*words, typed)

    assert done.returncode == 2 and f"type 'where={{{meant}}}'" in done.stderr.replace("[1,2]", "[1, 2]"), done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["question=best", "columns=[batch]"], "columns: unknown 'batch'; did you mean 'batch_size'?"),
        (["question=best", "columns=[seqlen]"], "columns: unknown 'seqlen'; did you mean 's_kv'?"),
        (["question=best", "columns=[draft]"], "columns: unknown 'draft'; did you mean 's_qo'?"),
        (["where={batch: 1}"], "where: unknown 'batch'; did you mean 'batch_size'?"),
        (["where={batch: 1, draft: 2}"], "\nwhere: unknown 'draft'; did you mean 's_qo'?"),
        (["where={context: 32768}"], "where.context=32768: allowed for columns of numbers; did you mean 's_kv'?"),
        (["where={context: {from: 4096}}"], "allowed for columns of numbers; did you mean 's_kv'?"),
        (["gpu=h200"], "gpu: unknown key; did you mean 'device'?"),
        (["+sweep=smoke", "sweep.batch=[1]"], "sweep.batch: unknown key; did you mean 'sweep.batch_size'?"),
        (["+sweep=smoke", "+sweep.context=[1]"], "sweep: unknown 'context'; did you mean 's_kv'?"),
    ],
)
def test_a_common_short_name_is_answered_with_the_name_here(words: list[str], meant: str, invoke: Invoke):
    done = invoke("mode=report", STUDY, *words)

    assert done.returncode == 2
    assert meant in done.stderr


def test_a_short_table_of_all_backends_counts_the_backend_as_a_key(invoke: Invoke):
    asked = ("mode=report", STUDY, "question=roofline", "columns=[backend,s_qo,median_us,own_us]", "format=markdown")
    one_shape = "where={batch_size: 8, s_kv: 32768, kv_dtype: bf16}"

    assert "rows stand for" not in invoke(*asked, one_shape).stderr
    assert "the others differ in batch_size, s_kv" in invoke(*asked, "where={kv_dtype: bf16}").stderr


def test_a_short_table_explains_its_columns_and_has_no_sign_that_needs_a_legend(invoke: Invoke):
    """A slide stands alone: nobody looks up what a lead is, or whether it is more than noise."""
    asked = ("mode=report", STUDY, "question=best", "format=markdown", "where={batch_size: 8, s_kv: 32768}")
    whole, lead = (invoke(*asked, f"columns=[s_qo,backend,{more}]") for more in ("margin,above_noise,err_ratio", "margin"))

    assert "margin: how much longer the next kernel takes, as a share (0.02 is 2%)" in whole.stdout
    assert "above_noise False: that lead is no more than noise" in whole.stdout
    assert "err_ratio: that error over the next kernel's" in whole.stdout
    assert not {"≈", "~"} & set(whole.stdout + lead.stdout)
    assert "above_noise" not in lead.stdout and "add above_noise to columns" in lead.stderr
    assert "above_noise" not in whole.stderr


def test_the_id_of_a_slow_point_takes_one_command_and_a_replay_knows_it(invoke: Invoke):
    """The row of the id has the values that the table shows, and its command makes the sweep of that point."""
    asked = ("question=roofline", "columns=[median_us,backend,s_qo,point_id]", "where={batch_size: 8, s_kv: 32768}", "format=csv")
    done = invoke("mode=report", STUDY, *asked)
    slowest = list(csv.DictReader(done.stdout.splitlines()))[-1]
    rows = {row["point_id"]: row for row in open_dataset("results/h200_engines/vllm_triton").current().to_dict("records")}
    found = rows[slowest["point_id"]]

    assert (found["median_us"], found["backend"]) == (float(slowest["median_us"]), slowest["backend"])
    assert (
        done.stderr
        == "note: one point again: python -m orchestrator mode=replay point=ID results.path=results/h200_engines/vllm_triton\n"
    )
    assert "+sweep=specdec_long_ctx" in overrides_of("results/h200_engines/vllm_triton", slowest["point_id"])


@pytest.mark.parametrize("question", ["best", "regret", "engine_default", "one_backend", "roofline"])
def test_answers_whose_rows_are_points_have_their_id(question: str):
    keys = {"question": question, "columns": ("backend" if question in ("best", "roofline") else "s_kv", "point_id")}
    data = "results/h200_main/specdec_long_ctx"
    given = load(composed("mode=report", f"results.path={data}", f"question={question}")).model_copy(update=keys)
    ids = {cells[1] for cells in records.short_table(given).cells} - {"–"}

    assert ids and ids <= set(open_dataset(data).current()["point_id"])


def test_an_answer_whose_rows_are_shapes_says_where_the_ids_are(invoke: Invoke):
    done = invoke("mode=report", STUDY, "question=q_len", "columns=[point_id]")

    assert (done.returncode, done.stdout) == (2, "")
    assert "a row of question=q_len is of several points, so it has no point_id; type question=best" in done.stderr


def test_a_plan_says_whose_heads_it_takes_and_its_csv_begins_with_a_table(invoke: Invoke):
    done = invoke("+sweep=smoke", "mode=plan", "device=h200", "model.num_qo_heads=40", "format=csv")

    assert done.stdout.startswith("# what one GPU has of the model")
    assert "\ncustom,1,40,8,128,128,64,24\n" in done.stdout
    assert done.stderr.startswith("sweep smoke on NVIDIA H200: ")


def test_a_plan_says_which_backends_run_and_that_a_model_s_windows_are_not_measured(invoke: Invoke):
    asked = ("+sweep=smoke", "mode=plan", "device=h200", "model=gpt_oss_120b", "format=csv")
    plain, windowed = invoke(*asked), invoke(*asked, "sweep.window=[null,128]")

    assert (
        "\nbackend,run,unsupported,skipped,needs\nfa2_tc,8,0,0,flashinfer-python\ntrtllm-native,8,0,0,flashinfer-python\ntorch_sdpa,0,8,0,torch\n"
        in plain.stdout
    )
    assert "see 128 tokens alone" in plain.stderr and "'sweep.window=[null,128]'" in plain.stderr
    cascade = invoke("+sweep=cascade", "model=gpt_oss_120b", "mode=plan", "device=h200").stderr
    assert "routine=cascade takes no window" in cascade and "sweep.window=" not in cascade
    assert "tokens alone" not in windowed.stderr


def test_values_that_no_row_has_are_answered_with_those_there_are(invoke: Invoke):
    typed = ("where={device_name: NVIDIA H100}",)
    words = "has these values; there are device_name: NVIDIA H200"

    assert words in invoke("mode=report", STUDY, *typed).stderr
    assert (
        words
        in invoke(
            "mode=compare", "baseline=results/h200_engines/vllm_triton", "candidate=results/h200_engines/vllm_triton", *typed
        ).stderr
    )


def test_the_version_is_ours_and_every_file_names_the_same_one(invoke: Invoke):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (version, day), *_ = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert (cited["version"], str(cited["date-released"])) == (version, day)
    assert invoke("--version").stdout.startswith(f"attention-orchestrator {metadata.version('attention-orchestrator')}")


@pytest.mark.parametrize("typed", [["--help"], ["mode=report", STUDY]])
def test_a_page_into_a_closed_pipe_is_silent(typed: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """As `--help | head -1` does. The page is longer than a buffer or not: what is left of it must not complain either."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        code = main(typed)
        monkeypatch.undo()

    assert (code, capfd.readouterr().err) == (BROKEN_PIPE, "")


def test_a_model_whose_heads_were_changed_is_not_called_by_its_name(settings: Callable[..., Settings]):
    models = {
        keys: {point.problem.model for point in expand(settings("+sweep=smoke", *keys))}
        for keys in ((), ("model.num_qo_heads=40",), ("model.head_dim_vo=64", "model.name=mine"), ("model.page_size=16",))
    }

    assert list(models.values()) == [{"llama_3_1_70b"}, {"custom"}, {"mine"}, {"llama_3_1_70b"}]


# A replay


def stored(path: Path, command: str, **keys: Any) -> str:
    path.mkdir()
    row: Row = {**made("fa2", 10.0), "command": command, "finished_at": "2026-11-20T22:00:00+00:00", **keys}
    row["median_us"] = 10.0 if row["status"] == "ok" else None
    pq.write_table(to_table([row]), path / "rows.parquet")
    return str(path)


def test_a_replay_finds_its_sweep_in_the_row_and_no_place_of_another_machine(tmp_path: Path):
    typed = "python -m orchestrator +sweep=smoke 'sweep.s_kv=[256]' results.path=/home/me/x format=csv mode=replay point=old"
    path = stored(tmp_path / "d", typed, l2="dirty")

    assert overrides_of(path, made("fa2", 10.0)["point_id"]) == ["+sweep=smoke", "sweep.s_kv=[256]", "timing.l2=dirty"]
    with pytest.raises(UserError, match="has no row of this point_id"):
        overrides_of(path, "none")
    with pytest.raises(UserError, match="no command of this project"):
        overrides_of(stored(tmp_path / "e", "benchmark --page_size 16"), made("fa2", 10.0)["point_id"])
    with pytest.raises(UserError, match="a wrong kernel"):
        overrides_of(stored(tmp_path / "f", "python -m orchestrator mode=check_power"), made("fa2", 10.0)["point_id"])


def test_the_command_of_a_row_names_no_folder_of_the_machine_that_measured(settings: Callable[..., Settings]):
    point = expand(settings("+sweep=smoke"))[0]
    typed = ["import=/home/me/list.txt", "results.path=/scratch/out", "draft.layers=80", "timing=quick"]

    assert replay_command(typed, "run")(point).startswith("python -m orchestrator import=list.txt timing=quick mode=replay point=")
    assert "import=list.txt traffic=t.jsonl mode=" in replay_command(
        ["import='/home/me/list.txt'", 'traffic="/home/me/t.jsonl"'], "run"
    )(point)
    assert "results.path=results/mine" in replay_command(["results.path=results/mine"], "run")(point)
    of_environment = replay_command(["+env.x={requirements: [a==1], wheels: /tmp/of-mine, shares: all}"], "run")(point)
    assert "wheels: of-mine, shares: all" in of_environment and "/tmp" not in of_environment


def test_a_replay_shows_the_row_before_and_after():
    table = to_table(
        [
            {**made("fa2", us), "rel_err": 0.002, "libraries": f"x {version}", "finished_at": f"2026-11-2{day}T22:00:00+00:00"}
            for us, version, day in ((10.0, "1", 0), (12.0, "2", 1))
        ]
    )
    before, after = before_after.rows_of(table, made("fa2", 10.0)["point_id"])
    shown = {cells[0]: cells[1:] for cells in before_after.grid(before, after).cells}

    assert shown["median_us"] == ("10.00 µs", "12.00 µs", "1.200 times")
    assert (shown["libraries"], shown["status"]) == (("x 1", "x 2", "changed"), ("ok", "ok", ""))
    assert before_after.grid(None, after).title.startswith("replay: there was no row")


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("mismatch", 1), ("unsupported", 1)])
def test_a_replay_that_measured_nothing_fails_and_says_so(
    status: str, code: int, tmp_path: Path, settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
):
    read, point = stored(tmp_path / "d", "python -m orchestrator +sweep=smoke"), made("fa2", 10.0)["point_id"]
    stored(tmp_path / "d_replay", "", status=status, reason="no GPU")
    given = settings("+sweep=smoke", "mode=replay", f"point={point}", f"results.path={read}")

    assert _show_replay(Invocation(given, (), Console(width=200)), given, []) == code
    said = capsys.readouterr().out
    assert f"its new row is in {read}_replay; {read} is as it was" in said
    assert ("nothing was measured: unsupported, no GPU" in said) == (status == "unsupported")


def replayed(tmp_path: Path, settings: Callable[..., Settings], before: list[Row], after: list[Row], *typed: str) -> str | None:
    """What is said of the last row of each side, in datasets that may hold others."""
    path, _ = (dataset(tmp_path / folder, rows) for folder, rows in (("d", before), ("d_replay", after)))
    given = settings("+sweep=smoke", "mode=replay", f"point={before[-1]['point_id']}", f"results.path={path}", *typed)
    return before_after.change(given, before[-1], after[-1])


@pytest.mark.parametrize(
    ("us", "typed", "said"),
    [
        (1200, (), "time: +20.0% (95% interval"),
        (1200, (), "slower, beyond the noise of two runs"),
        (800, (), "faster, beyond the noise of two runs"),
        (1004, (), "the same: the change is within ±2%"),
        (1004, ("same=0.004",), "not decided: the noise of two runs"),
    ],
)
def test_a_replay_says_whether_its_change_is_noise(
    us: float, typed: tuple[str, ...], said: str, tmp_path: Path, settings: Callable[..., Settings]
):
    assert said in str(replayed(tmp_path, settings, [timed("fa2", 1000)], [timed("fa2", us, MORNING, run_id="r2")], *typed))


def test_a_replay_compares_the_two_rows_that_it_shows(tmp_path: Path, settings: Callable[..., Settings]):
    h100, other = {"device_name": "NVIDIA H100"}, timed("fa2", 2000, status="failed", device_name="NVIDIA H100")
    before = [timed("fa2", 2000, **h100), timed("fa2", 1000)]
    after = [timed("fa2", 2000, **h100), other, timed("fa2", 1500, MORNING, run_id="r2")]

    assert "time: +50.0%" in str(replayed(tmp_path, settings, before, after))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"l2": "warm"}, "time: not compared: "),
        ({"median_us": 1300.0}, "is not as it was measured"),  # not that of its own samples
    ],
)
def test_a_replay_that_cannot_be_compared_says_why(keys: Row, said: str, tmp_path: Path, settings: Callable[..., Settings]):
    after = {**timed("fa2", 1200, MORNING, run_id="r2"), **keys}

    assert said in str(replayed(tmp_path, settings, [timed("fa2", 1000)], [after]))


@pytest.mark.parametrize("keys", [{"status": "unsupported"}, {"device_name": "NVIDIA H100"}])
def test_a_replay_compares_times_of_one_kind_of_gpu(keys: Row, tmp_path: Path, settings: Callable[..., Settings]):
    assert replayed(tmp_path, settings, [timed("fa2", 1000)], [timed("fa2", 1200, MORNING, run_id="r2", **keys)]) is None


def test_same_is_read_by_a_replay():
    assert complaint(["same=0.01"], "replay", None) is None


def test_a_printed_command_names_the_dataset_that_was_read(tmp_path: Path):
    path = stored(tmp_path / "d", "python -m orchestrator +sweep=smoke results.path=/tmp/there mode=replay point=x")
    other = stored(tmp_path / "e", "benchmark --page_size 16")
    (ours,), (theirs,) = (open_dataset(p).records("SELECT row, point_id, command FROM rows") for p in (path, other))

    assert again(open_dataset(path), ours) == f"python -m orchestrator mode=replay point={ours['point_id']} results.path={path}"
    assert again(open_dataset(other), theirs) == "benchmark --page_size 16"


def test_a_replay_from_a_dataset_needs_no_sweep(tmp_path: Path, invoke: Invoke):
    """The point is none of the smoke sweep: that its points are counted shows where the sweep came from."""
    path, point = stored(tmp_path / "d", "python -m orchestrator +sweep=smoke cluster=inline mode=replay point=x"), "a-1-8-8192"
    done = invoke("mode=replay", f"results.path={path}", f"point={made('fa2', 10.0)['point_id']}")
    asked = invoke("mode=replay", f"results.path={path}", f"point={point}", "format=csv")

    assert (done.returncode, asked.returncode) == (2, 2)
    assert "none of the 24 points of sweep smoke has this point_id" in done.stderr
    assert "has no row of this point_id" in asked.stderr


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["+sweep=smoke", "mode=plan", "model.tp=[]"], "model.tp=[]: allowed: a list that is not empty"),
        (["mode=report", "results.path='results/h200_**'"], "Invalid pattern"),
        (["mode=report", STUDY, "question=best", "where={finished_at: 2026}"], "there are finished_at: 2026-"),
        (
            ["mode=report", STUDY, "question=draft", f"draft.layers={10**20}"],
            "draft.layers=100000000000000000000: allowed: at most",
        ),
        (["mode=replay", STUDY, "point=123456789012"], "point='123456789012': results.path="),
        (["mode=replay", STUDY, "point=1234e5678901"], "point='1234e5678901': results.path="),
        (["mode=support", "export=x"], "export: mode=support does not read it"),
        (["mode=report", "results.path=[results/h200_prefill/cascade.parquet,/nonexistent]"], "there is no /nonexistent"),
        (["mode=report", STUDY, "question=draft", "draft.layers=8", "draft.rest_us=inf"], "draft.rest_us=inf: allowed: a number"),
        (["mode=report", STUDY, "question=one_backend", "weights=[{s_qo: 1, weight: 1e308}]"], "a weight above 0, up to 1e+15"),
    ],
)
def test_values_that_no_reader_can_use_end_in_words(typed: list[str], words: str, invoke: Invoke):
    done = invoke(*typed)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("point", ["330372898946", "325588213e90"])
def test_without_a_gpu_a_replay_of_whichever_id_stores_nothing_and_says_so(point: str, tmp_path: Path, invoke: Invoke):
    """YAML would read these as numbers."""
    done = invoke("mode=replay", f"point={point}", "results.path=results/h200_main/specdec_long_ctx", f"into={tmp_path / 'new'}")

    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert f"point={point}: nothing was measured or stored, unsupported here: " in done.stderr and " on cpu needs: " in done.stderr


def test_a_command_with_an_open_quote_is_no_command(tmp_path: Path):
    with pytest.raises(UserError, match="no command of this project"):
        overrides_of(stored(tmp_path / "d", "python -m orchestrator 'open"), made("fa2", 10.0)["point_id"])
