"""The best draft: what the rest of a step costs by measurement, curves by name, break-even, and what the answer leaves out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial

import pytest
from pydantic import ValidationError

from orchestrator import ROOT
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import draft, expected_tokens, open_views
from orchestrator.analysis.questions.deployments import HERE, parts
from orchestrator.analysis.questions.draft import break_even_acceptance, without_rest
from orchestrator.analysis.step_rest import PRESETS, ModelPlace, measured, us_at
from orchestrator.config.draft_cost import CURVES, Draft
from orchestrator.config.engine import selected
from orchestrator.config.model import LENT
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError
from orchestrator.planning.expand import expand
from orchestrator.reporting.opened import of_flags
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import RESULTS
from tests.helpers.timed_rows import made, views_of

H200 = ModelPlace("llama_3_1_70b", "NVIDIA H200", 1)
PRESET = Draft(rest="preset", acceptance="minimax_m3_eagle3")


def verify(us: float, s_qo: int, batch: int, model: str = H200.model) -> Row:
    keys = {"routine": "paged_decode", "mask": "causal", "device_name": H200.device_name, "tp": 1, "model": model}
    return made("fa2_tc", us, s_qo=s_qo, batch_size=batch, rel_err=0.003, **keys)


@pytest.fixture(scope="module")
def steps() -> Dataset:
    """Batch 1 with drafts of up to 3 tokens, and batch 48, whose draft has more tokens than any measured step."""
    return views_of(
        to_table([verify(20.0, 1, 1), verify(21.0, 2, 1), verify(60.0, 4, 1), verify(90.0, 1, 48), verify(95.0, 2, 48)]), PRESET
    )


def test_the_preset_is_what_the_committed_steps_measured():
    found = measured(open_views(RESULTS / "h200_studies/study_in_step"))

    assert set(found) == {H200} == set(PRESETS)
    assert found[H200].layer == pytest.approx(PRESETS[H200], abs=0.01)


def test_the_rest_lies_on_the_line_between_what_was_measured_and_nowhere_beyond():
    assert us_at({1: 10.0, 4: 40.0}, 2) == 20.0
    assert (us_at({1: 10.0, 4: 40.0}, 4), us_at({1: 10.0, 4: 40.0}, 5), us_at({}, 1)) == (40.0, None, None)


def test_a_step_is_the_model_s_layers_of_attention_and_of_the_measured_rest(steps: Dataset):
    (found,) = steps.records("FROM draft")
    of_four = 80 * (60.0 + PRESETS[H200][4])

    assert (found["drafted"], found["at_edge"], found["step_us"]) == (3, True, pytest.approx(of_four))
    assert found["tokens_per_s"] == pytest.approx(2.93 / of_four * 1e6)
    assert found["break_even_tokens"] == pytest.approx(of_four / (80 * (20.0 + PRESETS[H200][1])))


def test_the_cell_counts_drafted_tokens_and_marks_the_edge_of_the_sweep(steps: Dataset):
    _, warning, _, grid = draft.grids(steps)

    assert grid.cells[0][1].startswith("3 drafted (the longest known), 66/s")
    assert "fa2_tc err 0.3%" in grid.cells[0][1]
    assert "MiniMax-M3 with EAGLE-3, thinking off (InferenceX golden_al_distribution/minimaxm3_eagle3.yaml)" in grid.title
    assert [cells[0].partition(",")[0] for cells in warning.cells[:1]] == ["drafting itself is free"]
    assert warning.cells[1][0] == (
        "llama_3_1_70b on NVIDIA H200: steps of 1 to 64 query tokens were measured (draft.rest=preset); "
        "left out: batch 48: 1 drafted, so it has no line"
    )
    assert warning.cells[1][1] == (
        "python -m orchestrator +sweep=in_step model=llama_3_1_70b 'sweep.include=[]' 'sweep.backend=[fa2_tc]' "
        "'sweep.batch_size=[1, 48]' 'sweep.s_qo=[1, 2, 4]' 'sweep.s_kv=[8192]' 'sweep.tp=[1]' timing.context=step "
        "results.path=results/steps, and then draft.rest=results/steps"
    )


def test_the_command_for_what_is_left_out_measures_every_batch_and_draft_of_the_answer(
    main_views: Dataset, settings: Callable[..., Settings]
):
    """Its points are those of the question, so that a dataset of it leaves nothing out."""
    asked = set(main_views.execute("SELECT DISTINCT batch_size, s_qo FROM fastest"))
    views = views_of(main_views.current(), PRESET)
    ((left, command),) = without_rest(views, "preset").items()
    words = shlex.split(command)[3:]
    given = settings(*words)
    points = expand(given)

    assert left.endswith("left out: batch 32: 3, 7 drafted; batch 64: 1, 3, 7 drafted, so it has no line")
    assert {(point.problem.batch_size, point.problem.s_qo) for point in points} == asked
    assert (given.timing.context, {point.problem.model for point in points}) == ("step", {H200.model})


def test_the_docs_give_the_rest_of_a_step_that_the_preset_has():
    """rest_us is of all layers together: 80 times what the preset has for one."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    given = [int(value) for page in pages for value in re.findall(r"draft\.rest_us=(\d+)", page.read_text())]
    least, most = (80 * rest[tokens] for rest in PRESETS.values() for tokens in (1, 64))

    assert given and all(least * 0.999 < us < most for us in given)


def test_the_answer_begins_with_a_line_for_each_batch(steps: Dataset):
    (grid,) = draft.in_short(steps)
    (found,) = steps.records("FROM draft")

    assert [cells[1:3] for cells in grid.cells] == [("1", "3 (the longest known)")]
    assert grid.cells[0][3:] == (f"{found['gain']:.2f} times", f"1: 1.72, 3: {found['gain']:.2f}")


def test_a_batch_whose_longer_drafts_have_no_step_says_so(main_views: Dataset):
    """Else the longest draft with an answer would read like a recommendation."""
    views = views_of(main_views.current(), PRESET)
    (short,) = [cells for grid in draft.in_short(views) for cells in grid.cells if cells[1] == "32" and " bf16" in cells[0]][:1]

    (warning,) = draft.warnings(views, PRESET)
    assert short[2] == "1 or more (no answer for 3, 7: see the warning)" and "batch 32: 3, 7 drafted" in warning.cells[-3][0]
    assert any(
        "1 drafted or more (no answer for 3, 7: see the warning), " in cell
        for grid in draft.by_context(views)
        for row in grid.cells
        for cell in row
    )


@pytest.mark.parametrize("layers", [None, 12])
def test_a_step_of_a_model_with_two_kinds_of_layers_has_each_kind_by_its_fastest_backend(layers: int | None):
    """gemma_3_4b has 5 full layers and 29 with a window."""
    times = {(1, None): (50.0, 60.0), (1, 1024): (9.0, 8.0), (4, None): (52.0, 51.0), (4, 1024): (10.0, 30.0)}
    rows = [
        {**verify(us, s_qo, 8, "gemma_3_4b"), "backend": name, "window": window, "point_id": f"{name} {s_qo} {window}"}
        for (s_qo, window), both in times.items()
        for name, us in zip(("fa2_tc", "flash_attn_3"), both, strict=True)
    ]
    data = views_of(to_table(rows), Draft(layers=layers or 34, rest_us=1000, cost_us=1))
    (found,) = data.records("FROM draft")
    share = (layers or 34) / 34

    assert (found["drafted"], found["verify_backend"]) == (3, "flash_attn_3 (full), fa2_tc (windowed)")
    assert found["step_us"] == pytest.approx(share * (5 * 51.0 + 29 * 10.0) + 1000 + 3)
    assert found["one_token_per_s"] == pytest.approx(8e6 / (share * (5 * 50.0 + 29 * 8.0) + 1000))
    assert found["window"] is None and not draft.warnings(data, data.draft)


@pytest.mark.parametrize("server", [("model=llama_3_1_70b", "tp=8"), ("model=gpt_oss_120b", "tp=1")])
def test_an_engine_s_drafts_run_the_flags_that_one_backend_names_in_the_same_datasets(server: tuple[str, str], invoke: Invoke):
    asked = ("mode=report", "device=h200", "engine=vllm", *server)
    ours, theirs = invoke(*asked, "question=draft"), invoke(*asked, "question=one_backend", "drafts=3")
    (read,), (also,) = (re.findall(r"read ((?:.*\n)*?.*?),? which", done.stderr) for done in (ours, theirs))
    path, (model, tp) = re.sub(r",\n *", ",", read), (word.partition("=")[2] for word in server)
    rows = {"where": {"model": model, "tp": int(tp)}, "engines": selected("vllm")}
    flags, *_ = draft.grids(data := of_flags(partial(open_views, path, **rows), advised=True, each_length=True))
    drafted = {(title, layers, n): flag for title, of, layers, flag in flags.cells for n in of.split(", ")}

    assert read == also and {"0", "3"} <= {n for *_, n in drafted}
    assert "flag of vLLM 0.33.0, as question=one_backend drafts=N names it" in " ".join(ours.stdout.split())
    told = {}
    for n in {n for *_, n in drafted}:
        for one in parts(open_views(path, drafts=int(n), **rows)):
            if (choice := one.answer.choice) and one.who != HERE:
                place = f"{model} · tp {tp} · kv {one.choices[0].record['kv_dtype']} · NVIDIA H200"
                told[place, one.layers.replace("all", ""), n] = f"{choice.label}{' (default)' * choice.is_default}"
    assert drafted == told and len({*told.values()}) > 1
    assert data.execute("SELECT DISTINCT kv_dtype FROM draft ORDER BY 1") == [("bf16",), ("fp8_e4m3",)]


def test_the_time_of_each_draft_length_is_that_of_the_flag_and_not_of_the_fastest_backend():
    """Decode runs another flag, with queries of 16 bits, than drafts over the same cache."""
    keys = {"routine": "paged_decode", "mask": "causal", "device_name": H200.device_name, "compute_capability": "9.0"}
    keys |= {"model": H200.model, "tp": 1, "kv_dtype": "fp8_e4m3", "batch_size": 8, "page_size": 16}
    times = [("flash_attn_3_vllm", "fp8_e4m3", 1, 30.0), ("trtllm-native", "bf16", 1, 20.0), ("fa2_tc", "bf16", 1, 5.0)]
    times += [("flash_attn_3_vllm", "fp8_e4m3", 4, 32.0), ("trtllm-native", "bf16", 4, 50.0), ("fa2_tc", "bf16", 4, 6.0)]
    rows = [made(name, us, s_qo=s_qo, q_dtype=q, **keys) for name, q, s_qo, us in times]
    found = of_flags(partial(views_of, to_table(rows), engines=selected("vllm")), advised=True, each_length=True)
    (of_draft,) = found.records("FROM draft")
    flags, *_ = draft.grids(found)

    assert [cells[1::2] for cells in flags.cells] == [("0", "FLASHINFER"), ("3", "FLASH_ATTN (default)")]
    assert of_draft["gain"] == pytest.approx(20 / 32 * expected_tokens(0.8, 4))
    assert of_draft["verify_backend"] == "FLASH_ATTN (flash_attn_3_vllm)"


def test_an_engine_without_a_time_of_one_token_is_told_why():
    keys = {"routine": "paged_decode", "mask": "causal", "device_name": H200.device_name, "compute_capability": "9.0"}
    keys |= {"model": H200.model, "tp": 1, "kv_dtype": "bf16", "batch_size": 8, "page_size": 16}
    rows = [made(name, 30.0, s_qo=s_qo, **keys) for name, s_qo in (("trtllm-native", 1), ("flash_attn_3_vllm", 4))]
    read = partial(views_of, to_table(rows), engines=selected("vllm"))
    why, flags = draft.grids(of_flags(read, advised=True, each_length=True))

    assert why.cells == ((draft.ONE_LENGTH,),)
    no_advice = "no advice: the default FLASH_ATTN has no time (not measured at 1); of what was right, FLASHINFER is fastest"
    assert [cells[1::2] for cells in flags.cells] == [("0", no_advice), ("3", "FLASH_ATTN (default)")]


def test_the_longest_known_draft_has_the_command_that_measures_a_longer_one(
    steps: Dataset, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(draft, "longer_drafts", lambda *_: "")  # as if no other dataset had one
    (grid,) = draft.in_short(steps)
    command = re.search(r"a longer one may be better; to measure: python -m orchestrator (.*)$", grid.title)

    assert command and command[1].endswith("model=llama_3_1_70b 'sweep.s_qo=[1, 4, 8]' 'sweep.tp=[1]'")
    planned = invoke(*shlex.split(command[1]), "mode=plan", "device=h200", "format=markdown", "full=true")
    assert planned.returncode == 0, planned.stderr
    short = views_of(steps.current(), Draft(acceptance=(0.99,)))
    assert "the longest known: draft.acceptance ends there" in draft.in_short(short)[0].title


def test_a_length_at_which_one_kind_of_layers_was_measured_is_no_part_of_an_answer_for_both():
    rows = [
        {**verify(us, s_qo, batch, "gemma_3_4b"), "window": window, "point_id": f"{s_qo} {batch} {window}"}
        for s_qo, batch, window, us in ((1, 8, None, 9.0), (4, 8, None, 9.0), (1, 8, 9, 9.0), (4, 8, 9, 9.0), (1, 1, None, 9.0))
    ]
    rows.append({**verify(9.0, 4, 1, "gemma_3_4b"), "point_id": "one kind"})

    assert [record["batch_size"] for record in views_of(to_table(rows)).records("FROM draft")] == [8]


def test_drafts_without_a_step_of_one_token_say_what_measures_it(invoke: Invoke):
    done = invoke("mode=report", "question=draft", "model=gpt_oss_120b", "device=h100")
    said, command = done.stderr.splitlines()[-2:]

    assert "gpt_oss_120b on NVIDIA H100 80GB HBM3: no step without a draft was measured" in said
    planned = invoke(*shlex.split(command)[3:], "mode=plan", "device=h100")
    assert planned.returncode == 0 and "window" in command and "gpt_oss_120b" in planned.stdout
    assert "no step without" not in invoke("mode=report", "question=draft", "model=llama_3_1_70b", "device=h200").stderr


def test_a_model_of_which_one_kind_of_layers_was_measured_is_told_so(invoke: Invoke):
    typed = (
        "mode=report",
        "question=draft",
        "tp=1",
        "device=h200",
        "draft.acceptance=0.7",
        "draft.rest_us=5000",
        "format=markdown",
    )
    words = "layers with a window and"
    full = invoke(*typed, "model=gpt_oss_120b", "where={window: 128}").stdout

    assert f"gpt_oss_120b has 18 {words} 18 without, and one kind was measured" in full
    assert words not in invoke(*typed, "model=gpt_oss_120b").stdout
    assert words not in invoke(*typed, "model=llama_3_1_70b").stdout


def test_without_costs_the_answer_warns_and_names_the_preset(steps: Dataset):
    first, second = draft.warnings(steps, Draft())[0].cells

    assert first == (
        "the rest of a step counts nothing, so attention alone decides",
        "draft.rest=preset, or draft.layers=80 draft.rest_us=N with your µs, or draft.rest=DIR of timing.context=step",
    )
    assert second[1] == "draft.cost_us=N, µs of each drafted token; draft.start_us=N of each draft"
    assert draft.warnings(steps, Draft(layers=80, rest_us=36_500, cost_us=5)) == []


@pytest.mark.parametrize("typed", ["draft.cost_us=400", "draft.layers=80"])
def test_without_the_rest_of_a_step_the_answer_warns_whatever_else_is_typed_and_has_no_tokens_a_second(
    typed: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    """Attention alone has no server's tokens a second, and another best draft: 3 tokens here, 7 with the rest of a step."""
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("mode=report", "question=draft", "model=llama_3_1_70b", "tp=8", "device=h200", "draft.acceptance=0.7")
    asked = (*asked, "where={batch_size: 8, s_kv: 32768, kv_dtype: bf16}")
    alone, whole = (
        " ".join(invoke(*asked, *more).stdout.split()) for more in ((typed,), ("draft.cost_us=400", "draft.rest_us=9000"))
    )

    assert (
        "what this does not count" in alone and "the rest of a step counts" in alone and "nothing for the rest of a step" in alone
    )
    assert "/s (" not in alone and "in short: the best draft of each batch, without the rest of a step" in alone
    assert "the rest of a step counts" not in whole and "7 drafted" in whole and "/s (2.53×)" in whole


@pytest.mark.parametrize(
    ("tokens", "drafted", "chance"), [(1.2, 1, 0.2), (1.75, 2, 0.5), (1.0, 7, 0.0), (8.0, 7, 1.0), (3.1, 2, None)]
)
def test_break_even_acceptance_inverts_the_expected_tokens(tokens: float, drafted: int, chance: float | None):
    found = break_even_acceptance(tokens, drafted)

    assert found == (None if chance is None else pytest.approx(chance, abs=1e-6))
    if found is not None:
        assert expected_tokens(found, drafted + 1) == pytest.approx(tokens)


def test_a_curve_by_name_has_what_each_length_yielded_and_no_more():
    name = "deepseek_v4_pro_dspark_thinking"

    assert [expected_tokens(name, s_qo) for s_qo in (1, 2, 9, 10)] == [1.0, 1.86, 3.75, None]
    assert all(len(curve.tokens) == 8 and curve.source.endswith(".yaml") for curve in CURVES.values())
    assert all(1 < curve.tokens[k] <= k + 2 for curve in CURVES.values() for k in range(8))
    section = (ROOT / "docs" / "draft.md").read_text().partition("Curves by name")[2].partition("They were")[0]
    listed = set(re.findall(r"`(\w+\d\w+)`", section))
    assert listed | {f"{name}_thinking" for name in listed if not name.endswith("_thinking")} == set(CURVES)
    with pytest.raises(ValidationError, match="did you mean 'minimax_m3_eagle3'"):
        Draft(acceptance="minimax_m3_eagle")
    with pytest.raises(ValidationError, match="leave one of them out"):
        Draft(rest="preset", rest_us=5)


def test_a_model_without_measured_steps_has_an_answer_by_attention_unless_nobody_knows_its_layers():
    rows = to_table([verify(20.0, 1, 1, "custom"), verify(21.0, 2, 1, "custom")])
    found = views_of(rows, PRESET)

    assert found.draft.rest is None and found.execute("SELECT drafted FROM draft") == [(1,)]
    with pytest.raises(UserError, match=r"it is for llama_3_1_70b on NVIDIA H200 .* type draft.layers=N draft.rest_us=N"):
        views_of(rows, Draft(rest="preset", cost_us=400))


def test_rows_of_another_model_with_the_same_heads_take_the_steps_of_the_model_that_was_asked_for():
    lent = f"{H200.model}{LENT}custom, same heads)"
    (found,) = views_of(to_table([verify(20.0, 1, 1, lent), verify(60.0, 4, 1, lent)]), PRESET).records("FROM draft")

    assert (found["model"], found["step_us"]) == (lent, pytest.approx(80 * (60.0 + PRESETS[H200][4])))


def test_the_preset_asked_for_at_another_size_names_the_keys_and_answers_by_attention_and_drafts(invoke: Invoke):
    typed = ("model=llama_3_1_70b", "device=h200", "tp=8", "draft.rest=preset", "draft.cost_us=400")
    done = invoke("mode=report", "question=draft", *typed)
    exported = invoke("export=vllm", *typed)

    assert done.returncode == exported.returncode == 0
    assert "attention and drafts alone decide" in " ".join(done.stdout.split())
    assert "80 layers of attention, nothing for the rest of a step, 400 µs" in " ".join(done.stdout.split())
    assert "no draft table: it needs the time of a whole step; type draft.layers=80 " in exported.stdout
    place = "llama_3_1_70b on NVIDIA H200"
    words = f"draft.rest='preset': it is for {place} (tp 1); for {place} (tp 8) type draft.layers=80 draft.rest_us=N, µs of "
    assert words in done.stderr and "or draft.rest=DIR of timing.context=step" in done.stderr


def test_one_rest_for_steps_of_many_tokens_is_told_and_a_batch_of_few_is_not(invoke: Invoke):
    typed = ("model=llama_3_1_70b", "tp=8", "device=h200", "draft.layers=80", "draft.rest_us=7000", "draft.cost_us=300")
    words = "draft.rest_us=7000 counts for"

    assert words in " ".join(invoke("mode=report", "question=draft", *typed).stdout.split())
    assert words in invoke("export=vllm", *typed).stdout
    assert words not in " ".join(invoke("mode=report", "question=draft", *typed, "where={batch_size: 8}").stdout.split())
