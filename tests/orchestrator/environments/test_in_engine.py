"""Points inside a running engine, from the command to their rows. A stand-in for vLLM has its flags, scheduler and kernels.

The program of the engine is the real one (`kernels/engines/vllm_steps.py`), in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

from kernels.engines import start
from kernels.engines.flags import ENGINES
from kernels.engines.steps import NotMeasured, kernels_of
from orchestrator import ROOT
from orchestrator.cli import main
from orchestrator.process import start_time
from tests.helpers.command_line import Invoke, command, environment
from tests.helpers.forked_environment import ForkedPopen
from tests.helpers.wheels import write_engine

SEEN = ["default", "FLASHINFER", "TRITON_ATTN"]
BROKEN = [
    "NO_SUCH",
    "FLEX_ATTENTION",
    "FAKE_CRASH",
    "FAKE_HANG",
    "FAKE_OOM",
    "FAKE_OTHER",
    "FAKE_ASSERT",
    '"FLASHINFER:no-nonsense"',
]
SMALL = ["+sweep=in_engine", "engine=vllm", "cluster=inline", "sweep.s_kv=[512]", "limits.memory_fraction=1"]
SMALL += ["model.num_qo_heads=8", "model.num_kv_heads=1", "model.layer.hidden_size=64", "model.layer.intermediate_size=64"]
POINT_SECONDS = 3.0


@pytest.fixture(scope="module")
def ran(cache: Path, forked: list[ForkedPopen], tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The rows of right and broken flags at three batches, with and without drafts."""
    folder = tmp_path_factory.mktemp("engine")
    write_engine(folder)
    words = [*SMALL, "sweep.batch_size=[1,2,3]", f"limits.point_seconds={POINT_SECONDS}", f"results.path={folder / 'rows'}"]
    words += [f"+env.mine={{requirements: ['vllm==0.25.1'], wheels: '{folder}'}}", "sweep.env=[mine]"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main([*words, f"sweep.flag=[{','.join(SEEN + BROKEN)}]"]) == 1
        before = len(forked)
        assert main([*words, f"sweep.flag=[{','.join(SEEN)}]"]) == 0
        assert len(forked) == before  # resumed: nothing runs again
    return pd.read_parquet(folder / "rows").set_index(["flag", "s_qo", "batch_size"]).sort_index()


def test_a_row_says_what_ran_in_the_engine(ran: pd.DataFrame):
    rows = ran.loc[SEEN]
    row = ran.loc["default", 1, 2]

    assert set(rows["status"]) == {"ok"} and set(rows["engine"]) == {"vllm"} and set(rows["libraries"]) == {"vllm 0.25.1"}
    assert (
        set(rows["context"]) == {"engine"}
        and rows["check"].str.startswith("not_checked: ").all()
        and rows["median_us"].isna().all()
    )
    assert (row["resolved_backend"], row["engine_version"], row["step_layers"]) == ("FLASH_ATTN", "0.25.1", 4)
    assert "FlashAttnFwdSm90" in row["main_kernels"] and row["combine_kernels"] == "FlashAttnFwdCombine"
    # A combining kernel that begins 3 us before the main one ends is 5 us long, and takes 2.
    times = ["attention_us", "attention_main_us", "attention_combine_us", "attention_metadata_us"]
    assert row[times].tolist() == [42, 40, 5, 3]
    assert row["engine_kernels_us"] == 4 * 142 + 3 and row["attention_share"] == pytest.approx((4 * 42 + 3) / 571)
    assert row["other_kernels"] == "nvjet_product 400.0" and row["engine_graph"] == "FULL_DECODE_ONLY, 1 graph launches a step"
    assert ran.loc["FLASHINFER", 1, 2]["kernel_config"].endswith("decode_kernel=XQA") and row["engine_step_us"] == 1000


@pytest.mark.parametrize(
    ("kernels", "us", "words"),
    [
        ([("kernel_mha", 0, 10), ("nvjet", 10, 20)], 10, ""),
        ([("kernel_mha", 0, 10), ("reduce_segments", 4, 12), ("nvjet", 12, 20)], 12, ""),
        ([("kernel_mha", 0, 10), ("nvjet", 10, 20), ("reduce_segments", 20, 22)], 12, ""),
        ([("nvjet", 0, 20), ("kernel_mha", 15, 25)], 10, "50% of attention's time beside other kernels"),
        (
            [("kernel_mha", 0, 10), ("kernel_mha", 10, 20), ("kernel_mha", 20, 30)],
            15,
            "not equally often in each layer: kernel_mha",
        ),
    ],
)
def test_time_in_which_several_kernels_run_counts_once(kernels: list[tuple[str, int, int]], us: float, words: str):
    layers = 2 if "often" in words else 1
    events = [
        Mock(**{"device_type.return_value": "CUDA", "name.return_value": name, "start_ns.return_value": 1000 * begin,
                "duration_ns.return_value": 1000 * (end - begin)}) for name, begin, end in kernels
    ]  # fmt: skip
    found = kernels_of(events, {"layers": layers, "measured": range(layers), "main_kernels": ["kernel_mha"]}, 1, "FULL")

    assert (found["attention_us"], found["reason"]) == (us, words)
    assert found["engine_kernels_us"] == len({at for _, begin, end in kernels for at in range(begin, end)})


def test_layers_of_two_kinds_are_told_apart(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in gpt-oss: a window in the layers 0 and 2, whose kernel takes 4 us and splits nothing, and none in 1 and 3."""
    write_engine(tmp_path)
    monkeypatch.chdir(ROOT)
    words = [*SMALL, "model=gpt_oss_120b", "model.num_qo_heads=8", "model.num_kv_heads=1", "model.layer.hidden_size=64"]
    words += [f"+env.mine={{requirements: ['vllm==0.25.1'], wheels: '{tmp_path}'}}", "sweep.env=[mine]", "sweep.window=[null,128]"]
    words += ["sweep.flag=[FLASH_ATTN]", "sweep.batch_size=[2]", "sweep.drafts=[0,3]", f"results.path={tmp_path / 'rows'}"]
    assert main(words) == 0
    rows = pd.read_parquet(tmp_path / "rows").set_index(rows_of := ["window", "s_qo"]).sort_index()
    full, windowed = rows.loc[rows.index.get_level_values(rows_of[0]).isna()], rows.loc[128]

    assert set(full["attention_us"]) == {42} and set(windowed["attention_us"]) == {4}
    assert set(full["combine_kernels"]) == {"FlashAttnFwdCombine"} and windowed["combine_kernels"].isna().all()
    assert windowed["main_kernels"].str.endswith("with a window").all() and not full["main_kernels"].str.contains("window").any()
    assert set(rows["engine_kernels_us"]) == {4 * 100 + 2 * 46 + 3} and set(rows["reason"]) == {""}


def test_layers_with_several_kernels_cannot_be_told_apart():
    events = [
        Mock(**{"device_type.return_value": "CUDA", "name.return_value": "kernel_mha", "start_ns.return_value": 10 * at,
                "duration_ns.return_value": 5}) for at in range(3)
    ]  # fmt: skip
    with pytest.raises(NotMeasured, match="3 kernels of attention in 1 steps of 2 layers: layers cannot be told apart"):
        kernels_of(events, {"layers": 2, "measured": [1], "main_kernels": ["kernel_mha"]}, 1, "FULL")


def test_steps_are_pure_and_near_the_length_that_was_asked_for(ran: pd.DataFrame):
    """The stand-in leaves out a draft in each 29th step, which is then not timed; its profile is made again."""
    rows = ran.loc[SEEN]

    assert set(rows["engine_profiled_steps"]) == {start.PROFILED}
    assert rows["engine_steps"].groupby("s_qo").unique().map(list).to_dict() == {1: [start.TIMED], 4: [start.TIMED_DRAFTS]}
    assert rows["engine_kv_tokens"].between(512 - 20, 512 + 60).all()
    assert set(rows.xs(1, level="s_qo")["engine_runner"]) == {"V1 model runner, async scheduling"}
    assert set(rows.xs(4, level="s_qo")["engine_runner"]) == {"V1 model runner, synchronous scheduling"}


def test_one_start_serves_all_points_of_a_flag_and_a_draft_length(ran: pd.DataFrame):
    starts = ran.loc[SEEN]["engine_start"]

    assert starts.groupby(["flag", "s_qo"]).nunique().eq(1).all() and starts.nunique() == 6


@pytest.mark.parametrize(
    ("flag", "status", "words"),
    [
        ("NO_SUCH", "unsupported", "vllm 0.25.1 has no attention backend NO_SUCH; it has FLASH_ATTN, "),
        ("FLASHINFER:no-nonsense", "unsupported", "vllm 0.25.1 has no option nonsense of attention"),
        ("FLEX_ATTENTION", "unsupported", "Selected backend FLEX_ATTENTION is not valid for this configuration"),
        ("FAKE_OOM", "oom", "CUDA out of memory"),
        ("FAKE_OTHER", "failed", "no kernel of attention is known among those that ran: nvjet_product | some_new_kernel"),
        ("FAKE_ASSERT", "failed", "AssertionError: at site-packages/vllm/__init__.py:"),
        ("FAKE_ASSERT", "failed", ": raise AssertionError"),
        ("FAKE_CRASH", "failed", "the process of its environment died of SIGSEGV"),
        ("FAKE_HANG", "timeout", f"no answer after {POINT_SECONDS * 0.9:g} s; the process of its environment was killed"),
    ],
)
def test_what_an_engine_refuses_or_breaks_is_in_the_rows_of_its_points_alone(ran: pd.DataFrame, flag: str, status: str, words: str):
    rows = ran.loc[flag]
    broken = rows.xs(2, level="batch_size") if status in ("failed", "timeout") and flag != "FAKE_OTHER" else rows

    assert set(broken["status"]) == {status} and broken["reason"].str.contains(words, regex=False).all()
    assert len(broken) == len(rows) or set(rows.drop(2, level="batch_size")["status"]) == {"ok"}
    assert broken["attention_us"].isna().all()


def test_no_process_is_left(ran: pd.DataFrame, forked: list[ForkedPopen]):
    assert len(ran) == 66 and [one.pid for one in forked if start_time(one.pid)] == []


@pytest.fixture(scope="module", params=[ENGINES["sglang"], "0.5.23"])
def sglang(
    request: pytest.FixtureRequest, cache: Path, forked: list[ForkedPopen], tmp_path_factory: pytest.TempPathFactory
) -> pd.DataFrame:
    """The rows of SGLang's stand-in, whose scheduler runs its own event loop, with the interface of two releases."""
    folder = tmp_path_factory.mktemp("sglang")
    write_engine(folder, "sglang", request.param)
    words = [*SMALL, "engine=sglang", "sweep.batch_size=[1,3]", "sweep.drafts=[0,3]", f"results.path={folder / 'rows'}"]
    words += [f"+env.mine={{requirements: ['sglang=={request.param}'], wheels: '{folder}'}}", "sweep.env=[mine]"]
    words += ['sweep.flag=[default,triton,flashinfer,no_such,"fa3:no-such",trtllm_mla,torch_native]']
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main(words) == 1
    return pd.read_parquet(folder / "rows").set_index(["s_qo", "flag", "batch_size"]).sort_index()


SGLANG_SEEN = ["default", "triton", "flashinfer"]


def test_sglang_verifies_chains_of_drafts(sglang: pd.DataFrame):
    rows = sglang.loc[4].loc[SGLANG_SEEN]

    assert set(rows["status"]) == {"ok"} and set(rows["engine_steps"]) == {start.TIMED_DRAFTS}
    assert set(rows.loc["triton", "resolved_backend"]) == {"triton"} and set(rows.loc["default", "resolved_backend"]) == {"fa3"}
    assert set(rows.loc["triton", "main_kernels"]) == {"_fwd_kernel"} and set(rows.loc["triton", "attention_us"]) == {60}
    ahead = rows["engine_version"].iloc[0] == "0.5.23"
    assert rows["engine_runner"].str.endswith(f"SimpleNamespace, {'async' if ahead else 'synchronous'} scheduling").all()
    assert rows["engine_kv_tokens"].between(240, 512 + 20).all()


def test_sglang_decodes_under_its_own_scheduler(sglang: pd.DataFrame):
    rows = sglang.loc[1].loc[SGLANG_SEEN]
    row = rows.loc["default", 3]
    release = row["engine_version"]

    assert set(rows["status"]) == {"ok"} and set(rows["page_size"]) == {1}
    assert release in (ENGINES["sglang"], "0.5.23") and set(rows["libraries"]) == {f"sglang {release}"}
    assert (row["resolved_backend"], row["metadata_kernels"]) == ("fa3", "prepare_varlen_num_blocks_kernel")
    assert "page_size=1" in row["kernel_config"] and row["kernel_config"].endswith("prefill=fa3")
    assert row[["attention_us", "attention_metadata_us", "engine_steps"]].tolist() == [40, 4 * 3, start.TIMED]
    assert rows.loc["triton", 1][["attention_us", "attention_combine_us"]].tolist() == [55, 5]
    assert rows["engine_kv_tokens"].between(512 - 20, 512 + 20).all() and row["engine_runner"].endswith("async scheduling")
    assert rows["engine_start"].groupby("flag").nunique().eq(1).all()


@pytest.mark.parametrize(
    ("flag", "status", "words"),
    [
        ("no_such", "unsupported", " has no attention backend no_such; it has triton, "),
        ("fa3:no-such", "unsupported", " has no option such of attention"),
        ("trtllm_mla", "unsupported", "only supported on Blackwell"),
        ("torch_native", "failed", "the requests ended after 20 steps with 1 tokens of each request"),
    ],
)
def test_what_sglang_refuses_is_in_the_rows_of_its_points(sglang: pd.DataFrame, flag: str, status: str, words: str):
    for q in (1, 4):
        rows = sglang.loc[q].loc[flag]
        assert set(rows["status"]) == {status} and rows["reason"].str.contains(words if q == 1 else words[:20], regex=False).all()


def test_no_question_ranks_them(ran: pd.DataFrame, tmp_path: Path, invoke: Invoke):
    path = tmp_path / "rows.parquet"
    ran.reset_index().to_parquet(path)

    for question in ("best", "one_backend", "roofline"):
        done = invoke("mode=report", f"question={question}", f"results.path={path}")
        assert "vllm/" not in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_the_question_says_what_each_flag_ran_and_why_nothing_is_compared_without_isolated_rows(
    ran: pd.DataFrame, tmp_path: Path, invoke: Invoke
):
    """As if the stand-in's GPU were a Hopper."""
    ran.reset_index().assign(compute_capability="9.0").to_parquet(tmp_path / "rows.parquet")
    done = invoke("mode=report", "question=in_engine", f"results.path={tmp_path / 'rows.parquet'}", "format=csv")
    said = done.stdout

    assert "no isolated row of paged_decode/flash_attn_3_vllm or paged_decode/flash_attn_3 there" in said
    assert "FlashAttnFwdSm90" in said and "seen on H200" in said


@pytest.mark.parametrize(("engine", "release"), ENGINES.items())
def test_an_engine_that_is_not_installed_says_what_to_type(engine: str, release: str, invoke: Invoke):
    done = invoke(*SMALL, f"engine={engine}", "mode=plan", "sweep.batch_size=[1]", "sweep.flag=[default]")

    said = f"needs {engine}, which is not installed there; type 'sweep.env=[{engine}:{release}]'"
    assert said in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["sweep.flag=[default,FLASHINFER,TRITON_ATTN]"], 6),
        (["sweep.drafts=[0,1,3,7]", "sweep.batch_size=[1,8,32,64]", "sweep.s_kv=[8192,131072]"], 20),  # the sweep's five flags
        (["sweep.flag=[default]", "sweep.dtype=[{q: bf16, kv: bf16},{q: bf16, kv: fp8_e4m3}]"], 4),
        (["model=gpt_oss_120b", "sweep.window=[null]", "sweep.flag=[default]", "sweep.drafts=[0,1,7]"], 3),
    ],
)
def test_a_plan_counts_the_starts(words: list[str], starts: int, invoke: Invoke):
    done = invoke("+sweep=in_engine", "engine=vllm", "mode=plan", "device=h200", *words)

    assert f"{starts}, of about 33 s (25 to 40 s)" in done.stdout


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["sweep.flag=null", "sweep.backend=[fa2]"], "flags are of an engine"),
        (["timing.context=isolated"], "flags are of an engine"),
        (
            ["engine=vllm_0_25_1"],
            "engine='vllm_0_25_1': a sweep of flags starts the release that is installed; allowed: vllm, sglang",
        ),
        (["sweep.drafts=[-1]"], "sweep.drafts=-1: allowed: whole numbers from 0"),
        (["mode=check_power"], "mode=check_power tests the check of answers, and an engine shows none"),
        (["model=deepseek_v3", "model.layer=null"], "model deepseek_v3 does not say how large its layers are (model.layer)"),
    ],
)
def test_wrong_words_are_answered_in_words(words: list[str], wrong: str, invoke: Invoke):
    done = invoke("+sweep=in_engine", *([] if words[0].startswith("mode=") else ["mode=plan"]), *words)

    assert done.returncode == 2 and wrong in done.stderr


def test_an_engine_needs_a_sweep_of_flags(invoke: Invoke):
    done = invoke("+sweep=smoke", "engine=vllm", "mode=plan")

    assert done.returncode == 2 and "engine=vllm: sweep smoke starts no engine; type +sweep=in_engine for one" in done.stderr


def test_from_the_command_line_through_ray_a_folder_on_the_path_is_enough(tmp_path: Path):
    """In processes of their own: the driver, a worker of Ray, and the engine, which finds what PYTHONPATH names."""
    with zipfile.ZipFile(write_engine(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [*SMALL, "cluster=local", "sweep.flag=[TRITON_ATTN]", "sweep.batch_size=[1,2]", "sweep.drafts=[0]"]
    words += ["sweep.dtype=[{q: bf16, kv: fp8_e4m3}]"]
    done = subprocess.run(
        command(*(word for word in words if word != "cluster=inline"), f"results.path={tmp_path / 'rows'}"),
        cwd=ROOT, env={**environment(), "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-2000:]
    rows = pd.read_parquet(tmp_path / "rows")
    assert set(rows["status"]) == {"ok"} and set(rows["engine_start"]) == {1} and set(rows["attention_us"]) == {50}
    assert rows["kernel_config"].str.endswith("custom_ops=-rotary_embedding").all()
