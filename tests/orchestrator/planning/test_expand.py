"""From axes to points."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kernels.contract import splits
from kernels.problem import Problem
from orchestrator.composing.compose import from_words
from orchestrator.config.settings import Points, Settings, load
from orchestrator.errors import UserError
from orchestrator.planning.expand import chosen, expand
from orchestrator.planning.model_words import with_axes
from orchestrator.planning.replay import points_of
from orchestrator.point import Point, fingerprint

ONE = ("+sweep=smoke", "sweep.backend=[torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_kv=[256]", "sweep.s_qo=[1]")


def test_the_main_sweep_is_the_grid_of_its_axes(settings: Callable[..., Settings]):
    points = expand(settings("+sweep=specdec_long_ctx"))

    assert len(points) == 10 * 3 * 4 * 4 * 4 == 1920
    assert len({p.point_id for p in points}) == 1920
    assert Counter(Counter(p.group_id for p in points).values()) == {10: 192}
    assert {(p.problem.num_qo_heads, p.problem.num_kv_heads, p.problem.head_dim_qk, p.problem.page_size) for p in points} == {
        (64, 8, 128, 64)
    }
    assert {(p.problem.q_dtype, p.problem.kv_dtype) for p in points} == {
        ("bf16", "bf16"),
        ("bf16", "fp8_e4m3"),
        ("fp8_e4m3", "fp8_e4m3"),
    }


@pytest.mark.parametrize(
    ("typed", "lengths"),
    [
        ("sweep.s_kv={from: 4096, to: 12288, step: 4096}", [4096, 8192, 12288]),
        ("sweep.s_kv=[100, {from: 1024, to: 5000, factor: 2}]", [100, 1024, 2048, 4096]),
        ("sweep.s_kv=[{from: 1000, to: 2000, factor: 1.4142}]", [1000, 1414, 2000]),
    ],
)
def test_a_range_of_an_axis_is_its_numbers(typed: str, lengths: list[int]):
    assert [p.problem.s_kv for p in expand(load(from_words([*ONE[:3], ONE[4], typed])))] == lengths


def test_a_range_chooses_and_excludes_points():
    def lengths(*typed: str) -> list[int]:
        chosen = load(from_words([*ONE[:3], ONE[4], "sweep.s_kv={from: 1, to: 5, step: 1}", *typed]))
        assert isinstance(chosen, Points)
        return [p.problem.s_kv for p in points_of(chosen)]

    assert lengths("where={s_kv: {from: 2, to: 4}}") == [2, 3, 4]
    assert lengths("where={s_kv: [1, {from: 4}]}") == [1, 4, 5]
    assert lengths("where={s_kv: {from: 1, to: 9, factor: 2}}") == [1, 2, 4]
    assert lengths("sweep.exclude=[{s_kv: {to: 4}}]") == [5]


def test_null_chooses_points_without_a_value():
    chosen = load(from_words([*ONE, "sweep.window=[null,64,128]", "where={window: [null, 128]}"]))

    assert isinstance(chosen, Points) and [point.problem.window for point in points_of(chosen)] == [None, 128]


def test_a_mapping_moves_its_keys_together(settings: Callable[..., Settings]):
    points = expand(settings(*ONE, "sweep.dtype=[{q: bf16, kv: bf16}, {q: fp16, kv: fp8_e5m2, out: fp16}]"))

    assert [(p.problem.q_dtype, p.problem.kv_dtype, p.problem.output_dtype) for p in points] == [
        ("bf16", "bf16", "bf16"),
        ("fp16", "fp8_e5m2", "fp16"),
    ]


def test_an_axis_of_any_name_may_move_keys_together(settings: Callable[..., Settings]):
    points = expand(settings(*ONE, "+sweep.shape=[{batch_size: 2, s_kv: 64}, {batch_size: 4, s_kv: 32}]"))

    assert [(p.problem.batch_size, p.problem.s_kv) for p in points] == [(2, 64), (4, 32)]


def test_a_batch_spec_is_the_batch_that_its_words_say(settings: Callable[..., Settings]):
    same = expand(settings("+sweep=smoke", "sweep.backend=[fa2_tc]", "sweep.batch_spec=[2q4s1000, 1q1s256]"))
    grid = expand(settings("+sweep=smoke", "sweep.backend=[fa2_tc]"))
    mixed = expand(
        settings("+sweep=base", "+sweep.kernel=[{routine: paged_prefill, backend: fa2}]", "sweep.batch_spec=2q2k_8q1s1k")
    )

    assert {p.point_id for p in same} < {p.point_id for p in grid}
    assert [(p.problem.batch_size, p.problem.s_qo, p.problem.min_s_qo, p.problem.s_kv) for p in mixed] == [(10, 2048, 1, 2048)]
    assert mixed[0].problem.kv_lens == (2048, 2048, *[1024] * 8)


def test_a_batch_spec_in_a_mapping_moves_with_it(settings: Callable[..., Settings]):
    points = expand(settings(*ONE, "+sweep.kernel=[{backend: fa2_tc, batch_spec: q4s100}, {backend: fa2, batch_spec: 2q1s64}]"))

    assert [(p.backend, p.problem.batch_size, p.problem.s_qo, p.problem.s_kv) for p in points] == [
        ("fa2_tc", 1, 4, 100),
        ("fa2", 2, 1, 64),
    ]


@pytest.mark.parametrize(
    ("rules", "shapes"),
    [
        ("sweep.exclude=[{batch_size: 2}]", [(1, 1), (1, 4)]),
        ("sweep.exclude=[{batch_size: 2, s_qo: [4, 8]}]", [(1, 1), (1, 4), (2, 1)]),
        ("sweep.exclude=[{batch_size: 2}, {s_qo: 4}]", [(1, 1)]),
        ("sweep.include=[{batch_size: 16, s_qo: 1}]", [(1, 1), (1, 4), (2, 1), (2, 4), (16, 1)]),
        ("sweep.include=[{batch_size: 2}]", [(1, 1), (1, 4), (2, 1), (2, 4)]),
    ],
)
def test_rules_leave_points_out_and_add_some(settings: Callable[..., Settings], rules: str, shapes: list[tuple[int, int]]):
    points = expand(settings("+sweep=smoke", "sweep.backend=[torch_sdpa]", "sweep.s_kv=[256]", rules))

    assert [(p.problem.batch_size, p.problem.s_qo) for p in points] == shapes


@pytest.mark.parametrize(
    ("axis", "key"),
    [("batch_size", "batch_size"), ("s_kv", "s_kv"), ("page_size", "page_size"), ("seed", "seed"), ("kv_layout", "kv_layout")],
)
def test_any_axis_is_overridden_from_the_command_line(settings: Callable[..., Settings], axis: str, key: str):
    values = {"kv_layout": ["HND", "NHD"]}.get(axis, [512, 1024])
    points = expand(settings(*ONE, f"sweep.{axis}=[{','.join(map(str, values))}]"))

    assert [getattr(p.problem, key) for p in points] == values


def test_head_shapes_of_a_sweep_s_own_are_no_longer_the_model_s(settings: Callable[..., Settings]):
    points = expand(settings(*ONE, "+sweep.num_qo_heads=[16]"))

    assert [(p.problem.model, p.problem.num_qo_heads) for p in points] == [("custom", 16)]
    assert {p.problem.model for p in expand(settings(*ONE))} == {"llama_3_1_70b"}


def test_what_is_measured_enters_the_id_and_where_does_not(settings: Callable[..., Settings]):
    def id_of(*more: str) -> str:
        return expand(settings(*ONE, *more))[0].point_id

    assert (
        id_of() == id_of("cluster=inline") == id_of("results.path=/tmp/x") == id_of("limits.point_seconds=9") == id_of("rerun=all")
    )
    assert len({id_of(), id_of("timing=quick"), id_of("sweep.seed=1"), id_of("check=off"), id_of("model=llama_3_1_8b")}) == 5


@pytest.mark.parametrize("backend", ["fa2", "trtllm-native", 'a "quoted" \\ näme'])
@pytest.mark.parametrize("twin", [0, 1])
def test_a_point_id_is_the_fingerprint_of_what_a_point_is(problem: Callable[..., Problem], backend: str, twin: int):
    point = Point(problem(), backend, "how", twin)

    assert point.point_id == fingerprint([point.group_id, backend, *([1] if twin else [])])


def test_point_ids_stay_what_they_were(settings: Callable[..., Settings]):
    """Datasets resume by these: a change of this value makes every stored row foreign."""
    assert expand(settings(*ONE))[0].point_id == "a98cd36ea51e"
    dirty = expand(settings(*ONE, "timing.l2=dirty"))[0]  # the default before timing.l2=clean
    assert dirty.point_id == "0eb75194cd37"  # 682c0cb3b722 until 2026-11-22, when blocks took 20 ms


def test_ragged_drafts_are_a_range_of_s_qo(settings: Callable[..., Settings]):
    (point,) = expand(settings(*ONE[:-1], "sweep.s_qo=[{min: 1, max: 8}]", "sweep.batch_size=[64]"))

    assert (point.problem.min_s_qo, point.problem.s_qo) == (1, 8)
    assert (min(point.problem.q_lens), max(point.problem.q_lens)) == (1, 8)


def test_tp_divides_the_heads_of_a_model_and_copies_kv_heads_if_needed(settings: Callable[..., Settings]):
    points = expand(settings(*ONE, "model=qwen3_235b_a22b", "sweep.tp=[4,8]"))

    assert [(p.problem.tp, p.problem.num_qo_heads, p.problem.num_kv_heads) for p in points] == [(4, 16, 1), (8, 8, 1)]
    assert {p.problem.model for p in points} == {"qwen3_235b_a22b"}


def test_without_a_size_the_model_s_smallest_is_taken(settings: Callable[..., Settings]):
    (point,) = expand(settings(*ONE, "model=llama_3_1_405b"))

    assert (point.problem.tp, point.problem.num_qo_heads, point.problem.num_kv_heads) == (4, 32, 2)


def test_a_model_with_a_latent_gives_it_to_mla_alone(settings: Callable[..., Settings]):
    latent, ragged = expand(settings(*ONE, "model=deepseek_v3", "sweep.routine=[mla,ragged_prefill]"))

    assert (latent.problem.key_dim, latent.problem.value_dim, latent.problem.stored_kv_heads) == (576, 512, 1)
    assert (ragged.problem.key_dim, ragged.problem.value_dim, ragged.problem.stored_kv_heads) == (192, 128, 128)
    assert ragged.problem.head_dim_ckv is None


def test_a_model_with_sinks_has_them_in_every_point(settings: Callable[..., Settings]):
    assert expand(settings(*ONE, "model=gpt_oss_120b"))[0].problem.sinks


def test_a_tree_has_as_many_tokens_as_the_draft(settings: Callable[..., Settings]):
    points = expand(settings(*ONE[:-1], "sweep.s_qo=[2,4]", "sweep.mask=[binary,mine]", "+trees.mine={paths: [[0], [1], [1, 0]]}"))

    assert {(p.problem.mask, p.problem.tree) for p in points} == {
        ("binary", (-1, 0)),
        ("binary", (-1, 0, 0, 1)),
        ("mine", (-1, 0)),
        ("mine", (-1, 0, 0, 2)),
    }


def test_an_empty_axis_yields_to_a_mapping_that_moves_it(settings: Callable[..., Settings]):
    kernels = "{routine: paged_decode, backend: torch_sdpa}, {routine: paged_prefill, backend: torch_sdpa}"
    points = expand(settings(*ONE, "sweep.backend=[]", f"+sweep.kernel=[{kernels}]"))

    assert [(p.problem.routine, p.backend) for p in points] == [("paged_decode", "torch_sdpa"), ("paged_prefill", "torch_sdpa")]
    assert len({p.group_id for p in points}) == 2


def test_the_name_of_a_timing_is_no_part_of_what_is_measured(settings: Callable[..., Settings]):
    ids = {expand(settings(*ONE, f"timing.name={name}"))[0].point_id for name in ("default", "mine")}

    assert len(ids) == 1


def test_a_rule_leaves_out_what_the_model_or_a_default_has_set(settings: Callable[..., Settings]):
    two = (*ONE, "sweep.mask=[causal,full]")

    assert len(expand(settings(*two, "sweep.exclude=[{mask: full, page_size: 64, kv_layout: HND, out_dtype: bf16}]"))) == 1
    assert len(expand(settings(*two, "sweep.exclude=[{mask: full, page_size: 16}]"))) == 2


def test_a_range_of_one_length_is_that_length(settings: Callable[..., Settings]):
    (point,) = expand(settings(*ONE[:-1], "sweep.s_qo=[{min: 4, max: 4}, 4]"))

    assert point.problem.min_s_qo is None


def test_null_is_a_value_of_an_axis_and_of_a_rule(settings: Callable[..., Settings]):
    two = (*ONE, "sweep.window=[null,128]")

    assert [p.problem.window for p in expand(settings(*two))] == [None, 128]
    assert [p.problem.window for p in expand(settings(*two, "sweep.exclude=[{window: null}]"))] == [128]
    assert [p.problem.window for p in expand(settings(*two, "sweep.exclude=[{mask: causal, window: 128}]"))] == [None]


def test_what_a_routine_does_not_have_makes_no_second_point(settings: Callable[..., Settings]):
    layouts = ("sweep.kv_layout=[HND,NHD]", "sweep.page_size=[16,64]")

    assert len(expand(settings(*ONE, *layouts))) == 4
    assert len(expand(settings(*ONE, *layouts, "sweep.routine=ragged_prefill"))) == 1
    assert len(expand(settings(*ONE, *layouts, "sweep.routine=mla", "model=deepseek_v3"))) == 2


@pytest.mark.parametrize(
    "typed",
    [
        ["sweep.backend=[trtllm-gen-native]"],
        ["+sweep.kernel=[{routine: paged_decode, backend: trtllm-gen-native}]", "sweep.backend=[]"],
        ["sweep.backend=[trtllm-native,fa2]", "sweep.exclude=[{backend: fa2}]", "sweep.include=[{backend: trtllm-gen-native}]"],
    ],
)
def test_flashinfer_s_old_name_of_a_backend_is_typed_and_becomes_ours(typed: list[str], settings: Callable[..., Settings]):
    one = ("+sweep=smoke", "sweep.batch_size=1", "sweep.s_kv=256", "sweep.s_qo=1")
    (found,) = expand(settings(*one, *typed))
    (ours,) = expand(settings(*one, "sweep.backend=[trtllm-native]"))

    assert found == ours and found.point_id == ours.point_id
    assert settings("mode=conformance", "backend=[trtllm-gen-native]").backend == ("trtllm-native",)


CALLS = ({"backend": "fa2_tc", "page_size": 16}, {"backend": "cudnn", "page_size": 32})
ORDERS = [
    {"backend": ("fa2_tc", "cudnn"), "s_qo": (1, 2), "batch_size": (1, 8)},
    {"s_qo": (1, 2), "backend": ("fa2_tc", "cudnn"), "batch_size": (1, 8)},
    {"s_qo": (1, 2), "batch_size": (1, 8), "backend": ("fa2_tc", "cudnn")},
    {"s_qo": (1, 2), "call": CALLS, "batch_size": (1, 8)},
    {"batch_size": (1,), "num_splits": (None, 4), "s_qo": (2, 1), "backend": ("flash_attn_3",), "env": (None,)},
    {"backend": ("fa2_tc", "cudnn"), "call": CALLS, "s_qo": (1, 2), "batch_size": (1, 8)},  # two axes set one key: the later
]


@pytest.mark.parametrize("axes", ORDERS)
def test_points_stand_in_the_order_of_the_axes_wherever_the_backend_does(axes: dict[str, Any], settings: Callable[..., Settings]):
    of_smoke = settings("+sweep=smoke")
    sweep = of_smoke.sweep.model_copy(update={"axes": {"s_kv": (256,), **axes}, "include": (), "exclude": ()})
    found = expand(of_smoke.model_copy(update={"sweep": sweep}))

    wanted: dict[tuple[object, ...], None] = {}
    for values in itertools.product(*axes.values()):
        keys: dict[str, Any] = {}
        for axis, value in zip(axes, values, strict=True):
            keys |= value if isinstance(value, dict) else {axis: value}
        name = keys["backend"] if keys.get("num_splits") is None else splits.named(keys["backend"], keys["num_splits"])
        wanted[name, keys["s_qo"], keys["batch_size"], keys.get("page_size", 64)] = None
    assert [(p.backend, p.problem.s_qo, p.problem.batch_size, p.problem.page_size) for p in found] == list(wanted)
    assert len({id(p.problem) for p in found}) == len({p.problem for p in found})


@pytest.mark.parametrize(
    ("typed", "there"),
    [
        (["sweep.tp=[8]"], {(8, None), (8, 1)}),  # the heads of one GPU, and drafts of one length or of several
        (["sweep.tp=[1]", "sweep.s_qo=[4]"], {(1, None), (1, 1)}),
        (["sweep.tp=[2]"], {(2, None)}),
        (["sweep.s_qo=[1]", "sweep.tp=[8]"], {(8, None)}),
        (["sweep.tp=[8]", "sweep.include=[{tp: 1}]"], {(8, None), (1, None)}),
    ],
)
def test_a_typed_axis_wins_over_the_points_that_a_sweep_includes(typed: list[str], there: set[tuple[int, int | None]]):
    settings = with_axes(load(from_words(["+sweep=mla_mtp", "mode=plan", *typed])), typed)

    assert {(point.problem.tp, point.problem.min_s_qo) for point in points_of(settings)} == there


def test_a_point_is_found_among_what_a_sweep_includes_whatever_was_typed():
    typed = ["sweep.tp=[2]", "point=abc"]

    assert len(with_axes(load(from_words(["+sweep=mla_mtp", "mode=replay", *typed])), typed).sweep.include) == 1


def picked(*typed: str) -> list[Point]:
    return points_of(with_axes(load(from_words(["+sweep=servers", "mode=plan", *typed])), typed))


@pytest.mark.parametrize(
    ("typed", "kernels"),
    [
        (["sweep.backend=[flash_attn_3_vllm]"], {("paged_decode", "flash_attn_3_vllm")}),
        (["sweep.backend=sglang_triton"], {("paged_decode", "sglang_triton"), ("paged_prefill", "sglang_triton")}),
        (
            ["sweep.backend=[sglang_triton,fa2]", "sweep.routine=paged_prefill"],
            {("paged_prefill", "sglang_triton"), ("paged_prefill", "fa2")},
        ),
    ],
)
def test_a_typed_backend_or_routine_chooses_among_the_kernels_of_a_sweep(typed: list[str], kernels: set[tuple[str, str]]):
    every, found = expand(load(from_words(["+sweep=servers", "mode=plan"]))), picked(*typed)

    assert found == [point for point in every if (point.problem.routine, point.backend) in kernels]
    assert {(point.problem.routine, point.backend) for point in found} == kernels


def test_a_filter_chooses_among_the_typed_kernels_alone():
    typed = "sweep.backend=[flash_attn_3_vllm,fa2_tc]"
    settings, other = (
        with_axes(load(from_words(["+sweep=servers", "mode=plan", typed, f"where={{backend: {name}}}"])), [typed])
        for name in ("fa2_tc", "trtllm-native")
    )

    assert {point.backend for point in chosen(expand(settings), settings)} == {"fa2_tc"}
    with pytest.raises(UserError, match=r"trtllm-native.*no point of sweep servers has these values"):
        chosen(expand(other), other)


@pytest.mark.parametrize(
    ("typed", "words"), [("backend=[fa2,cudnn]", "'cudnn'; allowed: fa2, fa2_tc"), ("routine=mla", "'mla'; allowed: paged")]
)
def test_a_kernel_that_a_sweep_does_not_have_is_no_choice(typed: str, words: str):
    with pytest.raises(UserError, match=rf"sweep\..*unknown {words}.*type 'sweep.kernel="):
        picked(f"sweep.{typed}")
