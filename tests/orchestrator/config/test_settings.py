"""Validation: settings are immutable; wrong input is an error with the key, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from pydantic import ValidationError

from orchestrator import ROOT
from orchestrator.config.engine import selected
from orchestrator.config.settings import Settings, load
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from tests.helpers.command_line import composed

ALONE = {"sweep": "base"}  # the defaults of every sweep, no sweep itself
NEEDS_MORE = {"ray", "cpu"}  # an address; a device is given by name
GROUPS = {
    group: sorted(f.stem for f in (ROOT / "conf" / group).glob("*.yaml") if f.stem not in {ALONE.get(group), *NEEDS_MORE})
    for group in ("sweep", "model", "timing", "check", "cluster", "trees")
}


@pytest.mark.parametrize(("group", "choice"), [(g, c) for g, choices in GROUPS.items() for c in choices])
def test_every_choice_of_every_group_is_valid(group: str, choice: str, settings: Callable[..., Settings]):
    prefix = "+" if group == "sweep" else ""
    found = settings(*([] if group == "sweep" else ["+sweep=smoke"]), f"{prefix}{group}={choice}")

    assert getattr(found, group) is not None


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["+sweep=mla_mtp", "sweep.s_qo=[1,2]", "timing=quick", "~sweep.exclude", "++sweep.tp=2"],
        ["sweep.batch_size=1", "+sweep=smoke", "model={num_kv_heads: 2}", "model=qwen3_235b_a22b", "+trees.mine={branches: [2]}"],
    ],
)
def test_tests_get_the_configuration_that_hydra_composes(overrides: list[str]):
    with initialize_config_module("conf", version_base="1.3"):
        whole = compose("config", overrides=overrides)

    assert composed(*overrides) == OmegaConf.to_container(whole, resolve=True)


def test_a_dtype_may_have_the_name_that_vllm_gives_it():
    report = load(composed("+sweep=smoke", "mode=report", "where={kv_dtype: [fp8, bf16]}"))
    points = expand(load(composed("+sweep=specdec_long_ctx", "sweep.dtype=[{q: bf16, kv: fp8}]")))

    assert report.where == {"kv_dtype": ("fp8_e4m3", "bf16")}  # type: ignore[union-attr]
    assert {point.problem.kv_dtype for point in points} == {"fp8_e4m3"}


@pytest.mark.parametrize(
    ("typed", "where"),
    [("{window: null}", {"window": None}), ("{window: [null, 1024], kv_dtype: null}", {"window": (None, 1024), "kv_dtype": None})],
)
def test_where_takes_null(typed: str, where: dict[str, object]):
    assert load(composed("+sweep=smoke", "mode=report", f"where={typed}")).where == where  # type: ignore[union-attr]


def test_settings_are_frozen(settings: Callable[..., Settings]):
    with pytest.raises(ValidationError, match="frozen"):
        settings("+sweep=smoke").limits.point_seconds = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], ["sweep: none given", "+sweep=NAME", "specdec_long_ctx"]),
        (["+sweep=smoke", "sweep.s_qo=0"], ["sweep.s_qo=0", "at least 1"]),
        (["+sweep=smoke", "sweep.s_qo=[1,300]"], ["s_qo=300", "s_kv=256", "s_qo <= s_kv", "exclude"]),
        (["+sweep=smoke", "sweep.batch_size=8x"], ["sweep.batch_size='8x'", "a whole number"]),
        (["+sweep=smoke", "sweep.batch_size=1.5"], ["sweep.batch_size=1.5", "a whole number"]),
        (
            ["+sweep=smoke", "sweep.backend=[fa9]"],
            ["sweep.backend='fa9'", "auto, batch_attention, batch_pod, cudnn, cute-dsl, cutile, fa2, fa2_tc, fa3"],
        ),
        (["+sweep=smoke", "model.num_kv_heads=7"], ["num_qo_heads=64", "num_kv_heads=7", "multiple"]),
        (["+sweep=smoke", "+sweep.bach_size=[1]"], ["bach_size", "did you mean 'batch_size'?"]),
        (["+sweep=smoke", "sweep.dtype=[{qq: bf16}]"], ["dtype.qq_dtype", "did you mean 'q_dtype'?"]),
        (["+sweep=smoke", "sweep.dtype=[{q: float8}]"], ["sweep.q_dtype='float8'", "'fp8_e4m3'"]),
        (["+sweep=smoke", "sweep.mask=[bidirectional]"], ["unknown 'bidirectional'", "did you mean 'full'?"]),
        (["+sweep=smoke", "sweep.mask=binery"], ["sweep.mask: unknown 'binery'", "did you mean 'binary'?", "causal, chain"]),
        (["+sweep=smoke", "sweep.mask=medusa_7b_63", "sweep.s_qo=65"], ["sweep.mask=medusa_7b_63", "64 tokens", "s_qo=65"]),
        (["+sweep=smoke", "sweep.s_qo=[{min: 9, max: 4}]"], ["s_qo={min: 9, max: 4}"]),
        (["+sweep=smoke", "sweep.tp=3"], ["sweep.tp=3", "llama_3_1_70b is split over 1, 2, 4, 8"]),
        (["+sweep=smoke", "+trees.mine={branches: []}"], ["trees.mine.branches"]),
        (["+sweep=smoke", "+trees.full={branches: [2]}"], ["trees.full", "another name"]),
        (
            ["+sweep=smoke", "mode=report", "question=besst"],
            ["question='besst'", "did you mean 'best'? allowed: 'best'"],
        ),
        (["+sweep=smoke", "draft.acceptance=1.5"], ["draft.acceptance=1.5", "from 0 to 1", "[0.9,0.8,0.7]"]),
        (["+sweep=smoke", "draft.acceptance=[0.9,often]"], ["draft.acceptance=[0.9, 'often']", "from 0 to 1"]),
        (["+sweep=smoke", "draft.acceptance=[]"], ["draft.acceptance=[]", "from 0 to 1"]),
        (["+sweep=smoke", "draft.cost_us=-1"], ["draft.cost_us=-1", "at least 0"]),
        (["+sweep=smoke", "draft.cost_us=400"], ["draft.layers: needed with draft.cost_us", "draft.layers=80"]),
        (["+sweep=smoke", "mode=report", "where=4"], ["where=4", "columns with a value, several or a range"]),
        (["+sweep=smoke", "mode=report", "where={kv_dtype: fp9}"], ["where.kv_dtype: unknown 'fp9'", "allowed: ", "fp8_e4m3"]),
        (["+sweep=smoke", "mode=report", "where={s_kv: {from: 2, to: 1}}"], ["where.s_kv={from: 2, to: 1}: allowed: {from: 4096"]),
        (["+sweep=smoke", "sweep.s_kv=[{from: 1, to: 9}]"], ["sweep.s_kv={from: 1, to: 9}: allowed: {from: 4096, to: 60000, step"]),
        (["+sweep=smoke", "sweep.s_kv=[{from: 0, to: 9, factor: 2}]"], ["a factor greater than 1 from a number above 0"]),
        (["+sweep=smoke", "sweep.s_kv=[{from: 1, to: 1e9, step: 1}]"], ["more than 10,000 values; take a larger step"]),
        (["+sweep=smoke", "sweep.s_kv=[{from: 1, to: many, step: 1}]"], ["sweep.s_kv={from: 1, to: many, step: 1}: allowed"]),
        (["+sweep=smoke", "mode=report", "where={s_qo: []}"], ["where={s_qo: []}", "columns with a value, several or a range"]),
        (["+sweep=smoke", "sweep.backend=[]"], ["no points", "sweep.backend"]),
        (["+sweep=smoke", "sweep.exclude=[{bach_size: 1}]"], ["sweep.exclude[0]", "did you mean 'batch_size'?"]),
        (["+sweep=smoke", "sweep.exclude=[{batch_spec: 8q1s1k}]"], ["type {batch_size: 8, s_qo: 1, s_kv: 1024}"]),
        (["+sweep=smoke", "sweep.exclude=[{batch_spec: 2q2k_2q2k_q1}]"], ["'2q2k_2q2k_q1': type 4q2k_q1"]),
        (["+sweep=smoke", "sweep.batch_spec=[8s1k]"], ["'8s1k' is vLLM's older dialect; type '8q1s1k'"]),
        (["+sweep=smoke", "sweep.seq_lens=listed"], ["seq_lens='listed'", "give batch_spec"]),
        (["+sweep=smoke", "mode=import"], ["type import=results.csv device=h200"]),
        (["+sweep=smoke", "mode=export"], ["type export=flashinfer_csv"]),
        (["+sweep=smoke", "sweep.exclude=[fa2]"], ["'fa2' is not a rule", "{backend: cudnn"]),
        (["+sweep=smoke", "sweep.exclude=3"], ["sweep.exclude=3", "a list of rules"]),
        (["+sweep=smoke", "sweep.dtype=bf16"], ["unknown 'dtype'", "dtype: [{q: bf16, kv: bf16}]"]),
        (["+sweep=smoke", "sweep.dtype=[[bf16]]"], ["sweep.dtype=['bf16']", "mappings of keys"]),
        (["+sweep=smoke", "sweep.batch_size=true"], ["sweep.batch_size=true", "a whole number"]),
        (["+sweep=smoke", "sweep.s_kv=[99999999999]"], ["sweep.s_kv=99999999999", "at most 2147483647"]),
        (["+sweep=smoke", "sweep.s_kv=[2000000000]", "sweep.batch_size=[2000000000]"], ["FLOPs", "which a row can hold"]),
        (["+sweep=smoke", "results.path=''"], ["results.path=''"]),
        (["+sweep=smoke", "+limits.foo=1"], ["limits.foo", "unknown key"]),
        (["+sweep=smoke", "limits.memory_fraction=2"], ["limits.memory_fraction=2", "at most 1"]),
        (["+sweep=smoke", "results.path=[a,b]"], ["mode=run takes one dataset"]),
        (["mode=report", "results.path=[]"], ["results.path", "such as [results/a,results/b]"]),
        (["+sweep=smoke", "mode=reports"], ["mode='reports': did you mean 'report'? allowed: 'run', 'plan'"]),
        (["+sweep=smoke", "mode=fly"], ["mode='fly'", "'replay', 'calibrate', 'noise', 'check_power'"]),
        (["+sweep=smoke", "mode=replay"], ["mode=replay", "point=ID"]),
        (["+sweep=smoke", "cluster=ray"], ["cluster.address=None", "cluster.address=HOST:6379"]),
        (["+sweep=smoke", "cluster.address=x:1"], ["cluster.address='x:1'", "cluster=ray"]),
        (["+sweep=smoke", "adapters=[no.such.module]"], ["adapters=['no.such.module']", "ADAPTERS"]),
    ],
)
def test_wrong_input_names_the_key_the_value_and_what_is_allowed(overrides: list[str], words: list[str]):
    with pytest.raises(UserError) as caught:
        expand(load(composed(*overrides)))

    for word in words:
        assert word in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "precision"),
    [
        (["+sweep=specdec_long_ctx"], "decide"),
        (["+sweep=specdec_long_ctx", "timing=quick"], "decide"),
        (["+sweep=specdec_long_ctx", "timing.precision=full"], "full"),
        (["+sweep=specdec_long_ctx", "timing=thorough"], "full"),
        (["+sweep=specdec_long_ctx", "mode=noise"], "full"),
        (["+sweep=specdec_long_ctx", "rerun=suspects", "baseline=a", "candidate=b"], "full"),
        (["+sweep=smoke"], "full"),
        (["+sweep=smoke", "sweep.precision=decide"], "decide"),
        (["mode=calibrate"], "full"),
    ],
)
def test_a_sweep_says_how_precise_its_times_must_be(settings: Callable[..., Settings], overrides: list[str], precision: str):
    assert settings(*overrides).timing.precision == precision


def test_an_export_of_a_release_is_that_of_its_engine(settings: Callable[..., Settings]):
    for typed, path in (("sglang_0_5_12_post1", None), ("vllm_0_25_1", "flags.sh")):
        found = settings(f"export={typed}{f':{path}' if path else ''}", "mode=export", "device=h200")
        assert (*found.export, found.engines) == (typed.partition("_")[0], path, selected(typed))
    assert settings("export=vllm", "mode=export").engines == selected("vllm")
