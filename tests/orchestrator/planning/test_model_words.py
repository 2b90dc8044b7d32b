"""`model=` is never passed over in silence, and what a model cannot have costs its own points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import Invoke

H200 = ("mode=plan", "device=h200", "format=json")


def planned(invoke: Invoke, *words: str) -> tuple[list[list[str]], dict[str, int], str]:
    """The heads of a plan, its verdicts, and what stands on stderr."""
    done = invoke(*words, *H200)
    assert done.returncode == 0, done.stderr
    heads, verdicts = json.loads(done.stdout)[:2]
    return heads["rows"], {kind: int(count) for kind, count in verdicts["rows"]}, done.stderr


@pytest.mark.parametrize("sweep", ["ragged_prefill", "chunked_prefill", "specdec_paged_decode"])
def test_a_typed_model_takes_the_place_of_a_sweeps_own_heads(sweep: str, invoke: Invoke):
    heads, verdicts, said = planned(invoke, f"+sweep={sweep}", "model=mistral_7b_v0_3", "model.max_positions=null")

    assert {tuple(row[:4]) for row in heads} == {("mistral_7b_v0_3", "1", "32", "8")}
    assert verdicts["run"]
    assert f"note: sweep.heads: the model that was typed takes the place of the heads that sweep {sweep} sets" in said


def test_without_a_typed_model_a_sweep_keeps_its_heads(invoke: Invoke):
    heads, _, said = planned(invoke, "+sweep=ragged_prefill")
    both, _, also = planned(
        invoke, "+sweep=ragged_prefill", "model=qwen3_8b", "sweep.heads=[model,{num_qo_heads: 8, num_kv_heads: 8}]"
    )

    assert ({row[0] for row in heads}, said.count("note")) == ({"custom"}, 0)
    assert ({row[0] for row in both}, "sweep.heads" in also) == ({"custom", "qwen3_8b"}, False)


def test_other_heads_get_nothing_of_a_model(invoke: Invoke):
    """The sinks of gpt-oss made nearly all points of Llama's heads unsupported."""
    own = "sweep.heads=[{num_qo_heads: 64, num_kv_heads: 8, head_dim_qk: 128, head_dim_vo: 128}]"
    _, verdicts, said = planned(invoke, "+sweep=ragged_prefill", own, "model=gpt_oss_120b")

    assert verdicts == planned(invoke, "+sweep=ragged_prefill", own)[1]
    assert "note: model: no point has its heads: sweep ragged_prefill brings its own" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+sweep=specdec_long_ctx", "model=deepseek_v3"], "this model's cache is a latent"),
        (["+sweep=specdec_long_ctx", "model=deepseek_v3"], "+sweep=mla_mtp"),
        (["+sweep=mla_mtp", "model=qwen3_235b_a22b"], "model qwen3_235b_a22b has no latent"),
        (["+sweep=mla_mtp", "model=deepseek_v3_2"], "model deepseek_v3_2 attends sparsely, to 2,048 keys"),
        (["+sweep=smoke", "model=glm_5"], "model glm_5 attends sparsely"),
        (
            ["+sweep=smoke", "model=kimi_k2_5", "sweep.routine=mla", "sweep.backend=[fa3]", "sweep.tp=[3,6]"],
            "split over 1, 2, 4, 8, 16",
        ),
        (["+sweep=specdec_long_ctx", "model=phi_3_mini_4k"], "has 4,096 positions"),
    ],
)
def test_a_sweep_that_is_not_the_models_is_refused_in_words(words: list[str], said: str, invoke: Invoke):
    done = invoke(*words, *H200)

    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "refused", "total", "reason"),
    [
        (["+sweep=mla_mtp", "model=kimi_k2", "model.tp=[1,8,16]"], 864, 3528, "sweep.tp=4"),
        (["+sweep=specdec_long_ctx", "model=mistral_7b_v0_3"], 960, 1920, "32,768 positions"),
        (["+sweep=auto_routing", "model=qwen3_8b"], 216, 702, "has no latent"),
        (["+sweep=auto_routing", "model=deepseek_v3"], 216, 702, "is a latent"),
    ],
)
def test_what_a_model_cannot_have_costs_its_own_points(words: list[str], refused: int, total: int, reason: str, invoke: Invoke):
    _, verdicts, said = planned(invoke, *words)
    notes = [
        line
        for line in said.splitlines()
        if line.startswith(f"note: {refused:,} of {total:,} points do not run") and reason in line
    ]

    assert notes
    assert verdicts["run"]
    assert sum(verdicts.values()) == total


@pytest.mark.parametrize("model", ["kimi_k2", "kimi_k2_5", "kimi_k3"])
def test_a_latent_is_split_over_two_and_four(model: str, invoke: Invoke):
    assert "is split over" not in planned(invoke, "+sweep=mla_mtp", f"model={model}")[2]


def test_imported_points_say_that_a_model_is_not_theirs(tmp_path: Path, invoke: Invoke):
    (tmp_path / "list.txt").write_text(
        "--routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 --page_size 16 --batch_size 1 --s_qo 1 --s_kv 1024 "
        "--num_qo_heads 64 --num_kv_heads 8 --head_dim_qk 128 --head_dim_vo 128\n"
    )
    said = planned(invoke, f"import={tmp_path}/list.txt", "model=qwen3_8b")[2]

    assert f"note: model: no point has its heads: import={tmp_path}/list.txt brings its own" in said


def test_a_model_that_nobody_typed_limits_no_length(invoke: Invoke):
    assert planned(invoke, "+sweep=smoke", "sweep.s_kv=[200000]")[1]["run"]


def test_layers_that_are_not_measured_are_named(invoke: Invoke):
    said = planned(invoke, "+sweep=smoke", "model=nemotron_3_nano_30b_a3b")[2]

    assert "6 of the 52 layers of nemotron_3_nano_30b_a3b attend, as these points do; not measured: 23 Mamba, 23 MLP" in said


@pytest.mark.parametrize(
    ("sweep", "typed"),
    [
        ("mla_mtp", "'sweep.backend=[torch_sdpa]'"),
        ("xqa_specdec", "'sweep.kernel=[{routine: paged_decode, backend: torch_sdpa}]'"),
        ("in_step", "+sweep=smoke"),
    ],
)
def test_a_plan_of_a_cpu_that_runs_nothing_says_what_to_type(sweep: str, typed: str, invoke: Invoke):
    done = invoke(f"+sweep={sweep}", "mode=plan", "device=cpu")

    assert "no point runs on cpu: unsupported, " in done.stdout
    assert f"a CPU runs torch's backends: type {typed}" in done.stdout


def test_dense_attention_with_the_heads_of_a_sparse_model_is_not_that_model(invoke: Invoke):
    heads, verdicts, _ = planned(invoke, "+sweep=mla_mtp", "model=deepseek_v3_2", "model.index_topk=null")

    assert {row[0] for row in heads} == {"custom"}
    assert verdicts["run"]
