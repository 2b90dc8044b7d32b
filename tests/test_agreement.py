"""One answer: both questions, both exports and the page say the same of every committed deployment."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from kernels import registry
from orchestrator import ROOT
from orchestrator.analysis import traffic
from orchestrator.analysis.finder import LINES
from orchestrator.analysis.questions import best, engine_default, in_engine, one_backend, open_views
from orchestrator.analysis.questions.deployments import HERE, PLACE, parts
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import Engine, calls_of, releases, selected
from orchestrator.config.modes import owner
from orchestrator.errors import UserError
from orchestrator.formats.engine_config import config_text
from orchestrator.machines import known_devices
from orchestrator.reporting import document
from orchestrator.reporting.dashboard.data import deployments
from tests.helpers.command_line import Invoke
from tests.helpers.committed_rows import problem_of
from tests.helpers.datasets import EVERY, RESULTS
from tools import pictures

NO_FLAG = ("rules", "gated_delta", "cache")  # engines have no flag for gated delta nets, and none for writes of a cache
OF_SERVERS = ("main", "mla", "engines", "prefill")  # whose datasets answer for servers
FOLDERS = sorted({name.partition("/")[0] for name in EVERY if name.partition("/")[0].endswith(OF_SERVERS)})
TYPED = ("--attention", "--prefill", "--decode", "--dsa", "-ac.")  # how a line with a flag of a backend begins
PAGES = ("--block-size", "--page-size")
SERVERS_AND_PAGES = "results/h200_main/servers,results/h200_main/servers_pages"


@pytest.mark.parametrize("folder", FOLDERS)
def test_price_and_advice_are_one(folder: str):
    """The price of a default is recomputed from the rows of `engine_default`; advice is what each command prints."""
    datasets = [name for name in EVERY if name.startswith(f"{folder}/") and owner(RESULTS / name) is None]
    checked = sum(agree(name) for name in datasets if not any(word in name for word in ("noise", "check_power", "older", *NO_FLAG)))

    assert checked > 0


@pytest.mark.parametrize("name", ["h200_main/specdec_all_candidates", "h200_mla/mla_mtp", "h100_mla/sparse_and_dense"])
def test_older_releases_have_one_answer_too(name: str):
    older = [one for one in releases().values() if one not in selected()]

    assert len(older) > 2 and agree(name, older) > 0


def agree(name: str, engines: Sequence[Engine] = ()) -> int:
    """The number of answers of a dataset that were compared, by these releases or the newest."""
    engines = engines or selected()
    data = open_views(f"{RESULTS / name}.parquet", threads=1, engines=engines)
    found = [part for part in parts(data) if part.who != HERE]
    if not found:
        return 0
    keys = ", ".join((*PLACE, "phase", "engine", "layers"))
    query = f"SELECT {keys}, sum(weight * ln(regret)) / sum(weight), count(*) FROM engine_default GROUP BY ALL"
    prices = {tuple(values): (math.exp(log), count) for *values, log, count in data.execute(query)}
    of_default = {line[:3]: line for line in engine_default.grids(data)[0].cells} if prices else {}
    of_one = {line[:3]: line for line in one_backend.grids(data)[0].cells}
    exported = {engine.title: _export(data, engine) for engine in engines}
    pages = {
        (one["title"], told["for"], told["engine"]): told
        for one in deployments(data)
        for of in one["phases"]
        for told in of["engines"]
    }
    for part in found:
        line = of_one[part.title, part.what, part.who]
        of_one_default = of_default.get(line[:3])
        assert line[3] == part.answer.words == (of_one_default[-1] if of_one_default else line[3])
        assert of_one_default is None or part.default is None or of_one_default[4] == part.default.runs
        price = prices.get((*part.place, part.phase, part.who, part.choices[0].record["layers"]))
        default = part.default
        assert (price is None) == (default is None or not default.served)
        if price is not None and default is not None:
            assert (default.mean, default.served) == (pytest.approx(price[0], rel=1e-9), price[1])
        choice = part.answer.choice
        assert choice is None or choice.is_default or choice.name in exported[part.who]
        if choice is not None:  # what is pasted stands in the answer, in brief too; what it runs, and whether that was seen or read
            assert all(flag in line[3] for flag in choice.typed)
            assert (choice.record["typed_page"] or "") in part.brief() and (line[3][:16] != "nothing to type:" or not choice.typed)
            assert line[4] == choice.runs == pages[line[:3]]["runs"]
            assert choice.known in choice.runs and choice.known.startswith(("seen on", "read, not seen"))
            assert any(f"{choice.label} runs {choice.runs}: " in one and part.holds in one for one in exported[part.who])
    for engine, lines in exported.items():
        typed = {line for part in found if part.who == engine and part.answer.choice for line in part.answer.choice.typed}
        assert {line for line in lines if line.startswith((*TYPED, *PAGES))} == typed
    return len(found)


def test_the_finding_of_servers_says_what_the_report_says():
    """A cell is the answers of a server, cache, engine and phase, with the kind of layers if there are several."""
    rows = [
        line.strip("|").split("|") for line in (ROOT / "docs/findings/server_flags.md").read_text().splitlines() if "TP" in line
    ]
    printed = {tuple(row[:2]): row[2:] for row in rows if len(row) == 6}
    files = (f"results/h200_main/{name},results/h200_main/{name}_tokens" for name in ("servers", "servers_more"))
    found = [part for file in files for part in parts(open_views(file, threads=1)) if part.who != HERE]
    answers: dict[tuple[str, str], list[list[str]]] = {}
    for part in found:
        place, (type_, *_) = dict(zip(PLACE, part.place, strict=True)), one_backend.line(part)[3:]
        cells = answers.setdefault((f"{place['model']}, TP {place['tp']}", place["kv_dtype"]), [[], [], [], []])
        saved = re.search(r"\((~?[\d.]+%) less time than the default.*?(; batch .*?)?(?:; pages of .*)?\)", type_)
        choice = part.answer.choice
        kept = f"keep ({part.elsewhere[2:]})" if part.elsewhere else "keep"
        flag = kept if part.answer.keeps else f"{choice and choice.label} ({saved and ''.join(filter(None, saved.groups()))})"
        cells[2 * (part.phase != "decode") + part.who.startswith("SGLang")].append(
            flag if part.layers == "all" else f"{part.layers}: {flag}"
        )
    assert {server: ["; ".join(sorted(cell)) for cell in cells] for server, cells in answers.items()} == printed
    assert len(printed) == 44


@pytest.mark.parametrize(
    "name", ["h200_main/servers_older_releases", "h100_main/specdec_all_candidates", "h200_drafts/xqa_specdec_all_candidates"]
)
def test_a_row_is_called_unsupported_by_an_older_rule_where_today_s_serves_it(name: str):
    data = open_views(RESULTS / f"{name}.parquet", threads=1)
    older = data.execute("SELECT DISTINCT flag FROM one_backend WHERE status = 'unsupported by an older rule'")
    rows = [row for row in data.current().to_dict("records") if row["status"] == "unsupported" and row["q_dtype"] == "fp8_e4m3"]
    devices = {one.name: one for one in known_devices().values()}
    served = {
        row["backend"]
        for row in rows
        if " needs: fp16 or bf16 queries;" in row["reason"]
        and not registry.get(row["routine"], row["backend"]).unmet(problem_of(row), devices[row["device_name"]])
    }

    assert (older, "vllm_triton" in served) == (([], False) if "xqa" in name else ([("TRITON_ATTN",)], True))
    printed = any("TRITON_ATTN: unsupported by an older rule at " in line for line in _export(data, selected("vllm")[0]))
    assert printed == bool(older)


def test_the_worst_workloads_of_a_default_name_the_routines_of_the_rows():
    data = open_views(RESULTS / "h200_main/servers.parquet", threads=1, where={"model": "llama_3_1_70b", "tp": 8})
    worst = next(grid for grid in engine_default.grids(data) if grid.title == "where a default costs most")
    known = set(
        data.execute("""SELECT format('{}/{} batch {}, s_kv {:,}, s_qo {}, {} cache', routine, backend,
            batch_size, s_kv, s_qo, kv_dtype)
        FROM current WHERE status = 'ok'""")
    )
    told = [f"{re.sub(r'[(].*', '', line[kernel])} {line[8]}" for line in worst.cells for kernel in (2, 5)]

    assert any(one.startswith("paged_prefill/fa2 ") for one in told) and [one for one in told if (one,) not in known] == []


def test_the_finding_of_engines_says_what_its_command_prints():
    """The command of both pages reads the rows of the finding's table; README begins as its verdict does."""
    pages = [(ROOT / f"docs/{name}.md").read_text() for name in ("report", "contexts")]
    named = [re.findall(r"question=in_engine 'results\.path=\[(.*?)\]'", page) for page in pages]
    found = (ROOT / "docs/findings/in_engine.md").read_text()
    printed = [line.strip("|").split("|") for line in found.splitlines() if line.startswith("|H200/")]
    grid = in_engine.grids(open_views(named[0][0], threads=1))[0]
    told = {line[1].casefold(): dict(zip(grid.header, line, strict=True)) for line in grid.cells}

    assert named[0] == named[1] and len(printed) == 4
    for card, points, *figures in printed:
        line = told[card.split("/")[1].casefold()]
        numbers = [
            float(line[what].removesuffix("%")) for what in ("median error", "within 5% or 2 µs", "flags in order", "in steps")
        ]
        assert line["compared"].startswith(f"{points} of ")
        assert [f"{number:.{n}f}%" for number, n in zip(numbers, (1, 0, 0, 0), strict=True)] == figures
    holds = {engine for engine, line in told.items() if line["so"] == "holds"}
    verdict = re.findall(r"(?m)^\*\*(It holds in .*?): ", found)[0]
    assert f"- **{verdict}** (" in (ROOT / "README.md").read_text()
    assert {engine for engine in told if engine in verdict.casefold().partition(";")[0]} == holds


def test_the_finding_of_energy_says_what_the_report_says():
    rows = (line.strip("|").split("|") for line in (ROOT / "docs/findings/joules.md").read_text().splitlines())
    printed = {(row[0], row[1], row[2]): (row[3], row[4], row[6]) for row in rows if len(row) == 8 and row[2].isdecimal()}
    data = open_views(RESULTS / "h200_studies/energy.parquet", threads=1, where={"batch_size": 8})
    asked = data.execute("SELECT kv_dtype, q_dtype, s_qo, backend, energy_j * 1000, fastest FROM energy")

    assert printed == {(kv, q, f"{s_qo}"): (backend, f"{mj:.0f}", fastest) for kv, q, s_qo, backend, mj, fastest in asked}


def test_the_picture_in_the_docs_shows_what_is_printed_now():
    """The picture names its answers in a chunk of its file; its prices are of the engines' own builds."""
    shown = parts(open_views(pictures.DATASET, threads=1, where=pictures.SERVER))

    assert pictures.answers().encode() in (ROOT / f"docs/{pictures.NAME}.png").read_bytes(), "type python -m tools.pictures"
    assert [choice.stands_in for part in shown for choice in part.choices if choice.stands_in] == []


def test_a_default_that_a_stand_in_prices_is_named_as_one():
    data = open_views(RESULTS / "h200_main/specdec_long_ctx.parquet", threads=1, where={"kv_dtype": "fp8_e4m3", "s_qo": 1})
    words = "fa3, the default, is priced with flash_attn_3, which stands in for the engine's own build"

    assert any(words in line for line in _export(data, selected("sglang")[0]))
    assert [note for _, note in one_backend.grids(data)[2].cells if words in note]


def test_the_tables_of_the_fastest_backend_rank_a_draft_whatever_its_routine():
    """The fastest of question=best over both dtypes of queries is the page's and the map's, also where paged prefill wins."""
    data = open_views(RESULTS / "h200_main/servers.parquet", threads=1)
    of_best = """SELECT workload, min(own_us) AS us, any_value(routine) AS routine
        FROM (best JOIN (SELECT problem, workload FROM workloads) USING (problem)) GROUP BY workload"""
    rows = data.execute(f"SELECT us, own_us, routine FROM ({of_best}) JOIN ranked_workloads USING (workload)")

    assert len(rows) == data.scalar("SELECT count(*) FROM ranked_workloads")
    assert [row for row in rows if row[0] != row[1]] == []
    assert {"paged_decode", "paged_prefill"} <= {row[2] for row in rows}
    assert not any("routine" in grid.title for grid in best.grids(data))
    asked = data.records("FROM best WHERE model = 'llama_3_1_70b' AND tp = 8 AND kv_dtype = 'bf16' AND s_qo = 4 AND s_kv = 8192")
    assert {r["batch_size"]: (r["backend"], f"{r['margin']:.0%}") for r in asked}[1] == ("fa2", "28%")


@pytest.mark.parametrize(
    ("engine", "flag", "drafts", "gain"), [("sglang", "--page-size 64", 0, 0.16), ("vllm", "--block-size 64", 3, 0.0)]
)
def test_the_gain_of_pages_is_that_of_the_rows_and_is_typed_if_it_is_clear(
    engine: str, flag: str, drafts: int, gain: float, invoke: Invoke
):
    asked = ("results.path=[results/h200_main/servers,results/h200_main/servers_pages]", "model=llama_3_1_70b", "tp=8")
    asked += (f"drafts={drafts}", "where={kv_dtype: fp8_e4m3}")
    told = [" ".join(invoke(f"export={engine}", *asked).stdout.split()), invoke("mode=report", *asked).stdout]
    told += [" ".join(invoke("mode=report", "question=one_backend", f"engine={engine}", *asked, "format=markdown").stdout.split())]
    own, build = {"sglang": (1, "flash_attn_3_sglang"), "vllm": (16, "flash_attn_3_vllm")}[engine]
    rows = open_views("results/h200_main/servers,results/h200_main/servers_pages", threads=1)
    ((saved, pairs),) = rows.execute(f"""
        SELECT 1 - exp(avg(ln(other.own_us / own.own_us))), count(*) FROM rows AS other
        JOIN rows AS own USING (model, tp, backend, kv_dtype, q_dtype, batch_size, s_kv, s_qo, device_name, status)
        WHERE model = 'llama_3_1_70b' AND tp = 8 AND backend = '{build}' AND kv_dtype = 'fp8_e4m3' AND s_qo = {drafts + 1}
            AND other.page_size = 64 AND own.page_size = {own} AND status = 'ok'""")

    assert pairs == 7 and saved == pytest.approx(gain, abs=0.04)
    assert all(f"pages of 64 take {saved:.1%} less time than its own of {own}" in one for one in (told[0], told[2]))
    assert [flag in one for one in told] == [gain > 0] * 3


def _export(data: object, engine: object) -> list[str]:
    try:
        # The flags of all caches, though one of these alone is no comment.
        text = config_text(data, engine, Draft(), "d")  # type: ignore[arg-type]
        return text.replace("\n# -", "\n-").replace(" \\\n", "\n").splitlines()
    except UserError:  # no workload of this engine
        return []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_has_one_answer_whichever_command_finds_its_datasets(engine: str, invoke: Invoke, tmp_path: Path):
    """Flags and pages that a second dataset has alone are in every answer, which is priced at the workloads of the first."""
    (tmp_path / "traffic.csv").write_text("batch_size,s_kv,weight\n8,8192,75%\n64,8192,20%\n1,32768,5%\n")
    server, weighed = ("model=llama_3_1_70b", "tp=8", "device=h200"), ("traffic=" + str(tmp_path / "traffic.csv"),)
    one, default = (
        ("mode=report", f"question={name}", f"engine={engine}", "format=markdown") for name in ("one_backend", "engine_default")
    )
    export = (f"export={engine}",)
    asked = (one, default, export, ("mode=report", f"engine={engine}"), (*one, *weighed), (*export, *weighed))
    answers = [invoke(*words, *server) for words in asked]
    told = [" ".join(done.stdout.split()) for done in answers]
    where, tokens = {"model": "llama_3_1_70b", "tp": 8}, ",results/h200_main/servers_tokens" * (engine == "sglang")
    every = SERVERS_AND_PAGES + tokens
    both, alone = (
        [part for part in parts(open_views(path, threads=1, where=where, engines=selected(engine))) if part.who != HERE]
        for path in (every, "results/h200_main/servers" + tokens)
    )

    note = f"read {every.replace(',', LINES)}, which together say most about this"
    assert all(note in done.stderr for done in answers)
    for part, first in zip(both, alone, strict=True):
        choice = part.answer.choice
        assert choice is not None and first.answer.choice is not None
        assert [(one.name, one.mean, one.served, one.is_complete) for one in part.measured] == [
            (one.name, one.mean, one.served, one.is_complete) for one in first.measured
        ]
        lacks = first.answer.words if part.answer.keeps else re.sub(r"; pages of \d+ not measured", "", first.answer.words)
        assert part.answer.words != first.answer.words or "not measured" not in lacks
        assert part.answer.words in told[0] and part.answer.words in told[1] and part.brief(at_worst=True) in told[3]
        assert (f"{choice.label}, {part.answer.why}" if not part.answer.keeps else part.answer.words) in told[2]
    mix = traffic.read(str(tmp_path / "traffic.csv"))
    for part in parts(open_views(every, threads=1, where=where, engines=selected(engine), traffic=mix)):
        choice, keeps = part.answer.choice, part.answer.keeps
        assert part.who == HERE or (part.answer.words if keeps or not choice else f"{choice.label}, {part.answer.why}") in told[5]
    assert told[5].startswith(f"# weighed by traffic={tmp_path}")
    assert re.findall(r"(?<!\d )not measured\)", "".join(told)) == []  # but for pages of a flag to type
    assert "cache, page_size 64; 14 of 42 workloads" in told[3]
    assert "8 × 8,192: 75%, 64 × 8,192: 20%, 1 × 32,768: 5.0%" in told[4] and "page_size 1" not in told[4]


def test_pages_are_told_apart_and_a_draft_table_counts_each_length_once():
    where = {"model": "llama_3_1_70b", "tp": 8}
    both, alone = (
        open_views(path, threads=1, where=where, engines=selected("vllm"))
        for path in (SERVERS_AND_PAGES, "results/h200_main/servers")
    )
    draft = Draft(layers=80, rest_us=10_000, cost_us=300)
    tables = [
        [line for line in config_text(data, *selected("vllm"), draft, "d").splitlines() if "#   batch " in line]
        for data in (both, alone)
    ]
    titles = [re.findall(r"kv (\w+).* page_size (\d+) ", grid.title) for grid in best.fastest_grids(both)]

    assert len(tables[0]) == 8 and tables[0] == tables[1]
    assert sorted(titles) == sorted([[(kv, page)] for kv in ("bf16", "fp8_e4m3") for page in ("1", "16", "64")] + titles[6:])


def test_the_page_on_backends_counts_flashmlas_wrong_points_as_the_finding_does():
    page, finding = ((ROOT / f"docs/{name}.md").read_text() for name in ("backends", "findings/mla_engines"))
    counted = {}
    for gpu, name in (("H200", "h200_mla/mla_mtp_fp8"), ("H100", "h100_mla/mla_engines")):
        of = f"FROM '{ROOT}/results/{name}.parquet' WHERE backend = 'flash_mla_vllm' AND q_dtype = 'fp8_e4m3'"
        counts = f"SELECT count_if(status = 'ok'), count_if(status = 'mismatch') {of}"
        ((*counted[gpu],),) = duckdb.sql(counts).fetchall()
    (on_h200, wrong_h200), (on_h100, wrong_h100) = counted["H200"], counted["H100"]

    assert (
        f"FP8 {on_h200} right, {wrong_h200} wrong at 65,536 tokens" in page and f"FP8 {on_h100} right, {wrong_h100} wrong |" in page
    )
    wrong = f"wrong at {wrong_h100} of {on_h100 + wrong_h100} points on an H100, {wrong_h200} of {on_h200 + wrong_h200} on an H200"
    assert wrong in finding


def test_the_finding_of_wrong_flags_reads_every_dataset_with_a_wrong_row_of_an_engines_kernel():
    """Datasets of rule edges run what rules forbid, and those of mode=check_power kernels that are wrong on purpose."""
    files = [str(RESULTS / f"{name}.parquet") for name in EVERY if owner(name) is None and "rule_edges" not in name]
    kernels = {call for one in releases().values() for flag in one.flags for *_, call in calls_of(flag)}
    wrong = duckdb.sql(f"""SELECT DISTINCT filename, routine, backend
        FROM read_parquet({files}, union_by_name = true, filename = true) WHERE status = 'mismatch'""").fetchall()
    places = [one.path for one in document.read(str(ROOT / "findings" / "wrong_answers.md")).head.results.values()]

    assert {file for file, *call in wrong if (*call,) in kernels} == {str(ROOT / f"{place}.parquet") for place in places}
