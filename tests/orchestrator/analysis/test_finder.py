"""The dataset that answers for a deployment is found by what the user has; a release of an engine is one file."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator import ROOT
from orchestrator.analysis import finder
from orchestrator.analysis.names import libraries_of
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.questions.deployments import deployment_titles
from orchestrator.analysis.sql import LentRows
from orchestrator.config.engine import selected
from orchestrator.config.model import Model, layers_of, shipped, weights_on_gpu
from orchestrator.config.ranges import Bounds
from orchestrator.errors import NoRows, UserError
from orchestrator.machines import known_devices
from orchestrator.reporting.report import MODULES
from orchestrator.reporting.screen import LINES
from orchestrator.storage.row import to_table
from tests.helpers.command_line import Invoke
from tests.helpers.timed_rows import made

H200 = ("NVIDIA H200",)
LLAMA = {"model": ("llama_3_1_70b",), "device_name": H200}
SERVERS_AND_PAGES = "results/h200_main/servers,results/h200_main/servers_pages"
TOKENS = "results/h200_main/servers_tokens"
SGLANG_AND_BESIDE = "results.path=[results/h200_engines/sglang_0_5_23,results/h200_engines/beside_sglang_0_5_23]"


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("wanted", "engine", "drafts", "found"),
    [
        ({**LLAMA, "tp": (8,)}, "vllm", 3, SERVERS_AND_PAGES),
        ({**LLAMA, "tp": (2,)}, "vllm", 3, "results/h200_main/servers_more.parquet"),
        (
            {**LLAMA, "tp": (2,)},
            "vllm:0.25.1",
            3,
            "results/h200_main/servers_more,results/h200_main/servers_more_older_releases",
        ),
        ({**LLAMA, "tp": (1,), "kv_dtype": ("fp8_e4m3",)}, "sglang", 3, f"{SERVERS_AND_PAGES},{TOKENS}"),
        (
            {"model": ("deepseek_v3_2",), "device_name": H200, "tp": (8,)},
            "vllm",
            3,
            "results/h200_mla/sparse_and_dense.parquet",
        ),
        (
            {"model": ("deepseek_v3",), "device_name": H200, "tp": (8,), "kv_dtype": ("fp8_e4m3",)},
            "vllm",
            None,
            "results/h200_mla/mla_mtp_fp8,results/h200_mla/mla_sglang_fp8",
        ),
        ({"model": ("gpt_oss_120b",), "device_name": H200}, "vllm", 15, "results/h200_drafts/target_verify_gpt_oss_rest.parquet"),
    ],
)
def test_the_dataset_that_says_most_is_taken(wanted: finder.Wanted, engine: str, drafts: int | None, found: str):
    assert finder.find(wanted, selected(engine), drafts) == (found, wanted)


def test_a_draft_is_asked_of_rows_that_have_steps_without_one():
    """More draft lengths have no gain without them, and other names with the model's heads have one kind of its layers."""
    path, _ = finder.find({"model": ("gpt_oss_120b",), "device_name": H200, "tp": (1,)}, selected("vllm"), None, question="draft")

    assert path == "results/h200_main/servers.parquet"


@pytest.mark.parametrize(("engine", "build"), [("vllm", "vllm 0.33.0"), ("vllm:0.25.1", "vllm 0.25.1")])
def test_rows_of_the_asked_release_win_whichever_are_newer(engine: str, build: str):
    asked = {"model": ("gpt_oss_120b",), "device_name": H200}
    found = {}
    for tp in (1, 4):
        path, where = finder.find({**asked, "tp": (tp,)}, selected(engine), 3)
        data = open_views(path, where=where, engines=selected(engine), drafts=3)
        found[tp] = data.execute("SELECT DISTINCT libraries FROM current WHERE backend = 'vllm_triton' AND status <> 'unsupported'")

    assert {words.partition(",")[0] for of in found.values() for (words,) in of} == {build}


@pytest.mark.parametrize(
    ("engine", "tp", "question", "found"),
    [
        *(("sglang", 8, question, f"{SERVERS_AND_PAGES},{TOKENS}") for question in (None, "one_backend", "engine_default")),
        ("sglang", 8, "best", "results/h200_main/servers.parquet"),
        # More workloads were measured with older builds.
        ("sglang", 1, None, f"{SERVERS_AND_PAGES},{TOKENS}"),
        ("vllm", 1, None, "results/h200_main/servers,results/h200_engines/flex_attention,results/h200_main/servers_pages"),
    ],
)
def test_flags_and_pages_of_the_same_releases_and_workloads_are_read_beside_the_first_dataset(
    engine: str, tp: int, question: str | None, found: str
):
    assert finder.find({**LLAMA, "tp": (tp,)}, selected(engine), None, question=question)[0] == found


@pytest.mark.parametrize("question", ["crossover", "draft", "energy", "fp8", "padding", "q_len", "regret", "step"])
def test_a_question_is_put_to_a_dataset_that_answers_it(question: str):
    model = "deepseek_v3" if question == "fp8" else "llama_3_1_70b"
    path, wanted = finder.find({"model": (model,), "device_name": H200}, selected(), None, question=question)

    assert any(grid.cells for grid in MODULES[question].grids(open_views(path, where=wanted)))


def test_an_fp8_cache_is_judged_by_the_fastest_kernels_of_all_datasets_of_a_server_with_the_same_versions():
    """FLASHMLA's rows over FP8 and over bf16 lie in two files."""
    wanted = {"model": ("deepseek_v3",), "device_name": H200, "tp": (8,)}
    path, _ = finder.find(wanted, selected(), None, question="fp8")
    gains = (
        "SELECT s_qo, batch_size, s_kv, greatest(fp8_kv_gain, fp8_q_gain) FROM fp8 WHERE min_s_qo IS NULL AND softmax_scale IS NULL"
    )
    told, every = (
        {row[:3]: row[3] for row in open_views(one, where=wanted).execute(gains)} for one in (path, "results/h200_mla/mla_mtp*")
    )
    libraries = libraries_of(of for (of,) in open_views(path, where=wanted).execute("SELECT DISTINCT libraries FROM rows"))

    assert told == pytest.approx(every, rel=0.02) and min(told.values()) < 0.5 and max(told.values()) > 1.3
    assert len(libraries) == len({name.split(" ")[0] for name in libraries})


def test_rows_of_running_engines_are_found_with_the_isolated_ones_beside_them(invoke: Invoke):
    """As the command of the page, which names each dataset, has them."""
    (typed,) = set(re.findall(r"question=in_engine '(results\.path=.*?)'", (ROOT / "docs/report.md").read_text()))
    asked, kept = ("mode=report", "question=in_engine", "format=json"), "where={model: llama_3_1_70b}"
    found, named = invoke(*asked, "model=llama_3_1_70b"), invoke(*asked, typed, kept)
    points = [[(row["flag"], row["why_not"], row["predicted_us"]) for row in json.loads(done.stdout)] for done in (found, named)]

    assert "datasets, which have rows of running engines, and isolated ones beside them" in found.stderr
    assert len(points[0]) > 270 and sorted(points[0], key=str) == sorted(points[1], key=str)


@pytest.mark.parametrize(
    ("typed", "releases"),
    [
        (["model=llama_3_1_70b", "engine=sglang"], {"0.5.12.post1", "0.5.23"}),
        (["model=llama_3_1_70b", "engine=vllm_0_33_0"], {"0.33.0"}),
        (["model=llama_3_1_70b", "where={engine_version: 0.5.23}"], {"0.5.23"}),
        ([SGLANG_AND_BESIDE, "where={engine_version: 0.5.23, flag: [fa3, triton]}"], {"0.5.23"}),
    ],
)
def test_what_is_asked_of_an_engine_leaves_the_isolated_rows_beside_it(typed: list[str], releases: set[str], invoke: Invoke):
    found = json.loads(invoke("mode=report", "question=in_engine", "format=json", *typed).stdout)

    assert {row["engine_version"] for row in found} == releases
    assert sum(row["error"] is not None for row in found) >= 6


@pytest.mark.parametrize("asked", ["export=sglang", "mode=report question=one_backend", "mode=report question=engine_default"])
def test_rows_that_no_flag_runs_do_not_hide_that_attention_was_not_measured(asked: str, invoke: Invoke):
    """At tp 8 of Qwen3-Next its gated delta nets alone were measured."""
    server = ("model=qwen3_next_80b_a3b", "tp=8", "device=h200")
    lacks, every = invoke(*asked.split(), *server), invoke("mode=report", *server)
    words = (
        r"not measured: tp=8\nnearest: qwen3_next_80b_a3b on NVIDIA H200 \(tp 1; drafts 0, 3; .*\nto measure: .* \+sweep=servers"
    )

    assert lacks.returncode == 2 and re.match(f"error: {words}", lacks.stderr), lacks.stderr
    assert re.search(f"note: attention is {words}", every.stderr) and "gdn_decode" in every.stdout


def test_a_model_that_was_measured_elsewhere_is_not_offered_in_its_own_place(invoke: Invoke):
    told = invoke("mode=report", "question=one_backend", "model=qwen3_next_80b_a3b", "tp=8", "device=h100").stderr

    assert "not measured: model=qwen3_next_80b_a3b\nnearest: qwen3_next_80b_a3b on NVIDIA H200 (tp 1; drafts 0, 3)\n" in told


def test_a_dataset_over_one_cache_says_what_to_type_for_the_other_where_the_default_was_wrong(invoke: Invoke):
    asked = ("export=vllm", "model=deepseek_v3", "tp=8", "device=h200")
    (typed,) = re.findall(r"these are over bf16; for the others type '(.*)'", invoke(*asked).stderr)

    assert (
        "nothing to type beside the cache, but FLASHMLA, the default, was right at 12 of 14 workloads"
        in invoke(*asked, typed).stdout
    )


@pytest.mark.parametrize(("model", "words"), [("llama_3_1_70b", "tp 1 and 4 and 8; for the others type tp=2"), ("qwen3_14b", "")])
def test_the_sizes_of_a_server_that_was_asked_for_without_one_are_named(model: str, words: str, invoke: Invoke):
    told = [invoke("mode=report", "question=fp8", f"model={model}", "device=h200", *more).stderr for more in ((), ("tp=1",))]

    assert [re.findall("these are of (tp .*)", one) for one in told] == [[words] * bool(words), []]


def test_other_datasets_and_the_flags_that_they_alone_have_are_named(invoke: Invoke):
    asked = ("mode=report", "question=one_backend", "model=deepseek_v3", "tp=8", "device=h200", "engine=vllm")
    told = invoke(*asked, "where={kv_dtype: fp8_e4m3}").stderr
    (others,) = re.findall(r"(?s)note: \d more have such rows; results\.path=DIR reads another:\n  (.*?), \.\.\.\n", told)

    assert all(Path(one).exists() for one in others.split(",\n  ")) and others.count(",") == 2
    both, triton = (
        "note: right rows of other flags and pages; to read them too:\n  'results.path=[{}]'\n",
        "results/h200_mla/triton_mla.parquet",
    )
    (read,) = re.findall("(?s)note: read (.*?), which together say most", told)
    every = f"{read},{triton}".replace(".parquet", "").replace(",\n  ", ",")
    assert f"{both.format(every)}  TRITON_MLA at other workloads in {triton}\n" in told
    pages = invoke("mode=report", "question=best", "model=llama_3_1_70b", "tp=8", "device=h200").stderr
    apart = ",\n".join(
        f"  {one} in results/h200_main/servers_pages.parquet" for one in ("FLASH_ATTN with pages of 16", "fa3 with pages of 1")
    )
    apart += f",\n  flashinfer with pages of 1 in {TOKENS}.parquet"
    assert f"{both.format(f'{SERVERS_AND_PAGES},{TOKENS}')}{apart}\n" in pages
    data = open_views("results/h200_mla/triton_mla.parquet", where={"model": "deepseek_v3", "tp": 8, "kv_dtype": "fp8_e4m3"})
    assert data.scalar("SELECT count(*) FROM current WHERE status = 'ok' AND backend = 'triton_mla'") > 0


def test_the_datasets_of_several_other_flags_are_named_in_a_word_that_can_be_pasted(invoke: Invoke):
    asked = ("mode=report", "question=one_backend", "model=llama_3_1_70b", "tp=1", "device=h200", "engine=sglang")
    told = invoke(*asked).stderr
    (typed,) = re.findall(r"to read them too:\n  '(results\.path=\[.*\])'", told)

    assert typed.count(",") >= 2 and (done := invoke(*asked, typed)).returncode == 0, done.stderr


def shape(model: str) -> Model:
    return Model.model_validate(shipped()[model])


@pytest.mark.parametrize(
    ("model", "tp", "found", "heads"),
    [
        ("llama_3_3_70b", 8, SERVERS_AND_PAGES, (8, 1, 128)),
        ("qwen3_30b_a3b", 1, "results/h200_main/servers_more.parquet", (32, 4, 128)),
    ],
)
def test_rows_of_another_name_with_the_heads_of_the_model_answer_for_it(model: str, tp: int, found: str, heads: tuple[int, ...]):
    alike = finder.same_heads(shape(model), tp, {"device_name": H200})
    path, wanted = finder.find({"model": (model,), "device_name": H200, "tp": (tp,)}, selected("vllm"), 0, alike)

    assert (path, tuple(wanted[key][0] for key in ("num_qo_heads", "num_kv_heads", "head_dim_qk"))) == (found, heads)
    assert "model" not in wanted and wanted["sinks"] == (False,)


@pytest.mark.parametrize(
    ("model", "tp", "layers", "rows_of"),
    [
        ("qwen3_32b", 4, 64, {"llama_3_1_70b"}),
        ("llama_3_1_405b", 16, 126, {"llama_3_1_70b", "qwen3_235b_a22b"}),
        ("kimi_k2", 8, 61, {"custom"}),
    ],
)
def test_rows_of_another_model_are_priced_with_the_layers_and_the_share_of_the_asked_one(
    model: str, tp: int, layers: int, rows_of: set[str]
):
    path, found = finder.find(
        {"model": (model,)}, selected("vllm"), None, finder.same_heads(shape(model), tp, {"device_name": H200})
    )
    data = open_views(path, where=found)

    names = {f"{model} (rows of {other}, same heads)" for other in rows_of}
    assert set(data.execute("SELECT DISTINCT model, tp FROM problems")) == {(name, tp) for name in names}
    assert set(data.execute("SELECT DISTINCT layers FROM cache_sizes")) == {(layers,)}
    assert {title.split(" query heads ")[1].split(" · ")[0] for title in deployment_titles(data).values()} == {f"(tp {tp})"}
    for name in names:
        assert (layers_of(name), weights_on_gpu(name, tp)) == (layers_of(model), weights_on_gpu(model, tp))
        assert finder.measuring(name, {}, {"tp": (tp,)}) == finder.measuring(model, {}, {"tp": (tp,)})


def test_a_report_and_an_export_name_the_asked_model_and_count_its_layers(invoke: Invoke):
    """64 layers of each workload's cache fit the GPU; 80, as the model whose rows they are has, do not."""
    asked = ("engine=sglang", "model=qwen3_32b", "tp=4", "device=h200", "drafts=3")
    report, export = invoke("mode=report", "question=one_backend", *asked), invoke("export=sglang", *asked[1:])

    assert [done.returncode for done in (report, export)] == [0, 0], report.stderr + export.stderr
    title = "qwen3_32b (rows of llama_3_1_70b, same heads) · 16 query heads (tp 4) · kv bf16"
    assert title in " ".join(map(str.strip, report.stdout.splitlines())) and f"# SGLang 0.5.23: {title}" in export.stdout
    assert " layers 64 " in report.stdout and "do not count" not in report.stdout + export.stdout


@pytest.mark.parametrize("asked", ["export=vllm", "mode=report question=one_backend"])
@pytest.mark.parametrize("where", [[], ["results.path=results/h200_main/servers"]])
def test_rows_with_the_heads_of_a_model_are_those_of_one_name_and_others_are_named(asked: str, where: list[str], invoke: Invoke):
    done = invoke(*asked.split(), "model=llama_3_3_70b", "tp=8", "device=h200", "drafts=3", *where)

    assert set(re.findall(r"\(rows\s+of\s+(\w+)", done.stdout)) == {"llama_3_1_70b"}
    assert done.stdout.count("if your cache is") == 2 * asked.startswith("export")
    note = "note: rows of llama_3_1_70b (tp 8) answer, with most workloads; these have the same heads: qwen3_235b_a22b (tp 8)"
    assert note in done.stderr


def test_rows_lent_by_names_that_were_measured_over_other_caches_or_drafts_stay(tmp_path: Path):
    """`few` has most workloads of the drafts alone, and the only ones over FP8."""
    sizes = [("many", 1, "bf16", (1, 2, 3)), ("few", 1, "bf16", (1,)), ("few", 4, "bf16", (1,)), ("few", 1, "fp8_e4m3", (1,))]
    named = [{"model": name, "s_qo": q, "kv_dtype": kv, "batch_size": b} for name, q, kv, of in sizes for b in of]
    rows = [{**made("fa2", 10.0, **keys), "context": "isolated", "point_id": f"{n}"} for n, keys in enumerate(named)]
    pq.write_table(to_table(rows), file := tmp_path / "data.parquet")
    found = {}
    for drafts in (None, 3):
        where = finder.of_one_model(str(file), LentRows("mine", 1, {"context": ("isolated",)}), drafts)
        names = open_views(file, where=where).execute("SELECT DISTINCT kv_dtype, model FROM rows ORDER BY ALL")
        found[drafts] = [(kv, re.findall("rows of (\\w+)", model)) for kv, model in names]

    assert found == {None: [("bf16", ["many"]), ("fp8_e4m3", ["few"])], 3: [("bf16", ["few"])]}


def test_rows_of_the_asked_name_keep_it_and_steps_of_another_model_say_nothing():
    servers = open_views("results/h200_main/servers.parquet", where=LentRows("llama_3_1_70b", 8, {"num_qo_heads": (8,)}))
    own, *lent = sorted(name for (name,) in servers.execute("SELECT DISTINCT model FROM rows"))
    assert own == "llama_3_1_70b" and lent and all(name.startswith("llama_3_1_70b (rows of ") for name in lent)

    with pytest.raises(NoRows):
        open_views("results/h200_studies/study_in_step", where=LentRows("qwen3_32b", 1, {"context": ("step",)}))


@pytest.mark.parametrize(
    ("model", "tp", "other"),
    [
        ("deepseek_v3_2", 8, {}),
        ("llama_3_1_70b", 3, {}),
        ("llama_3_1_70b", 8, {"soft_cap": 30.0}),
        ("gpt_oss_120b", 1, {"sinks": False}),
        ("gpt_oss_120b", 1, {"sliding_window": 64, "kinds": {"window": 36}}),
    ],
)
def test_rows_of_another_share_soft_cap_sink_window_or_sparsity_do_not(model: str, tp: int, other: dict[str, Any]):
    alike = finder.same_heads(shape(model).model_copy(update=other), tp, {"device_name": H200})
    with pytest.raises(NoRows):
        finder.find({"model": ("nobody",)}, selected("vllm"), None, alike)


def servers() -> list[tuple[str, str, str]]:
    """Model, device and tp of README's table, whose lines are models with the sizes of tp on each device."""
    (table,) = re.findall(r"<!-- servers -->\n(.*?)<!-- /servers -->", (ROOT / "README.md").read_text(), re.DOTALL)
    head, _, *lines = (line.strip("|").split("|") for line in table.splitlines() if line.startswith("|"))
    cells = ((line[0], words, cell) for line in lines for words, cell in zip(head, line, strict=True))
    sizes = ((model, words.partition("device=")[2], cell) for model, words, cell in cells if "device=" in words and cell != "–")
    return [(model.partition(",")[0], device, tp) for model, device, cell in sizes for tp in cell.replace("*", "").split(",")]


def test_every_server_of_the_readme_has_a_dataset():
    for model, device, tp in servers():
        assert finder.find({"model": (model,), "device_name": known_devices()[device].match, "tp": (int(tp),)}, selected(), None)
    assert len(servers()) > 15


def test_every_model_that_is_said_to_have_rows_of_its_heads_is_answered_by_them():
    served = finder.served_alike()
    for model, tp, device in served[::3]:
        alike = finder.same_heads(shape(model), tp, {"device_name": (device,)})
        assert "model" not in finder.find({"model": (model,), "tp": (tp,), "device_name": (device,)}, (), None, alike)[1]
    (more,) = re.findall(r"(\d+) more models have the same heads", (ROOT / "README.md").read_text())
    assert int(more) == len({model for model, *_ in served} - {model for model, *_ in servers()})


def test_a_server_is_answered_on_one_screen_of_its_own_rows(invoke: Invoke):
    model, device, tp = servers()[-1]
    done = invoke("mode=report", f"model={model}", f"device={device}", f"tp={tp}")
    first, second, *_ = lines = done.stdout.splitlines()

    assert done.returncode == 0, done.stderr
    assert first.startswith(f"{model} · NVIDIA {device.upper()} · ") and second.startswith(("what to type", "backends, no flag"))
    assert len(lines) <= LINES and "at length: question=" in done.stdout


MEASURE = "\nto measure: python -m orchestrator +sweep=servers model="


@pytest.mark.parametrize(
    ("wanted", "drafts", "words"),
    [
        (
            {**LLAMA, "tp": (3,)},
            None,
            [
                "not measured: tp=3\nnearest: llama_3_1_70b on NVIDIA H200 (tp 1, ",
                f"{MEASURE}llama_3_1_70b 'sweep.tp=[3]'",
            ],
        ),
        (
            LLAMA,
            40,
            ["not measured: drafts=40\nnearest: llama_3_1_70b on NVIDIA H200 (", f"{MEASURE}llama_3_1_70b 'sweep.s_qo=[41]'"],
        ),
        (
            {**LLAMA, "kv_dtype": ("fp8_e5m2",)},
            None,
            ["not measured: kv_dtype=fp8_e5m2\n", "'sweep.dtype=[{q: bf16, kv: fp8_e5m2}]'"],
        ),
        (
            {"model": ("mistral_small_4",), "device_name": ("NVIDIA B200",)},
            None,
            [
                "not measured: device=b200\nnearest: mistral_small_4 on NVIDIA H200",
                "\nto measure, on a machine with device=b200: python",
            ],
        ),
        (
            {**LLAMA, "device_name": ("NVIDIA B200",)},
            None,
            ["to measure, on a machine with device=b200: python -m orchestrator +sweep=specdec_long_ctx model=llama_3_1_70b"],
        ),
        (
            {"model": ("qwen3_next_80b_a3b",), "device_name": H200, "tp": (2,), "kv_dtype": ("fp32",)},
            None,
            [f"{MEASURE.replace('servers', 'gated_delta')}qwen3_next_80b_a3b 'sweep.tp=[2]'"],
        ),
        (
            {**LLAMA, "model": ("llama_3_3_70b",), "tp": (8,)},
            None,
            [
                "not measured: model=llama_3_3_70b; did you mean 'llama_3_1_70b'?",
                "\nnearest: llama_3_1_70b on",
            ],
        ),
        (
            {**LLAMA, "s_kv": (200_000,)},
            None,
            ["not measured: s_kv=200000\n", "; in its place type s_kv: 131072\n", "'sweep.s_kv=[200000]'"],
        ),
        (  # with the backends and the dtypes of queries that have right rows beside it, and nothing at another tp
            {"model": ("deepseek_v3",), "device_name": H200, "tp": (8,), "s_kv": (32768,), "kv_dtype": ("fp8_e4m3",)},
            None,
            [
                "+sweep=mla_mtp model=deepseek_v3 'sweep.tp=[8]' 'sweep.s_kv=[32768]' "
                "'sweep.dtype=[{q: bf16, kv: fp8_e4m3}, {q: fp8_e4m3, kv: fp8_e4m3}]' "
                "'sweep.backend=[auto, fa2, fa3, flash_attn_3_sglang, flash_mla_vllm]'",
            ],
        ),
        (  # drafts of 0 are measured, at other lengths
            {"model": ("deepseek_v3_2",), "device_name": H200, "tp": (8,), "s_kv": (8192,), "s_qo": (1,)},
            None,
            [
                "not measured: s_kv=8192\nnearest: deepseek_v3_2 on NVIDIA H200 (tp 8; drafts 0",
                "; in its place type s_kv: 4096 or s_kv: 32768 or s_kv: [4096, 32768]\n",
            ],
        ),
        (  # some of its layers have a window
            {"model": ("gpt_oss_120b",), "device_name": H200, "s_kv": (7777,)},
            None,
            ["+sweep=servers model=gpt_oss_120b 'sweep.s_kv=[7777]' 'sweep.window=[null, 128]'"],
        ),
        (
            {**LLAMA, "s_kv": (Bounds(3000, 4000),)},
            None,
            ["not measured: s_kv={from: 3000, to: 4000}\n", "type s_kv: 2048 or s_kv: 4096 or s_kv: [2048, 4096]\n"],
        ),
        (  # a chunk of a prompt is no draft
            {**LLAMA, "tp": (8,), "routine": ("paged_prefill",), "s_qo": (2048,), "s_kv": (16384,)},
            None,
            [
                "not measured: s_kv=16384, tp=8\n",
                "(tp 1; s_qo 2048",
                "'sweep.tp=[8]' 'sweep.s_qo=[2048]' 'sweep.s_kv=[16384]' 'sweep.routine=[paged_prefill]' 'sweep.backend=[",
            ],
        ),
        (  # nor does another model's decode say what measures its prompts
            {**LLAMA, "model": ("qwen3_235b_a22b",), "tp": (8,), "s_qo": (Bounds(65),)},
            None,
            [
                "model=qwen3_235b_a22b 'sweep.tp=[8]' 'sweep.s_qo=[512, 2048]' ",
                "flash_attn_3_vllm",
                "'sweep.routine=[paged_prefill]'",
            ],
        ),
        ({**LLAMA, "tp": (8,), "mask": ("mine",)}, 15, ["+sweep=xqa_specdec model=llama_3_1_70b 'sweep.tp=[8]' '+trees.mine="]),
        ({**LLAMA, "model": ("deepsek_v3",)}, None, ["not measured: model=deepsek_v3; did you mean 'deepseek_v3'?\n"]),
        ({**LLAMA, "model": ("none_of_it",)}, None, ["not measured: model=none_of_it\nnearest: ", " on NVIDIA H200"]),
        ({}, None, ["nothing says which deployment; type model=NAME device=NAME", "; there are: "]),
    ],
)
def test_without_one_the_answer_says_what_is_missing_what_is_near_and_what_measures_it(
    wanted: finder.Wanted, drafts: int | None, words: list[str]
):
    with pytest.raises(NoRows) as error:
        finder.find(wanted, selected(), drafts)

    assert [one for one in words if one not in str(error.value)] == []


@pytest.mark.parametrize(
    ("typed", "command", "nearest"),
    [
        (
            "question=one_backend model=gpt_oss_120b tp=1 device=h100 engine=vllm drafts=0",
            "+sweep=servers model=gpt_oss_120b 'sweep.tp=[1]' 'sweep.s_qo=[1]' 'sweep.window=[null, 128]'",
            "gpt_oss_120b on NVIDIA H200 (tp 1; drafts 0); gpt_oss_120b on NVIDIA H100",
        ),
        (
            "question=one_backend model=llama_3_1_70b tp=4 device=h100 engine=sglang drafts=0",
            "+sweep=servers model=llama_3_1_70b 'sweep.tp=[4]' 'sweep.s_qo=[1]'",
            "llama_3_1_70b on NVIDIA H200 (tp 4; drafts 0); llama_3_1_70b on NVIDIA H100",
        ),
        (  # lengths that the sweep leaves out by itself
            "model=gpt_oss_120b device=h100 drafts=0 where={batch_size:8,s_kv:2048}",
            "+sweep=servers model=gpt_oss_120b 'sweep.s_qo=[1]' 'sweep.batch_size=[8]' 'sweep.s_kv=[2048]' ",
            "gpt_oss_120b on NVIDIA H200 (",
        ),
        (
            "model=llama_3_1_70b device=h100 tp=4 where={s_kv:{from:3000,to:4000},kv_dtype:fp8_e4m3}",
            "'sweep.s_kv=[3000, 4000]' 'sweep.dtype=[{q: bf16, kv: fp8_e4m3}, {q: fp8_e4m3, kv: fp8_e4m3}]'",
            "",
        ),
    ],
)
def test_the_sweep_of_servers_measures_every_flag_of_one_and_its_other_card_is_the_nearest(
    typed: str, command: str, nearest: str, invoke: Invoke
):
    told = invoke("mode=report", *typed.split()).stderr
    _, _, *words = shlex.split(told.partition("python")[2].splitlines()[0].replace("-m", "python -m"))
    done = invoke("mode=plan", *words[1:], "device=h100", "full=true")
    kernels = re.findall(
        r"^│ (\S+) +│ (\d+) +│ (\d+)", done.stdout.partition("which backends run\n")[2].partition("why not")[0], re.M
    )

    assert f"\nnearest: {nearest}" in told and command in told and done.returncode == 0, done.stderr
    assert {"flash_attn_3_vllm", "vllm_triton", "flash_attn_3_sglang"} <= {name for name, runs, _ in kernels if int(runs)}
    assert sum(int(runs) + int(unsupported) for _, runs, unsupported in kernels) <= 210


@pytest.mark.parametrize("question", ["one_backend", "fp8"])
def test_a_batch_and_a_context_between_two_that_were_measured_name_both_and_each_answers(question: str, invoke: Invoke):
    server = ("mode=report", f"question={question}", "model=llama_3_1_70b", "tp=8", "device=h200")
    between = invoke(*server, "where={batch_size: 24, s_kv: 6000}")

    assert between.returncode == 2
    batches, contexts = "batch_size: 8 or batch_size: 32 or batch_size: [8, 32]", "s_kv: 2048 or s_kv: 8192 or s_kv: [2048, 8192]"
    assert f"in its place type {batches}; in its place type {contexts}\n" in between.stderr
    assert [invoke(*server, f"where={{batch_size: {batch}}}").returncode for batch in (8, 32)] == [0, 0]


@pytest.mark.parametrize(
    ("length", "values", "answers"),
    [
        ("s_kv: 4096", ["s_kv 2048", "s_kv 8192"], ["FLASHINFER without TRT-LLM", "FLASH_ATTN (default)"]),
        ("batch_size: 12", ["batch_size 8", "batch_size 32"], ["FLASH_ATTN (default)"]),
        ("s_kv: 900000", ["s_kv 131072"], ["FLASHINFER without TRT-LLM"]),
    ],
)
def test_a_length_that_was_not_measured_has_the_flags_of_its_neighbours_and_the_code_of_an_error(
    length: str, values: list[str], answers: list[str], invoke: Invoke
):
    """The flags are those of the answers for the neighbours; no time is told, since none was measured."""
    server = ("question=one_backend", "model=llama_3_1_70b", "tp=8", "device=h200", "engine=vllm")
    done = invoke(*server, f"where={{{length}, kv_dtype: bf16}}")
    (decode,) = (
        line for line in done.stderr.splitlines() if line.startswith("vLLM 0.33.0, decode, bf16 cache, llama_3_1_70b, tp 8")
    )
    told = decode.partition("NVIDIA H200: ")[2]
    each = [invoke(*server[1:], f"where={{{value.replace(' ', ': ')}, kv_dtype: bf16}}") for value in values]

    assert (done.returncode, done.stdout) == (2, "") and "µs" not in done.stderr
    same = f"the same flag, {answers[0]} at {' and at '.join(values)}"
    both = "; ".join(f"{answer} at {value}" for answer, value in zip(answers, values, strict=False))
    assert told == (same if len(answers) < len(values) else both)
    for answer, one in zip(answers * len(values), each, strict=False):
        assert f"decode: vLLM 0.33.0: {answer.removesuffix(')')}" in " ".join(one.stdout.split())
    assert "vLLM" not in invoke(*server[1:], f"where={{{length}}}").stderr


def test_two_lengths_that_were_not_measured_have_the_flags_of_each_pair_of_their_neighbours(invoke: Invoke):
    server = ("question=one_backend", "model=llama_3_3_70b", "tp=4", "device=h200", "engine=vllm")
    done = invoke(*server, "where={batch_size: 32, s_kv: 16384, kv_dtype: fp8_e4m3, s_qo: 1}")
    one = invoke(*server, "where={batch_size: 64, s_kv: 8192, kv_dtype: fp8_e4m3, s_qo: 1}").stdout

    assert done.returncode == 2 and "not measured: batch_size=32, s_kv=16384\n" in done.stderr
    told = done.stderr.partition("NVIDIA H200: ")[2]
    pairs = [f"batch_size {batch}, s_kv {context}" for batch in (8, 64) for context in (8192, 32768)]
    assert told.startswith("FLASHINFER at ") and all(pair in told for pair in pairs)
    assert "--attention-backend FLASHINFER" in one and pairs[2] in told.partition("; ")[0]


def test_what_measures_an_fp8_cache_of_an_engine_measures_both_caches(invoke: Invoke):
    server = ("question=fp8", "model=qwen3_32b", "tp=2", "device=h100")
    of_engine, of_all = (invoke(*server, *more) for more in (("engine=vllm",), ()))

    assert of_engine.returncode == of_all.returncode == 2 and of_engine.stderr == of_all.stderr
    assert "to measure: " in of_all.stderr and "sweep.dtype" not in of_all.stderr


def test_a_batch_at_which_a_flag_wins_half_of_the_workloads_is_named_and_keeps_the_default_if_asked_alone(invoke: Invoke):
    server = ("question=one_backend", "model=llama_3_1_70b", "tp=4", "device=h200", "engine=vllm")
    every, alone = (
        " ".join(invoke(*server, f"where={{kv_dtype: fp8_e4m3, s_qo: 1{of}}}").stdout.split()) for of in ("", ", batch_size: 8")
    )

    assert "batch 1, 512: −18.7% to −39.1%; 8, 64: partly; " in every
    assert "FLASH_ATTN is the" in alone and "FLASHINFER takes 3.7% less time" in alone
    assert "--attention-backend" not in alone and "at only 1 of 2 " in alone


@pytest.mark.parametrize("question", ["one_backend", "draft"])
def test_a_list_of_lengths_is_answered_by_a_dataset_that_has_all_and_what_no_row_has_is_named(question: str, invoke: Invoke):
    server = ("mode=report", f"question={question}", "model=llama_3_1_70b", "tp=8", "device=h200", "engine=vllm")
    both, more, one = (invoke(*server, f"where={{batch_size: {of}, s_kv: 32768}}") for of in ("[8, 32]", "[8, 16, 32]", "8"))

    assert " · batch 8–32, kv 32k\n" in both.stdout and " · batch 8, kv 32k\n" in one.stdout
    assert "no row of " not in both.stderr + one.stderr
    read = f"results/h200_main/specdec_tp8,{SERVERS_AND_PAGES}"
    assert f"note: no row of {read} has batch_size: [16]\n" in more.stderr


def test_longer_drafts_that_another_dataset_has_are_named_in_place_of_a_command(invoke: Invoke):
    asked = ("mode=report", "question=draft", "model=llama_3_1_70b", "device=h200", "engine=vllm")
    told = [" ".join(invoke(*asked, f"tp={tp}").stdout.split()) for tp in (8, 2)]

    assert "the longest known: a longer one may be better: 7 measured in results/h200_main/specdec_tp8.parquet · " in told[0]
    assert "the longest known: a longer one may be better; to measure: " in told[1]


def test_who_asks_about_prompts_is_told_where_they_are(invoke: Invoke):
    """At tp 8 only drafts were measured, which may run as prompts do."""
    server = ("mode=report", "question=one_backend", "model=llama_3_1_70b", "device=h200", "engine=vllm")
    drafts = invoke(*server, "tp=8", "where={routine: paged_prefill}").stderr
    (typed,) = re.findall(r"note: these are drafts that run as prompts do; for prompts type '(.*)'\n", drafts)
    none, one = invoke(*server, "tp=8", typed), invoke(*server, "tp=1", typed)

    assert none.stderr.startswith("error: not measured: tp=8\nnearest: llama_3_1_70b on NVIDIA H200 (tp 1; s_qo 448, 512, ")
    assert "; in results/h200_prefill/engine_prefill" in none.stderr and "+sweep=encoder" not in none.stderr
    assert "of results/h200_prefill/engine_prefill" in " ".join(one.stdout.split())


def test_rows_of_other_names_in_a_typed_dataset_answer_for_a_model_with_the_same_heads_unless_it_has_rows(invoke: Invoke):
    prompts, servers = "results.path=results/h200_prefill/ragged_prefill", "results.path=results/h200_main/servers"
    told = [
        invoke("question=one_backend", *words).stdout
        for words in (("model=qwen3_32b", prompts), ("model=qwen3_32b", "tp=8", servers), ("model=llama_3_1_70b", "tp=8", servers))
    ]
    lent = invoke("question=one_backend", "model=llama_3_3_70b", "results.path=results/h200_prefill/engine_prefill").stdout
    refused = invoke("question=one_backend", "model=gpt_oss_120b", prompts)

    assert told[0].startswith("qwen3_32b (rows of custom, same heads) · NVIDIA H200 · 176 ok")
    assert told[1].startswith("qwen3_32b (rows of llama_3_1_70b, same heads)")
    assert told[2].startswith("llama_3_1_70b · NVIDIA H200")
    assert lent.startswith("llama_3_3_70b (rows of llama_3_1_70b, same heads)")  # not of kernels alone, without a model's name
    assert refused.returncode == 2 and "there are model: custom" in refused.stderr


@pytest.mark.parametrize(
    ("model", "tp", "device", "drafts", "words"),
    [
        (
            "qwen3_235b_a22b",
            2,
            "h200",
            3,
            ["not measured: tp=2\n", "qwen3_235b_a22b on NVIDIA H200 (tp 4, 8"],
        ),
        ("qwen3_14b", 1, "h100", None, ["not measured: device=h100\n", "nearest: qwen3_14b on NVIDIA H200 (tp 1; drafts 0, 3)\n"]),
        (
            "llama_3_3_70b",
            8,
            "h200",
            5,
            ["not measured: drafts=5\n", "NVIDIA H200 (tp 1, 2, 4, 8, by its heads)\n", "'sweep.s_qo=[6]'"],
        ),
        (  # heads of the same kind, and not a latent
            "phi_3_mini_4k",
            1,
            "h200",
            None,
            [
                "not measured: model=phi_3_mini_4k\nnearest: gemma_3_27b on NVIDIA H200 (tp 1; drafts 0",
                "; num_kv_heads 16, not 32; head_dim_qk 128, not 96; head_dim_vo 128, not 96); llama_3_1_8b",
                " more\nto m",
            ],
        ),
        ("llama_3_1_70b", 4, "h200", 3, ["not measured: batch_size=16, s_kv=65536\n", "in its place type s_kv: 32768\n"]),
        ("deepseek_v3", 4, "h200", 40, ["not measured: drafts=40\n", "nearest: deepseek_v3 on NVIDIA H200 (tp 4; drafts"]),
    ],
)
def test_what_is_near_a_model_that_only_its_heads_were_measured_of(
    model: str, tp: int, device: str, drafts: int | None, words: list[str]
):
    long = {"batch_size": (16,), "s_kv": (65536,)} if model == "llama_3_1_70b" else {}  # each was measured at other sizes
    wanted = {"device_name": known_devices()[device].match, **long}
    alike = finder.same_heads(shape(model), tp, wanted)
    with pytest.raises(NoRows) as error:
        finder.find({"model": (model,), "tp": (tp,), **wanted}, selected(), drafts, alike, typed=("", "servers", shape(model)))

    assert [one for one in words if one not in str(error.value)] == []


@pytest.mark.parametrize(
    ("drafts", "axes"),
    [
        (None, {"s_kv": (100_000,)}),
        (None, {"tp": (2,), "device_name": ("NVIDIA H100 80GB HBM3",)}),
        (4, {}),
        (None, {"kv_dtype": ("fp8_e5m2",)}),
    ],
)
def test_the_command_that_measures_a_missing_deployment_is_planned(drafts: int | None, axes: finder.Wanted, invoke: Invoke):
    with pytest.raises(NoRows) as error:
        finder.find({**LLAMA, **axes}, selected(), drafts)
    _, _, *words = shlex.split(str(error.value).partition("to measure: ")[2])
    done = invoke("mode=plan", *words[1:])

    assert done.returncode == 0, done.stderr


def test_the_command_that_measures_a_typed_model_names_its_file(invoke: Invoke, tmp_path: Path):
    heads = {"num_attention_heads": 80, "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 6144, "num_hidden_layers": 48}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **heads}))
    told = invoke("mode=report", f"model={config}", "device=h200", "tp=8").stderr
    _, _, *words = shlex.split(told.partition("to measure: ")[2].splitlines()[0])

    assert "nearest: qwen3_80_16_128 on NVIDIA H200 (tp 2, by its heads)\n" in told
    assert invoke("mode=plan", *words[1:]).returncode == 0


def test_a_folder_without_results_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoRows, match=r"there is no dataset here; type results\.path=DIR"):
        finder.find(LLAMA, selected(), None)


def test_a_file_without_later_columns_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    older = pq.read_table(ROOT / "results/h200_main/servers.parquet").drop_columns(["energy_j", "plan_host_us", "soft_cap"])
    (tmp_path / "results" / "mine").mkdir(parents=True)
    pq.write_table(older, tmp_path / "results" / "mine" / "old.parquet")
    monkeypatch.chdir(tmp_path)

    assert finder.find(LLAMA, selected(), 3) == ("results/mine/old.parquet", LLAMA)


def test_imported_times_stand_beside_the_dataset_that_is_fastest_at_most_of_their_workloads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Not beside the one with most backends, nor one with other heads or with a window."""
    heads = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "mask": "causal", "sinks": False}
    keys = {"routine": "paged_decode", "device_name": H200[0], "orchestrator_version": "1", **heads}
    of_files = {
        "many": [made(name, 20.0, s_qo=s_qo, **keys) for name in ("fa2", "fa2_tc", "cudnn") for s_qo in (1, 4)],
        "fast": [made("flash_attn_3", 10.0, s_qo=s_qo, **keys) for s_qo in (1, 4)],
        "windowed": [made("fa2", 1.0, s_qo=s_qo, **{**keys, "window": 128}) for s_qo in (1, 4)],
        "narrow": [made("fa2", 1.0, s_qo=s_qo, **{**keys, "head_dim_qk": 64}) for s_qo in (1, 4)],
    }
    (tmp_path / "results" / "mine").mkdir(parents=True)
    for name, rows in of_files.items():
        pq.write_table(to_table(rows), tmp_path / "results" / "mine" / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)

    assert finder.beside(of_files["many"]) == Path("results/mine/fast.parquet")
    assert finder.beside([made("fa2", 1.0, s_qo=2, **keys)]) is None


def test_three_commands_give_one_flag_for_sglang_with_drafts_over_an_fp8_cache(invoke: Invoke):
    """The default stays: `fa3`."""
    asked = ("model=llama_3_1_70b", "device=h200", "drafts=3", "where={kv_dtype: fp8_e4m3}")
    one, default, export = (
        invoke(*words, *asked)
        for words in (
            ("mode=report", "question=one_backend", "engine=sglang", "format=csv"),
            ("mode=report", "question=engine_default", "engine=sglang", "format=markdown"),
            ("export=sglang",),
        )
    )

    assert [done.returncode for done in (one, default, export)] == [0, 0, 0], one.stderr + default.stderr + export.stderr
    answer = "--attention-backend fa3 --page-size 64: fa3 is the default at pages of 1"
    assert all(answer in done.stdout for done in (default, export)) and "nothing to type" not in export.stdout
    assert all("specdec_all_candidates" in done.stderr for done in (one, default, export))


def test_a_new_release_is_one_file_and_no_line_of_python(invoke: Invoke, tmp_path: Path):
    """A copy of today's newest release, in a folder of the user's own."""
    (tmp_path / "engine").mkdir()
    text = (ROOT / "conf" / "engine" / "vllm_0_33_0.yaml").read_text()
    (tmp_path / "engine" / "vllm_0_99_0.yaml").write_text(text.replace("0.33.0", "0.99.0"))
    done = invoke(
        f"--config-dir={tmp_path}", "export=vllm", "engine=vllm", "model=llama_3_1_70b", "device=h200", "tp=8", "drafts=0"
    )

    assert done.returncode == 0, done.stderr
    assert "# vLLM 0.99.0: llama_3_1_70b" in done.stdout
    assert [one.title for one in selected("vllm", str(tmp_path))] == ["vLLM 0.99.0"]
    with pytest.raises(UserError, match=r"engine='vlm': unknown engine; did you mean 'vllm'\?.*vllm:0.99.0"):
        selected("vlm", str(tmp_path))


def test_a_server_that_no_engine_ran_is_answered_with_those_that_ran_and_a_command_that_plans(invoke: Invoke):
    server = ("mode=report", "question=in_engine", "model=llama_3_1_70b", "engine=vllm")
    wrong, right = invoke(*server, "tp=8", "drafts=3"), invoke(*server)
    command = re.search(r"to measure: python -m orchestrator (.*)", wrong.stderr)

    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: not measured in a running engine: model=llama_3_1_70b, tp=8, drafts=3, engine=vllm\n")
    assert "measured: llama_3_1_70b (tp 1; bf16, fp8_e4m3); " in wrong.stderr
    assert command and command[1] == "+sweep=in_engine model=llama_3_1_70b 'sweep.tp=[8]' 'sweep.drafts=[3]' engine=vllm"
    assert (planned := invoke(*shlex.split(command[1]), "mode=plan", "device=h200")).returncode == 0, planned.stderr
    assert "for the others type" not in right.stderr  # no engine ran them


@pytest.mark.parametrize("question", [None, "one_backend", "engine_default", "in_engine"])
def test_an_unknown_release_is_answered_with_those_there_are_and_each_of_them_is_taken(question: str | None, invoke: Invoke):
    words = ("mode=report", *([f"question={question}"] if question else []), "model=llama_3_1_70b", "device=h200")
    wrong = invoke(*words, "engine=vllm:9.9")
    listed = re.search(r"allowed: (.*); type engine=(\S+), or engine=vllm for the newest", wrong.stderr)

    assert wrong.returncode == 2 and "engine='vllm:9.9': unknown release of vllm; " in wrong.stderr
    assert listed and [selected(name)[0].engine for name in listed[1].split(", ")] == ["vllm"] * 3
    assert listed[2] == listed[1].split(", ")[-1] and selected(listed[2]) == selected("vllm")
    assert (right := invoke(*words, f"engine={listed[1].split(', ')[0]}")).returncode == 0, right.stderr


def test_a_model_known_by_its_heads_has_the_nearest_lengths_and_their_flags(invoke: Invoke):
    server = ("question=one_backend", "model=llama_3_3_70b", "tp=4", "device=h200", "engine=vllm", "drafts=3")
    told = invoke(*server, "where={batch_size: 8, s_kv: 16384}").stderr

    assert "not measured: s_kv=16384\n" in told and "in its place type s_kv: 8192 or s_kv: 32768" in told and "H100" not in told
    assert "the same flag, FLASH_ATTN (default) at s_kv 8192 and at s_kv 32768" in told


def test_of_two_lengths_the_one_is_missing_without_which_most_was_measured():
    """At batch 128 DeepSeek-V3 has 8,192 tokens; 4,096 were measured in other studies at other batches."""
    with pytest.raises(NoRows, match="not measured: s_kv=4096\n"):
        finder.find(
            {"model": ("deepseek_v3",), "device_name": H200, "tp": (1,), "batch_size": (128,), "s_kv": (4096,)}, selected(), None
        )
