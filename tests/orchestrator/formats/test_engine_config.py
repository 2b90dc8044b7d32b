"""`export=vllm` and `export=sglang`: the answers of question=one_backend as lines to type, and no line where rows support none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ROOT
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.questions.deployments import parts
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import Engine, selected
from orchestrator.errors import UserError
from orchestrator.formats.engine_config import BatchDrafts, best_drafts, config_text, ranges, steps_of
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import MAIN
from tests.helpers.timed_rows import made, views_of

(VLLM,), (SGLANG,) = selected("vllm"), selected("sglang")
STEP = Draft(layers=10, rest_us=1000, cost_us=10)
PRESET = Draft(rest="preset", acceptance=0.7, cost_us=400)
FLASHINFER = "--attention-backend FLASHINFER"


def row(backend: str, us: float | None, status: str = "ok", **keys: Any) -> Row:
    given = {"routine": "paged_decode", "mask": "causal", "compute_capability": "9.0", "rel_err": 0.001, "page_size": 64, **keys}
    found = made(backend, us, status, **given)
    return {**found, "point_id": "-".join(str(found.get(key)) for key in ("point_id", "routine", "kv_dtype", "q_dtype", "window"))}


def text(engine: Engine, *rows: Row, draft: Draft | None = None) -> str:
    data = views_of(to_table(rows), draft or Draft(), engines=[engine])
    return config_text(data, engine, draft or Draft(), "results/mine")


def flags(printed: str) -> list[str]:
    """The lines that are no comment, which a shell takes for one."""
    found = [line for line in printed.splitlines() if line and not line.startswith("#")]
    assert all(line.endswith(" \\") for line in found[:-1]) and not "".join(found[-1:]).endswith("\\")
    return [line.removesuffix(" \\") for line in found]


def of_main(draft: Draft, **where: Any) -> Dataset:
    return open_views(MAIN, draft, where=where, engines=[VLLM])


OURS = [row("flash_attn_3", 100.0), row("trtllm-native", 60.0)]


def test_a_flag_comes_with_what_it_saves_and_on_what_evidence():
    printed = text(VLLM, *OURS, row("flash_attn_3", 100.0, batch_size=1), row("trtllm-native", 60.0, batch_size=1))

    assert flags(printed) == [FLASHINFER, "--block-size 64"]
    assert "# decode: FLASHINFER, 40.0% less time than the default FLASH_ATTN" in printed
    assert "geometric mean of 2 workloads: by more than noise faster at 2, slower at 0, too close to tell at 0; 0.60" in printed
    assert "medians 60.0 to 60.0 against 100.0 to 100.0 µs; largest error 0.1% against 0.1%" in printed
    assert "FLASHINFER runs trtllm-native, seen on H200: kernel_mha of llama_3_1_70b in results/h200_engines/vllm_0_33" in printed
    assert "; holds for vLLM 0.25.1 (seen), 0.32.0, 0.33.0 (seen)\n" in printed


def test_a_time_that_is_another_backend_s_is_said():
    printed = text(VLLM, OURS[0], row("trtllm-native", 60.0, measured_as="xqa"))

    assert "; FLASHINFER measured as xqa, which makes the same call)" in printed


def test_decode_and_drafts_are_answered_apart_and_sglang_gets_what_makes_drafts_run_it():
    drafts = [row("flash_attn_3_unplanned", 100.0, s_qo=4), row("trtllm-native", 60.0, s_qo=4)]

    assert flags(text(SGLANG, *OURS)) == ["--decode-attention-backend trtllm_mha"]
    assert flags(text(SGLANG, *drafts)) == [
        "--prefill-attention-backend fa3 --decode-attention-backend trtllm_mha --speculative-attention-mode decode"
    ]


def test_flags_of_one_server_can_be_pasted_and_those_of_the_other_are_comments():
    """Without a table of drafts decode's; with one, which makes the server draft, those of drafts."""
    rows = [*OURS, row("flash_attn_3", 60.0, s_qo=4), row("trtllm-native", 100.0, s_qo=4)]
    decode, drafts = text(VLLM, *rows), text(VLLM, *rows, draft=STEP)

    assert flags(decode) == [FLASHINFER, "--block-size 64"]
    other = "#   a server that runs {} takes, in place of the other flags, these:\n# {}"
    assert other.format("drafts of 3", "--block-size 64\n") in decode
    assert flags(drafts)[0] == "--block-size 64" and "--speculative-config" in flags(drafts)[1]
    assert other.format("decode", f"{FLASHINFER} \\\n# --block-size 64\n") in drafts
    as_own = [{**one, "page_size": 16} for one in rows[2:]]
    assert "a server that runs drafts of 3 takes, in place of the other flags, none\n" in text(VLLM, *OURS, *as_own)


def test_the_page_size_that_was_measured_is_typed_if_the_engine_takes_another():
    rows = [row("flash_attn_3", 100.0, page_size=16), row("trtllm-native", 60.0, page_size=16)]
    printed = text(SGLANG, *rows)

    assert flags(printed) == ["--decode-attention-backend trtllm_mha", "--page-size 16"]
    assert "measured with pages of 16 tokens, the engine's default is 64 ('sweep.page_size=[16, 64]' measures what pages" in printed


@pytest.mark.parametrize(
    ("engine", "s_qo", "own", "typed"),
    [
        (VLLM, 1, 16, "--block-size 64"),
        (VLLM, 4, 16, "--block-size 64"),
        (SGLANG, 1, 1, "--page-size 64"),
        (SGLANG, 4, 1, "--attention-backend fa3 --page-size 64"),  # with drafts a page size that is typed makes another the default
    ],
)
def test_the_page_size_of_a_default_is_typed_too(engine: Engine, s_qo: int, own: int, typed: str):
    backends = [("flash_attn_3_unplanned" if engine is SGLANG and s_qo > 1 else "flash_attn_3", 60.0), ("trtllm-native", 100.0)]
    rows, as_own = ([row(name, us, s_qo=s_qo, page_size=size) for name, us in backends] for size in (64, own))
    printed = text(engine, *rows)

    assert flags(printed) == [typed] and "nothing to type" not in printed
    default = f"{'fa3' if engine is SGLANG else 'FLASH_ATTN'} is the default{f' at pages of {own}' * ('fa3' in typed)}; "
    assert f": {typed}: {default}" in printed and f"; pages of {own} not measured" in printed
    assert f"measured with pages of 64 tokens, the engine's default is {own}" in printed
    assert flags(text(engine, *as_own)) == [] and text(engine, *as_own).startswith("# nothing to type: ")


def test_a_text_that_changes_nothing_says_so_in_its_first_line():
    printed = text(VLLM, row("flash_attn_3", 60.0, page_size=16), row("trtllm-native", 100.0, page_size=16))

    assert printed.splitlines()[0] == "# nothing to type: FLASH_ATTN is the default"
    assert "the next best, FLASHINFER, takes 66.7% more time" in printed and flags(printed) == []
    assert "#   FLASHINFER holds for vLLM 0.25.1 (seen), 0.32.0, 0.33.0 (seen)\n" in printed


@pytest.mark.parametrize(
    ("engine", "rows", "why"),
    [
        (VLLM, [row("trtllm-native", 60.0)], "no advice: the default FLASH_ATTN has no time (not measured at 1)"),
        (VLLM, [row("flash_attn_3", 60.0), row("cudnn", 30.0)], "no other flag has a time; FLASHINFER, "),
        (VLLM, [row("flash_attn_3", 100.0), row("trtllm-native", 99.0)], "FLASHINFER takes as long (-1.0%, noise 2.0%)"),
        (VLLM, [row("flash_attn_3", None, "failed"), OURS[1]], "the default FLASH_ATTN has no time (failed at 1)"),
        *(
            (VLLM, [OURS[0], row("trtllm-native", None, status)], f"FLASHINFER: {words}")
            for status, words in (("mismatch", "wrong at 1"), ("failed", "failed at 1"), ("timeout", "timeout at 1"))
        ),
        (VLLM, [row("fa2", 60.0, routine="mla", compute_capability="8.0")], "the default TRITON_MLA has no time"),
        (SGLANG, [row(name, 60.0, page_size=8) for name in ("flash_attn_3", "trtllm-native")], "trtllm_mha: not in the engine"),
    ],
)  # fmt: skip
def test_what_the_rows_do_not_support_is_said_and_gets_no_flag(engine: Engine, rows: list[Row], why: str):
    """But for the pages of the default."""
    printed = text(engine, *rows)

    assert why in printed and [line for line in flags(printed) if "-size " not in line] == []


def test_over_an_fp8_cache_each_flag_is_taken_with_the_queries_that_the_engine_gives_it():
    fp8 = {"kv_dtype": "fp8_e4m3"}
    rows = [row("flash_attn_3", 100.0, q_dtype="fp8_e4m3", **fp8), row("trtllm-native", 60.0, **fp8)]

    assert flags(text(VLLM, *rows)) == [FLASHINFER, "--block-size 64", "--kv-cache-dtype fp8_e4m3"]
    assert flags(text(SGLANG, *rows)) == ["--decode-attention-backend trtllm_mha", "--kv-cache-dtype fp8_e4m3"]


@pytest.mark.parametrize(
    ("engine", "rows", "flag"),
    [
        (VLLM, [row("flash_attn_3", 60.0, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3", page_size=16)], "fp8_e4m3"),
        (VLLM, [row("flash_mla_vllm", 60.0, routine="sparse_mla", kv_dtype="fp8_ds_mla")], "fp8_ds_mla"),
        (SGLANG, [row("flash_mla", 60.0, routine="sparse_mla", kv_dtype="fp8_ds_mla")], "fp8_e4m3"),
    ],
)
def test_over_an_fp8_cache_its_flag_is_typed_also_if_the_default_stays(engine: Engine, rows: list[Row], flag: str):
    printed = text(engine, *rows, *({**one, "s_qo": 4, "point_id": "drafts"} for one in rows))

    assert flags(printed) == [f"--kv-cache-dtype {flag}"] and printed.startswith(
        f"# if your cache is {rows[0]['kv_dtype']} (--kv-c"
    )
    assert printed.count(": nothing to type beside the cache: ") == 2
    assert f"a server that runs drafts of 3 takes, in place of the other flags, these:\n# --kv-cache-dtype {flag}\n" in printed


@pytest.mark.parametrize(("kept", "typed"), [(("bf16", "fp8_e4m3"), "bf16"), (("fp8_e4m3",), "fp8_e4m3")])
def test_of_parts_that_differ_in_the_cache_one_is_typed(kept: tuple[str, ...], typed: str):
    """The 16-bit one, unless the rows are of one cache alone, as `where={kv_dtype: ...}` chooses."""
    fp8 = [row("flash_attn_3", 100.0, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3"), row("trtllm-native", 60.0, kv_dtype="fp8_e4m3")]
    parts = text(VLLM, *(one for one in (*OURS, *fp8) if one["kv_dtype"] in kept)).split("\n\n")
    flag = {"bf16": "the default of engines", "fp8_e4m3": "--kv-cache-dtype fp8_e4m3"}

    assert [part.splitlines()[0] for part in parts] == [f"# if your cache is {kv} ({flag[kv]}):" for kv in kept]
    assert [flags(part)[:1] for part in parts] == [[FLASHINFER] if kv == typed else [] for kv in kept]
    assert all(f"{'' if kv == typed else '# '}{FLASHINFER} \\\n" in part for kv, part in zip(kept, parts, strict=True))


def test_the_second_form_of_a_flag_is_named_by_its_words():
    printed = text(VLLM, *OURS, row("fa2_tc", 90.0))

    assert "# decode: FLASHINFER, 40.0% less time" in printed and flags(printed)[0] == FLASHINFER
    assert "FLASHINFER without TRT-LLM: not measured at 1" in text(VLLM, *OURS)


def test_layers_with_a_window_have_a_flag_of_their_own_where_the_engine_has_one_for_each_kind():
    window = [row("flash_attn_3", 50.0, window=128), row("trtllm-native", 80.0, window=128)]
    printed = text(VLLM, *OURS, *window)

    assert flags(printed) == ["-ac.backend_per_kind.full_attention=FLASHINFER", "--block-size 64"]
    assert "# decode, full layers: FLASHINFER, 40.0% less time" in printed
    assert "# decode, sliding layers: --block-size 64: FLASH_ATTN is the default; " in printed
    assert "# decode: " in text(SGLANG, *OURS, *window)


def test_rows_without_a_workload_to_choose_for_are_refused():
    with pytest.raises(UserError, match="no row is of a GPU and a workload that a flag of it serves"):
        text(VLLM, row("torch_sdpa", 1.0, compute_capability=None))
    with pytest.raises(UserError, match=r"4 of 4 measured workloads do not count: their KV cache of 80 layers alone is larger"):
        config_text(of_main(Draft(), kv_dtype="bf16", s_qo=1, batch_size=64), VLLM, Draft(), "d")


def test_the_draft_table_is_the_best_length_of_each_batch_by_the_formula_of_the_report():
    """With 80% accepted, two drafts yield 2.44 tokens, so whole steps decide. At batch 8 attention is most of a step."""
    times = {(1, 1): 10.0, (1, 3): 11.0, (8, 1): 1000.0, (8, 3): 2900.0}
    printed = text(VLLM, *(row("flash_attn_3", us, batch_size=b, s_qo=q) for (b, q), us in times.items()), draft=STEP)
    *pages, line = flags(printed)

    assert {*pages} == {"--block-size 64"}
    assert json.loads(line.removeprefix("--speculative-config '")[:-1]) == {
        "num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[1, 2, 2], [3, 8, 0]],
    }  # fmt: skip
    gain = 2.44 / (10 * 11 + 1000 + 20) * (10 * 10 + 1000)
    assert f"batch 1: 2 drafted, {gain:.2f} times the tokens/s without drafts" in printed
    assert "the longest measured here: question=draft looks for longer ones" in printed


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            [row("flash_attn_3", 150.0, s_qo=4)],
            "no decode (s_qo 1) in this dataset; to measure: python -m orchestrator +sweep=specdec_long_ctx model=m ",
        ),
        (
            [*OURS[:1], row("flash_attn_3", 150.0, s_qo=4)],
            "it needs the time of a whole step; type draft.layers=N draft.rest_us=... draft.cost_us=...\n",
        ),
        ([*OURS[1:], row("trtllm-native", 150.0, s_qo=4)], "there is no advice for drafts"),
    ],
)
def test_why_there_is_no_draft_table_is_said(rows: list[Row], why: str):
    assert f"# no draft table: {why}" in text(VLLM, *rows)


@pytest.mark.parametrize(("tp", "dataset"), [(1, "specdec_long_ctx"), (8, "servers")])
def test_the_preset_is_offered_where_it_is_taken_and_else_keys_that_are(tp: int, dataset: str, invoke: Invoke):
    """What is offered is accepted when it is typed."""
    where = f"where={{model: llama_3_1_70b, tp: {tp}, kv_dtype: bf16, s_qo: [1, 4], batch_size: 8}}"
    words = ("export=vllm", f"results.path={MAIN.parent / dataset}", where)
    (why,) = (line for line in invoke(*words).stdout.splitlines() if "no draft table" in line)
    offers = why.partition("; type ")[2].replace("...", "400").split(", or ")

    assert ["preset" in offer for offer in offers] == ([True, False] if tp == 1 else [False])
    assert all("--speculative-config" in invoke(*words, *offer.split()).stdout for offer in offers)


def test_the_draft_table_stands_on_the_rest_of_a_step_that_the_question_takes():
    """With one backend alone, the question's best drafts are those of the table, and its steps take as long.

    At batch 32 the question knows the steps of one drafted token alone, and marks it as an edge: no choice for an engine.
    """
    data = of_main(PRESET, kv_dtype="bf16", backend="flash_attn_3")
    (part,) = (part for part in parts(data) if part.phase == "drafts" and part.who == VLLM.title)
    assert part.answer.choice is not None
    steps = steps_of(data, part, part.answer.choice)
    found = {(b.size, c): k for b in best_drafts(steps) for c, k in zip(b.contexts, b.by_context, strict=True)}
    every = data.records("SELECT batch_size, s_kv, drafted, best_s_qo, tokens_per_s FROM draft")
    asked = [r for r in every if (r["batch_size"], r["s_kv"]) in {(s["batch_size"], s["s_kv"]) for s in steps}]  # whose cache fits
    rates = {(s["batch_size"], s["s_kv"], s["s_qo"]): s["rate"] for s in steps}

    assert found == {(r["batch_size"], r["s_kv"]): r["drafted"] for r in asked if r["batch_size"] < 32}
    assert sorted({size for size, _ in found}) == [1, 8]
    assert all(r["tokens_per_s"] == pytest.approx(rates[r["batch_size"], r["s_kv"], r["best_s_qo"]]) for r in asked)
    assert {key for key, rate in rates.items() if rate is None} == {key for key in rates if key[0] * key[2] > 64}


def test_the_export_says_which_rest_it_stands_on_and_what_it_leaves_out():
    printed = config_text(of_main(PRESET, kv_dtype="bf16"), VLLM, PRESET, "d")
    table = json.loads(flags(printed)[-1].removeprefix("--speculative-config '")[:-1])
    only = config_text(of_main(PRESET, kv_dtype="bf16", batch_size=32), VLLM, PRESET, "d")

    assert table["num_speculative_tokens_per_batch_size"] == [[1, 8, 7]]
    assert (
        "80 layers of 455.9 to 510.1 µs each, for 1 to 64 query tokens in a batch, as measured in steps (draft.rest=preset; timing"
        in printed
    )
    assert "left out: batch 32 with 3, 7 drafted, and so the whole batch, since draft.rest=preset has no step" in printed
    assert "batch 32: 1 drafted" not in printed and "drafting itself is free" not in printed
    assert "no draft table: draft.rest=preset has no step with as many query tokens" in only and {*flags(only)} == {
        "--block-size 64"
    }


@pytest.mark.parametrize(
    ("best", "table"),
    [
        ({1: 3}, [[1, 1, 3]]),
        ({4: 3}, [[1, 4, 3]]),
        ({1: 3, 8: 3, 64: 0}, [[1, 22, 3], [23, 64, 0]]),
        ({1: 1, 2: 2, 3: 3}, [[1, 1, 1], [2, 2, 2], [3, 3, 3]]),
    ],
)
def test_the_table_starts_at_batch_1_and_leaves_no_gap(best: dict[int, int], table: list[list[int]]):
    assert ranges([BatchDrafts(size, drafts, 1, (1,), (drafts,), (0, drafts)) for size, drafts in best.items()]) == table


def test_a_tie_of_draft_lengths_takes_the_shorter():
    steps = [{"batch_size": 4, "s_qo": q, "s_kv": 100, "alike": 0, "rate": 1.0, "rough": False} for q in (1, 2)]

    assert [batch.drafts for batch in best_drafts(steps)] == [0]


def test_the_docs_show_what_a_committed_dataset_prints(invoke: Invoke, tmp_path: Path):
    file = tmp_path / "flags"
    done = invoke(f"export=sglang:{file}", f"results.path={MAIN.relative_to(ROOT)}", "where={kv_dtype: fp8_e4m3, s_qo: 1}")

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert flags(file.read_text())[0] == "--decode-attention-backend trtllm_mha"


def test_an_export_that_is_weighed_by_traffic_warns_of_what_is_near_no_workload(invoke: Invoke, tmp_path: Path):
    (far := tmp_path / "far.csv").write_text("share,batch,context\n50%,8,8192\n50%,8,200000\n")
    told = invoke("export=vllm", "model=llama_3_1_70b", "tp=8", "device=h200", "drafts=0", f"traffic={far}").stdout

    assert told.startswith(f"# weighed by traffic={far}\n# warning: no measured workload is near this part of your traffic")
    assert "sweep.s_kv=[200000]" in told.partition("\n\n")[0]


def test_a_flag_whose_kernel_has_its_own_pages_is_priced_with_these_and_types_none():
    """SGLang's flashinfer calls with pages of 1: a row with the engine's pages of 64 is no price of it."""
    fa3, other, own = row("flash_attn_3", 60.0, page_size=64), row("fa2_tc", 30.0, page_size=64), row("fa2_tc", 50.0, page_size=1)

    assert flags(text(SGLANG, fa3, other)) == ["--page-size 64"]
    assert flags(text(SGLANG, fa3, other, own)) == ["--decode-attention-backend flashinfer"]
