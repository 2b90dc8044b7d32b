"""Tables against rows worked out by hand."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from orchestrator import tables as tables_of_text
from orchestrator.analysis import questions
from orchestrator.analysis.questions import open_views, tables
from orchestrator.analysis.questions.best import grids as best_grids
from orchestrator.analysis.questions.deployments import is_usual, parts
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import selected
from orchestrator.config.settings import Question, Settings
from orchestrator.errors import UserError
from orchestrator.formats.engine_config import config_text
from orchestrator.reporting import brief, report, screen
from orchestrator.reporting.report import STALE_UNSEEN, status_grid
from orchestrator.storage.row import to_table
from orchestrator.tables import Grid, draw, markdown
from tests.helpers.command_line import Invoke
from tests.helpers.compared import dataset
from tests.helpers.datasets import RESULTS
from tests.helpers.timed_rows import asked, made, views_of


def test_the_grid_has_a_row_per_draft_and_batch_and_a_column_per_context():
    rows = [made("a", 10.0), made("b", 11.0), made("a", 40.0, s_kv=32768), made("b", 30.0, s_qo=4)]
    (grid,) = best_grids(asked(*rows))

    assert grid.header == ("s_qo", "batch", "s_kv 8,192", "s_kv 32,768")
    assert grid.cells == (("1", "8", "a 10.0 (+10%) unchecked", "a 40.0 unchecked"), ("4", "8", "b 30.0 unchecked", "–"))


def test_a_map_of_2000_problems_is_a_screen_and_says_what_it_leaves_out():
    rows = [made("a", 10.0, batch_size=batch, s_kv=8192 + s_kv) for batch in range(1, 51) for s_kv in range(40)]
    brief.show(Console(file=(file := io.StringIO()), width=80), asked(*rows), "DIR", ["best"])
    lines = file.getvalue().splitlines()

    assert (
        len(lines) <= 40
        and [line.split()[0] for line in lines if line.endswith("   j")] == ["1", *["8", "15", "22", "29", "36", "43", "50"]] * 2
    )
    assert "176 of 2000 workloads, the others with question=best" in " ".join(file.getvalue().split())


@pytest.mark.parametrize(("contexts", "blocks"), [(2, [8]), (3, [12]), (4, [8, 8])])
def test_a_map_of_80_columns_is_whole_or_in_blocks_of_one_length(contexts: int, blocks: list[int]):
    rows = [made("a", 10.0, s_qo=s_qo, s_kv=8192 << s_kv) for s_qo in (1, 2, 4, 8) for s_kv in range(contexts)]
    brief.show(Console(file=(file := io.StringIO()), width=80), asked(*rows), "DIR", ["best"])
    lines = [line.split() for line in file.getvalue().splitlines() if len(line) <= 80]

    assert [len(of) - 2 for of in lines if of[:2] == ["batch", "kv"]] == blocks


def test_a_map_is_of_the_kind_that_has_most_workloads():
    rows = [made("b", 10.0, window=128), *(made("a", 10.0, s_kv=8192 << more) for more in range(3))]
    brief.show(Console(file=(file := io.StringIO()), width=80), asked(*rows), "DIR", ["best"])

    assert "bf16 cache; 3 of 4 workloads" in " ".join(file.getvalue().split())


@pytest.mark.parametrize("won", [[1], [1, 2, 3]])
def test_a_letter_stands_for_the_same_backend_in_every_report_and_is_explained_once_for_all_maps(won: list[int]):
    """However often each is the fastest one. `j` is the first that no common backend has."""
    of = [{"batch_size": batch, "kv_dtype": kv} for batch in (1, 2, 3, 4) for kv in ("bf16", "fp8_e4m3")]
    rows = [
        made(name, 20.0 if (one["batch_size"] in won) == (name == "mine") else 10.0, **one)
        for one in of
        for name in ("fa2", "mine")
    ]
    for row in rows:
        row["point_id"] += row["kv_dtype"]
    brief.show(Console(file=(file := io.StringIO()), width=80), asked(*rows), "DIR", ["best"])

    assert (file.getvalue().count("\na fa2  j mine  capital: "), file.getvalue().count("\nbatch kv ")) == (1, 2)
    assert len(set(brief.LETTERS.values())) == len(brief.LETTERS)


def test_backends_without_a_flag_are_told_with_their_figures_and_no_flag_to_type():
    rows = [made(name, us, routine="paged_decode") for name, us in (("gather_sdpa", 10.0), ("flex_attention", 25.0))]
    brief.show(Console(file=(file := io.StringIO()), width=80), asked(*rows), "DIR", ["best"])

    assert "gather_sdpa 1.00× (1.00), flex_attention 2.50× (2.50)" in file.getvalue()
    assert "flag of each engine" not in file.getvalue() and "backends, no flag; time over fastest: mean (worst)" in file.getvalue()


def test_the_rank_of_a_plugin_s_backend_is_on_the_first_screen_and_in_the_short_answer(tmp_path: Path, invoke: Invoke):
    common = {"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0"}
    own = {
        name: f"0.2.0+g0123456789ab{hashes}"
        for name, hashes in (("mine", ".dirty.0f1e2d3c.4b5a6978"), ("fa2_tc", ".dirty.0f1e2d3c"))
    }
    times = {"fa2_tc": 10.0, "flash_attn_3_vllm": 11.0, "cudnn": 12.0, "trtllm-native": 13.0, "mine": 20.0}
    rows = [made(name, us, orchestrator_version=own.get(name), **common) for name, us in times.items()]
    failed = made("mine", None, "unsupported", batch_size=64, orchestrator_version=own["mine"], **common)
    path = dataset(tmp_path / "mine", [*rows, failed, made("fa2_tc", 10.0, batch_size=64, **common)])
    printed = [invoke("mode=report", f"results.path={path}", *more).stdout for more in ((), ("question=one_backend",))]
    first, answer = (" ".join(text.split()) for text in printed)

    assert "your mine 2.00× (2.00), rank 5 of 5, unsupported at 1" in first
    assert "your backend mine: rank 5 of 5" in answer and "2.00" in answer and "your fa2_tc" not in first
    assert all(len(text.splitlines()) <= screen.LINES for text in printed)


@pytest.mark.parametrize(("lengths", "drafts", "is_said"), [([4], None, True), ([4], 3, False), ([1, 4], None, False)])
def test_the_first_screen_names_flags_without_a_row_and_says_that_there_is_no_decode(
    lengths: list[int], drafts: int | None, is_said: bool
):
    common = {"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", "page_size": 16}
    rows = to_table([made(name, 10.0, s_qo=n, **common) for n in lengths for name in ("flash_attn_3", "trtllm-native")])
    data = views_of(rows, engines=selected("vllm"), drafts=drafts)
    brief.show(Console(file=(file := io.StringIO()), width=80), data, "DIR", ["best"])
    told = " ".join(file.getvalue().split())

    assert "flags not measured for some of these: FLASHINFER without TRT-LLM, FLEX_ATTENTION, TRITON_ATTN" in told
    assert ("decode: not among these rows; drafts=0 says where it is" in told) == is_said


def test_a_lone_backend_is_called_no_fastest_one_and_an_empty_cell_is_explained():
    rows = [made("a", 10.0), made("a", 20.0, s_kv=16384), made("a", 20.0, batch_size=1)]
    found = []
    for more in ([], [made("b", 11.0)], [made("a", 30.0, s_kv=16384, batch_size=1), made("b", 11.0)]):
        brief.show(Console(file=(file := io.StringIO()), width=80), asked(*rows, *more), "DIR", ["best"])
        found.append(" ".join(file.getvalue().split()))
    alone, compared, whole = found

    assert "a: the only kernel measured here (3 workloads); no comparison" in alone and "1.00" not in alone
    assert "the only backend with a right answer (no comparison)" in alone and "fastest backend," not in alone
    assert "fastest backend," in compared and "a 1.00× (1.00)" in compared
    assert all(brief.NO_CELL in told for told in (alone, compared)) and brief.NO_CELL not in whole


@pytest.mark.parametrize(
    ("name", "where", "flag", "export"),
    [
        (
            "h200_engines/beside_vllm",
            {"model": "gpt_oss_120b"},
            "FLASH_ATTN (default, --block-size 64): the only kernel measured here (2 workloads); no comparison",
            "no other flag has a time; FLASHINFER, TRITON_ATTN not measured; pages of 16 not measured\n"
            "#   the only kernel measured here (2 workloads); no comparison",
        ),
        (
            "h200_mla/mla_mtp_fp8",
            {"model": "deepseek_v3", "tp": 1, "kv_dtype": "fp8_e4m3"},
            "FLASHMLA (default) 1.00× (1.00) where right; WRONG at 5 of 30 (error up to 20%, allowed 7%)",
            "wrong at 5 (error up to 20%, allowed 7%; batch ",
        ),
    ],
)
def test_a_report_and_an_export_say_alike_that_a_flag_was_wrong_or_compared_with_nothing(
    name: str, where: dict[str, Any], flag: str, export: str, settings: Callable[..., Settings]
):
    typed = ", ".join(f"{key}: {value}" for key, value in where.items())
    file, (vllm,) = io.StringIO(), selected("vllm")
    report.screen(Console(file=file, width=80), settings("mode=report", f"results.path=results/{name}", f"where={{{typed}}}"))
    printed = config_text(open_views(RESULTS / name, where=where, engines=[vllm]), vllm, Draft(), name)

    assert f"{vllm.title}: {flag}" in " ".join(file.getvalue().split())
    assert export in printed and ("1.00" in printed) == ("1.00" in flag)
    assert "no other flag was right" not in printed


@pytest.mark.parametrize(
    "name", ["h200_main/specdec_long_ctx", "h200_main/specdec_tp8", "h100_mla/mla_engines", "h200_prefill/merge_states"]
)
def test_a_report_is_a_screen_with_the_answers_of_one_backend_in_colour(name: str, settings: Callable[..., Settings]):
    written = [io.StringIO(), io.StringIO()]
    asked_for = settings("mode=report", f"results.path=results/{name}")
    for file, colours in zip(written, (None, "standard"), strict=True):
        report.screen(Console(file=file, width=80, force_terminal=bool(colours), color_system=colours), asked_for)
    plain, coloured = (file.getvalue() for file in written)
    told = " ".join(plain.split())
    found = [part for part in parts(open_views(RESULTS / name)) if part.answer.choice and is_usual(part.place)]

    assert len(plain.splitlines()) <= 40 and max(map(len, plain.splitlines())) <= 80
    assert re.search("\x1b\\[3[1-6]m", coloured) and "\x1b" not in plain
    assert "capital: ahead by more than noise" in told and "full=true" in told
    assert not found or any(part.brief(at_worst=True) in told for part in found)


def test_the_flags_of_a_server_are_not_cut(invoke: Invoke):
    """The command of README."""
    printed = invoke("mode=report", "question=one_backend", "model=llama_3_1_70b", "tp=8", "device=h200").stdout
    lines = printed[printed.index("one backend for a deployment") : printed.index("measured 20")].splitlines()
    caches = [line.partition(" kv ")[2].split()[0] for line in lines if line.startswith("llama_3_1_70b · 8 query heads (tp 8)")]
    shown = [line.split()[0] for line in lines if line.startswith(("decode ", "drafts "))]

    assert caches == ["bf16", "fp8_e4m3"] and shown == ["decode", "decode", "drafts", "drafts"] * 2
    assert "the first" not in " ".join(lines)


def alone(invoke: Invoke, asked: tuple[str, ...]) -> set[str]:
    """The deployments that a screen shows whole, and those that it shows whole if its words for the rest are added."""
    printed = invoke(*asked)
    lines = printed.stdout.splitlines()
    told = " ".join(printed.stdout.split())
    more = told.partition("its words: ")[2].partition(";")[0].split(" | ")

    assert printed.returncode == 0 and len(lines) <= screen.OF_TWO and max(map(len, lines)) <= 80, printed.stderr
    here = set(re.findall(r"(\w+ · \d+ query heads \(tp \d+\) · kv (?:bf16|fp8_e4m3)) ", told))
    return here.union(*(alone(invoke, (*asked, *shlex.split(words))) for words in more if "=" in words))


def test_the_command_of_many_found_datasets_is_short_and_gives_the_same_numbers(invoke: Invoke):
    printed = invoke("mode=report", "question=in_engine", "model=llama_3_1_70b", "device=h200").stdout
    again = " ".join(printed.split()).partition("these numbers again, of ")[2]
    count, command = again.partition(" datasets: ")[::2]

    assert int(count) > 20 and len(again) < 120 and not any("results/" in line for line in printed.splitlines()[-3:])
    assert invoke(*shlex.split(command)[3:]).stdout == printed


def test_a_list_of_datasets_is_named_as_it_is_typed(invoke: Invoke):
    place = "results.path=[results/h200_studies/energy,results/h200_main/specdec_tp8]"
    printed = invoke("mode=report", "question=best", place).stdout

    assert f"mode=dashboard '{place}'" in " ".join(printed.split())


SERVERS = "h200_main/servers"


def test_each_of_several_servers_is_shown_whole_or_with_words_that_show_it_whole(invoke: Invoke):
    model = "gpt_oss_120b"
    titles = {part.title.partition(" · clean")[0] for part in parts(open_views(RESULTS / SERVERS, where={"model": model}))}

    assert alone(invoke, ("mode=report", "question=one_backend", f"results.path=results/{SERVERS}", f"model={model}")) == titles
    assert len(titles) == 4


def test_the_first_screen_of_several_servers_has_whole_servers_and_the_words_of_all_others(invoke: Invoke):
    told = " ".join(invoke("mode=report", f"results.path=results/{SERVERS}").stdout.split())
    others = told.partition("its words: ")[2].partition(" measured")[0].split(" | ")
    names = {" · tp ".join(re.findall(r"=(\w+)", words)) for words in others}

    assert "SGLang 0.5.23: trtllm_mha (26.7% less time than default) 1.08× (1.53)" in told
    assert told.count("gpt_oss_120b · tp 1, ") == 12 and "gpt_oss_120b · tp 1" not in names
    assert names | {"gpt_oss_120b · tp 1"} == {
        f"{part.place[1]} · tp {part.place[2]}" for part in parts(open_views(RESULTS / SERVERS))
    }


def test_wrong_answers_at_caches_that_the_gpu_cannot_hold_are_counted(invoke: Invoke):
    asked = ("model=deepseek_v3", "tp=8", "device=h200", "where={kv_dtype: fp8_e4m3}")
    told = " ".join(invoke("mode=report", "question=one_backend", *asked).stdout.split())
    best = invoke("mode=report", "question=best", "format=markdown", *asked).stdout
    counted = "6 at caches that do not fit"

    assert f"9 mismatch mismatch (flash_mla_vllm): question=odd says why; {counted}" in told
    assert "was right at 12 of 14 workloads, wrong at 2 (keys" in told
    (line,) = re.findall(r"(?m)^.*flash_mla_vllm .* 65,?536 .*$", best.partition("wrong answers, not ranked")[2])
    assert line.split("|")[-2].strip() == "9"


def test_a_screen_that_has_no_room_for_all_notes_has_those_of_flags_to_type(invoke: Invoke):
    server = ("model=gpt_oss_120b", "tp=1", "device=h200", "engine=sglang:0.5.23")
    told = " ".join(invoke("mode=report", "question=one_backend", *server).stdout.split())

    assert re.search(r"scope of the answers; the first \d of 8", told) and "--decode-attention-backend trtllm_mha" in told
    assert "decode: trtllm_mha runs" in told.partition("scope of the answers")[2]


def test_a_screen_with_prices_of_flags_says_which_were_timed_in_another_release_s_build(invoke: Invoke):
    server = (
        "mode=report",
        "model=llama_3_1_70b",
        "tp=8",
        "device=h200",
        "where={kv_dtype: bf16}",
        path := f"results.path={RESULTS / SERVERS}_older_releases",
    )
    words = (
        "timed in sglang 0.5.12.post1's build: SGLang 0.5.23's fa3; in vllm 0.25.1's build: vLLM 0.33.0's FLASH_ATTN, TRITON_ATTN"
    )
    shown = [
        " ".join(invoke(*server, *more).stdout.split())
        for more in ([], ["question=one_backend"], ["question=engine_default"], ["question=best"], ["engine=vllm:0.25.1"])
    ]
    exported = invoke("export=vllm", *server[1:]).stdout

    assert [words in one for one in shown] == [True, True, True, False, False]
    assert "FLASH_ATTN runs flash_attn_3_vllm" in exported and "; timed in vllm 0.25.1's build; " in exported
    assert ["TRITON_ATTN (another kernel in 0." in one for one in shown] == [True] * 3 + [False] * 2
    advised = invoke("export=vllm", "model=gpt_oss_120b", "tp=1", "device=h200", path).stdout
    assert "TRITON_ATTN, ~21.7% less time than the default FLASH_ATTN, as vllm 0.25.1 runs it\n" in advised


@pytest.mark.parametrize(
    ("more", "ran"),
    [
        ([], "vllm_triton(triton_unified_2d) of vllm 0.32.0; 0.33.0 splits the keys"),
        (["results/h200_engines/beside_vllm_0_33_triton"], "vllm_triton(triton_unified_3d), seen on H200"),
    ],
)
def test_a_flag_says_if_its_time_is_of_a_release_that_ran_another_kernel(invoke: Invoke, more: list[str], ran: str):
    paths = ",".join(["results/h200_drafts/target_verify_all_candidates", *more])
    point = ("drafts=3", "engine=vllm:0.33.0", "where={model: llama_3_1_70b, kv_dtype: bf16, batch_size: 8, s_kv: 32768}")
    told = invoke("mode=report", f"results.path=[{paths}]", "question=one_backend", *point, "full=true", "format=markdown").stdout
    (line,) = [one for one in told.splitlines() if "--attention-backend TRITON_ATTN" in one]

    assert ran in line


# Of kinds of datasets the one with the longest answers, until each question has one.
OF_EACH_KIND = (
    *(
        "h200_main/servers",
        "h200_mla/mla_mtp_fp8",
        "h200_engines/host_time",
        "h200_engines/padded_graphs",
        "h200_engines/vllm_drafts",
    ),
    *("h200_studies/energy", "h200_releases/auto_routing", "h200_main/specdec_long_ctx_noise"),
)


def test_every_question_is_answered_on_one_screen(settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch):
    """Of 80 columns and 40 lines, with what to type for the rest. Each question has an answer in one of the datasets."""
    answered = set()
    for name in OF_EACH_KIND:
        asked_for = settings("mode=report", f"results.path=results/{name}")
        data = report.opened(asked_for, None)
        monkeypatch.setattr(report, "opened", lambda *_, data=data: data)
        for question in (None, *([] if report.quality.is_about_quality(data) else report.MODULES)):
            try:
                report.screen(Console(file=(file := io.StringIO()), width=80), asked_for, question)
            except UserError:
                continue
            answered.add(question)
            lines = file.getvalue().splitlines()
            most = screen.OF_TWO if question == "one_backend" else screen.LINES  # the flags of one server are not cut
            assert len(lines) <= most and max(map(len, lines)) <= screen.WIDTH, (name, question)
            assert "mode=dashboard" in file.getvalue() and "measured 20" in file.getvalue(), (name, question)
        monkeypatch.undo()

    assert answered == {None, *report.MODULES}


def test_each_answer_names_its_datasets_beside_its_figures(invoke: Invoke):
    """With drafts of one length another dataset may say most: here plain, with drafts=1, over both caches."""
    asked, dataset = ("mode=report", "device=h200", "engine=vllm", "model=gpt_oss_120b", "tp=1"), "of results/h200_"
    plain, drafts, fp8 = (
        " ".join(invoke(*asked, *more).stdout.split())
        for more in (("question=one_backend",), ("question=one_backend", "drafts=1"), ("question=fp8",))
    )

    assert f"geometric mean; ~ of times known within 5%; {dataset}main/servers gpt_oss_120b" in plain
    assert f"{dataset}drafts/target_verify_gpt_oss_rest gpt_oss_120b" in drafts and f"{dataset}main/servers" in fp8


def test_a_screen_has_what_rows_have_in_common_once_and_says_what_it_leaves_out():
    cells = [(f"llama · kv {kv}", "decode", f"{batch}", "a word") for kv in ("bf16", "fp8") for batch in range(50)]
    told = Grid("answers", ("deployment", "for", "batch", "so"), tuple(cells))
    brief.answer(Console(file=(file := io.StringIO()), width=80), asked(made("a", 10.0)), "DIR", "yes", [told, Grid("no", (), ())])
    lines = file.getvalue().splitlines()

    assert lines[1:5] == [
        "yes",
        "answers · llama · for decode · so a word; the first 33 of 100",
        "deployment  batch",
        "kv bf16     0",
    ]
    assert len(lines) == 40 and "not shown: 67 lines of 1 table: full=true" in " ".join(lines)


def test_a_screen_shows_models_that_have_a_name_first():
    grids = [Grid(f"fastest · {model} · tp 1", ("batch", "µs"), (("1", "2"),)) for model in ("custom", "llama")]
    brief.answer(Console(file=(file := io.StringIO()), width=80), asked(made("a", 10.0)), "DIR", "", grids)

    assert re.findall(r"fastest · (\w+)", file.getvalue()) == ["llama", "custom"]


@pytest.mark.parametrize("width", [30, 60, 90])
def test_a_table_of_a_screen_leaves_out_columns_and_cuts_none(width: int):
    whole = Grid("t", ("one", "two", "three"), (("trtllm-native", "--attention-backend FLASHINFER", "8,192"), ("b", "c", "d")))
    shown = tables_of_text.fitted(whole, width)
    lines = tables_of_text.lines_of(shown, width)

    assert shown.header == (("one", "three") if width == 30 else whole.header) and max(map(len, lines)) <= width
    assert shown.title == ("t; columns with full=true: two" if width == 30 else "t")
    assert {word for line in (shown.header, *shown.cells) for cell in line for word in cell.split()} == set(" ".join(lines).split())


def test_a_narrow_table_of_an_engine_keeps_the_errors_that_its_title_names_and_tells_its_starts_apart(invoke: Invoke):
    where = "where={engine_version: 0.5.12.post1, batch_size: 8, s_kv: 32768, flag: [triton, fa3]}"
    paths = ["main/specdec_all_candidates", "engines/beside_sglang", "engines/second_starts", "engines/sglang"]
    given = f"results.path=[{','.join(f'results/h200_{path}.parquet' for path in paths)}]"
    told = invoke("mode=report", "question=in_engine", "model=llama_3_1_70b", "tp=1", given, where).stdout
    flags, points = (re.split(r"\n(?=\w+ )", table) for table in re.split("error of attention|attention in a layer", told)[-2:])

    assert "cache bf16" in flags[0] and "columns with full=true: kernels\n  that ran" in flags[0]
    assert [line.split() for line in flags[2:4]] == [
        ["fa3", "paged_decode/flash_attn_3_sglang", "-2.0%", "2.6%", "7.0", "34%"],
        ["triton", "paged_decode/sglang_triton", "-0.3%", "0.7%", "3.0", "47%"],
    ]
    assert [line.split()[:6] for line in points[2:4]] == [
        ["fa3", "1", "253.6", "253.5", "246.5", "-2.8%"],
        ["fa3", "2", "253.6", "253.5", "250.6", "-1.2%"],
    ]


def test_a_narrow_table_of_fp8_keeps_a_context_that_most_rows_have_and_names_the_others(invoke: Invoke):
    told = invoke(
        "mode=report", "question=fp8", "model=qwen3_235b_a22b", "tp=4", f"results.path={RESULTS}/h200_main/servers"
    ).stdout

    assert "columns with full=true: s_kv 2,048, s_kv 32,768; the first" in " ".join(told.split())
    header, *lines = told.partition("s_qo  batch  queries")[2].splitlines()
    assert header.strip() == "s_kv 8,192" and lines[0].split()[:5] == ["1", "1", "16-bit", "queries", "0.69"]


def test_a_kernel_without_a_context_has_one_column_whatever_the_length():
    """Its `s_kv` is its `s_qo`: as of a prompt without a cache before it."""
    rows = [made("a", 10.0 * s_qo, s_qo=s_qo, s_kv=s_qo) for s_qo in (1, 4)]
    (grid,) = best_grids(asked(*rows))

    assert grid.header == ("s_qo", "batch", "s_kv = s_qo")
    assert grid.cells == (("1", "8", "a 10.0 unchecked"), ("4", "8", "a 40.0 unchecked"))


def test_a_narrow_table_keeps_keys_and_measures_before_what_keys_determine_and_what_most_rows_lack():
    header = ("kernel", "q", "points", "called", "err", "share")
    cells = [(f"k{row}", f"q{row % 2}", "1,200", f"a_long_name_{row}", "" if row else "1%", "-2.5%") for row in range(4)]

    for width, left_out in ((60, ()), (44, ("err",)), (40, ("called",)), (20, ("points", "called", "err"))):
        shown = tables_of_text.fitted(Grid("t", header, tuple(cells)), width)
        assert shown.header == tuple(name for name in header if name not in left_out), width
        assert shown.title == (f"t; columns with full=true: {', '.join(left_out)}" if left_out else "t")


def test_auto_does_not_compete_with_the_kernel_it_chose():
    rows = [made("auto", 9.9), made("fa2_tc", 10.0), made("xqa", 11.0)]
    for row, kernel in zip(rows, ("fa2_tc", "fa2_tc", "xqa"), strict=True):
        row["resolved_backend"] = kernel
    (grid,) = best_grids(asked(*rows))
    assert grid.cells == (("1", "8", "fa2_tc 10.0 (+10%) unchecked"),)

    rows[0]["resolved_backend"] = "fa3"
    (grid,) = best_grids(asked(*rows))
    assert grid.cells == (("1", "8", "auto(fa3) 9.9 (≈1.0%) unchecked"),)


def test_different_problems_never_compete_and_what_varies_names_its_table():
    rows = [made("a", 10.0, page_size=16), made("b", 20.0, page_size=64), made("c", 30.0, page_size=64)]
    for row, suffix in zip(rows, "abc", strict=True):
        row["point_id"] += suffix
    small, large = best_grids(asked(*rows))

    assert (small.cells, large.cells) == ((("1", "8", "a 10.0 unchecked"),), (("1", "8", "b 20.0 (+50%) unchecked"),))
    assert "page_size 16" in small.title and "page_size 64" in large.title


@pytest.mark.parametrize(
    ("other", "cells"), [("paged_prefill", ["a 10.0 (+10%) unchecked"]), ("cascade", ["a 10.0 unchecked", "b 11.0 unchecked"])]
)
def test_both_routines_that_take_a_draft_are_ranked_together(other: str, cells: list[str]):
    found = best_grids(asked(made("a", 10.0, routine="paged_decode"), made("b", 11.0, routine=other)))

    assert sorted(grid.cells[0][-1] for grid in found) == cells
    assert sum("routine" in grid.title for grid in found) == (2 if other == "cascade" else 0)


def test_the_main_table_comes_first_then_every_other_question_in_a_line():
    rows = [made("a", 10.0, page_size=size) for size in (1, 16, 32, 64)] + [made("auto", 30.0, page_size=1)]
    for i, row in enumerate(rows):
        row["point_id"] = str(i)
    *main, short, how, statuses = report.grids(asked(*rows))

    assert len(main) == 4 and all(grid.title.startswith("fastest backend") for grid in main)
    assert [("ahead of the next" in grid.title) for grid in main] == [True, False, False, False]  # a legend once
    assert "3.00 times" in dict(short.cells)["regret"]
    assert how.title.startswith("how times were taken")
    assert statuses.cells == (("ok", "5", ""),)


def test_a_shortened_table_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch):
    rows = [made("a", 10.0, s_kv=kv) for kv in (1, 2, 3)]
    for module in (report, tables):
        monkeypatch.setattr(module, "MAX_SHOWN", 2)
    main, left_out, _how = report.grids(asked(*rows), "best")

    assert main.header == ("s_qo", "batch", "s_kv 1", "s_kv 2")
    assert left_out.title == "not all is shown" and left_out.cells[0][:2] == ("3", "the first 2")
    assert len(report.grids(asked(*rows[:2]), "best")) == 2


def test_a_question_is_answered_in_full_and_alone():
    *grids, how = report.grids(asked(made("auto", 30.0), made("a", 10.0)), "regret")

    assert how.title.startswith("how times were taken")
    assert [grid.title for grid in grids] == ["regret of auto: its time over the best backend's", "where auto costs most"]


def test_statuses_are_counted_by_reason_without_estimates():
    rows = [
        made("a", 10.0),
        made("b", None, "unsupported", "needs SM100"),
        made("c", None, "unsupported", "needs SM100"),
        made("d", None, "skipped", "too slow: about 31 s"),
        made("e", None, "skipped", "too slow: about 77 s"),
    ]

    assert status_grid(asked(*rows)).cells == (("ok", "1", ""), ("unsupported", "2", "needs SM100"), ("skipped", "2", "too slow"))


def test_points_where_a_stale_answer_would_not_show_are_counted():
    rows = [made(name, 10.0, check_stale_covered=covered) for name, covered in (("a", 1.0), ("b", 0.5), ("c", 0.0), ("d", None))]

    assert [cells[1:] for cells in status_grid(asked(*rows)).cells] == [("4", ""), ("2", STALE_UNSEEN)]


def test_nothing_but_failures_still_makes_a_report():
    rows = asked(made("a", None, "failed", "boom | bang"))

    assert best_grids(rows) == []
    assert "| failed | 1 | boom \\| bang |" in markdown([status_grid(rows)])


def test_a_key_that_follows_from_another_is_no_label():
    rows = [made("a", 10.0, q_dtype=q, out_dtype=q, num_qo_heads=h, num_kv_heads=h) for q in ("bf16", "fp16") for h in (8, 64)]
    titles = [grid.title for grid in best_grids(asked(*({**row, "point_id": str(i)} for i, row in enumerate(rows))))]

    assert len(titles) == 4
    assert all("num_qo_heads" in title and "num_kv_heads" not in title and "out_dtype" not in title for title in titles)


SQL = "SELECT problems.*, reference_backend, reference_us FROM ranked JOIN problems USING (problem) WHERE reference_us IS NOT NULL"
MODULE = """
from orchestrator.tables import Grid

NEEDS = "torch_sdpa"


def grids(data):
    lines = data.execute("SELECT reference_backend, reference_us FROM reference_time")
    return [Grid("references", ("backend", "us"), tuple((name, f"{us:g}") for name, us in lines))]


def summary(data):
    return f"{data.scalar('SELECT count(*) FROM reference_time')} problems have a reference"
"""


def test_a_new_question_is_one_query_one_module_and_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "reference_time.sql").write_text(SQL)
    (tmp_path / "reference_time.py").write_text(MODULE)
    monkeypatch.setattr(questions, "__path__", [*questions.__path__, str(tmp_path)])
    monkeypatch.setattr(questions, "VIEWS", questions.find_views())
    monkeypatch.setitem(report.MODULES, "reference_time", import_module(f"{questions.__name__}.reference_time"))
    data = asked(made("a", 10.0), made("torch_sdpa", 99.0))
    (*_, short, _, _) = report.grids(data)

    assert report.grids(data, "reference_time")[0].cells == (("torch_sdpa", "99"),)
    assert dict(short.cells)["reference_time"] == "1 problems have a reference"


def test_every_question_says_what_it_needs_and_every_view_comes_after_those_that_it_reads():
    assert set(report.NEEDS) == set(get_args(Question)) - {"columns"}
    for place, view in enumerate(questions.VIEWS):
        later = "|".join(questions.VIEWS[place + 1 :])
        assert not later or not re.search(rf"\b(?:FROM|JOIN) (?:{later})\b", questions.query_text(view)), view


@pytest.mark.parametrize(("width", "is_table"), [(200, True), (80, True), (50, False)])
def test_a_flag_is_never_cut_however_narrow_the_terminal(width: int, is_table: bool):
    flag = "-ac.use_trtllm_attention=false"
    cells = (
        "llama_3_1_70b · 8 query heads (tp 8)",
        "decode",
        f"FLASHINFER: -ac.backend=FLASHINFER {flag} is equal",
        "fa2_tc, seen on H200",
    )
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    draw(console, [Grid("flags", ("deployment", "for", "type", "runs"), (cells, cells))])
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert sum(flag in line for line in lines) == 2 and max(map(len, lines)) <= width
    assert ("┏" in lines[1]) == is_table


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_word_beside_a_long_cell_is_never_cut(width: int):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    draw(console, [Grid("notes", ("what", "type"), (("a long sentence " * 20, "draft.layers"),))])
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert any("draft.layers" in line for line in lines) and max(map(len, lines)) <= width


def test_a_table_with_more_columns_than_a_terminal_has_room_for_has_a_line_for_each_cell():
    """Twelve columns in 80 letters would cut `default` into two lines."""
    header = tuple(f"column {name}" for name in "abcdefghijkl")
    wide, narrow = (Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None) for _ in range(2))
    draw(wide, [Grid("wide", header, (("default",) * 12,) * 2)])
    draw(narrow, [Grid("narrow", header[:5], (("default",) * 5,))])
    told, boxed = (console.file.getvalue() for console in (wide, narrow))  # type: ignore[attr-defined]

    assert told.splitlines()[1:4] == [f"{name}: default" for name in header[:3]] and "│" not in told
    assert "│ default" in boxed


def test_an_engine_that_answers_by_kinds_of_layers_has_no_line_of_backends_beside_it(invoke: Invoke):
    found = " ".join(invoke("mode=report", "model=gemma_3_27b", "tp=1", "device=h200", "engine=vllm").stdout.split())

    assert "decode, full layers: vLLM" in found and "decode, sliding layers: vLLM" in found
    assert "cache, decode: " not in found
