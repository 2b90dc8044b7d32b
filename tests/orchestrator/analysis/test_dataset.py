"""The tables of a dataset: newest rows and problems, from all kinds of files."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

from orchestrator import ROOT, notes
from orchestrator.analysis import dataset, sources, views
from orchestrator.analysis.compare import selection
from orchestrator.analysis.dataset import open_dataset
from orchestrator.analysis.questions import VIEWS, best, open_views
from orchestrator.analysis.sources import left_out, local_datasets
from orchestrator.analysis.sql import COMPUTED
from orchestrator.config.ranges import Bounds
from orchestrator.errors import DamagedDataset, NoRows, UserError
from orchestrator.reporting import records
from orchestrator.storage import parquet
from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.row import Row, to_json, to_table
from tests.helpers.timed_rows import asked, made, views_of


def kept(path: Path, *rows: Row) -> Path:
    path.mkdir(parents=True)
    pq.write_table(to_table(rows), path / parquet.DATA)
    return path


def dated(row: Row, day: int, **keys: object) -> Row:
    return {**row, "finished_at": f"2026-01-{day:02}T00:00:00+00:00", **keys}


def test_the_newest_row_of_a_point_counts(tmp_path: Path):
    old, new = dated(made("a", 10.0), 1, torch_version="1"), dated(made("a", 12.0), 2, torch_version="2")

    assert list(asked(new, old).current()["median_us"]) == [12.0]
    assert list(open_dataset(kept(tmp_path / "d", new, old)).current()["median_us"]) == [12.0]


def test_rows_of_one_version_are_all_current(tmp_path: Path):
    rows = [made("a", 10.0), made("b", 12.0), made("a", 11.0, s_kv=1)]

    assert len(open_dataset(kept(tmp_path / "d", *rows)).current()) == 3


def test_the_same_point_on_another_device_is_another_and_from_another_cluster_a_newer_one():
    rows = [made("a", 10.0), made("a", 11.0, device_name="B200"), made("a", 12.0, cluster="other")]

    assert sorted(asked(*rows).current()["median_us"]) == [11.0, 12.0]


def test_several_datasets_are_asked_together_by_a_pattern(tmp_path: Path):
    kept(tmp_path / "lab_a", dated(made("a", 10.0), 1), made("b", 20.0))
    kept(tmp_path / "lab_b", dated(made("a", 30.0), 2))
    found = open_dataset(tmp_path / "lab_*")

    assert sorted(found.current()["median_us"]) == [20.0, 30.0]
    assert found.scalar("SELECT count(DISTINCT row) FROM rows") == 3
    assert open_dataset(f"{tmp_path / 'lab_a'},{tmp_path / 'lab_b'}").scalar("SELECT count(*) FROM rows") == 3


def test_a_pattern_leaves_out_companions_whose_sweep_lies_elsewhere_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("lab_a", "lab_study_noise", "lab_drawn_check_power"):
        kept(tmp_path / name, made("a", 10.0))
    with notes.buffered():
        assert local_datasets(str(tmp_path / "lab_*")) == [tmp_path / "lab_a"]
        notes.release()

    assert f"{tmp_path / 'lab_drawn_check_power'}, {tmp_path / 'lab_study_noise'}" in capsys.readouterr().err
    assert local_datasets(str(tmp_path / "*_noise")) == [tmp_path / "lab_study_noise"]


def test_noise_over_another_state_of_the_l2_is_named_as_such(tmp_path: Path):
    kept(tmp_path / "a", *(made(name, us, l2="clean") for name, us in (("a", 10.0), ("b", 20.0))))
    kept(tmp_path / "a_noise", *(made("a", 10.0, l2="dirty", twin=twin) for twin in (0, 1)))

    data = open_views(tmp_path / "a")
    assert "measured over a dirty L2" in str(best.summary(data))
    assert "no more than noise, measured over a dirty L2)" in best.grids(data)[0].title


def test_a_title_names_the_state_that_the_noise_of_its_own_gpu_was_measured_over(tmp_path: Path):
    states = {"H100": "clean", "H200": "dirty"}
    for gpu, noise in states.items():
        each = [made(name, us, l2=l2, device_name=gpu) for name, us in (("a", 10.0), ("b", 20.0)) for l2 in ("clean", "dirty")]
        kept(tmp_path / gpu, *({**row, "point_id": f"{row['backend']}{row['l2']}"} for row in each))
        kept(tmp_path / f"{gpu}_noise", *(made("a", 10.0, l2=noise, device_name=gpu, twin=twin) for twin in (0, 1)))
    data = open_views(tmp_path / "*")
    titles = [grid.title for grid in best.grids(data)]

    assert len(titles) == 4
    for title in titles:
        noise, l2 = next(noise for gpu, noise in states.items() if title.endswith(gpu)), title.split(" · ")[-2].split()[0]
        assert ("measured over" in title) == (l2 != noise), title
        assert l2 == noise or f"no more than noise, measured over a {noise} L2)" in title, title
    assert "measured over a clean L2 on H100, over a dirty L2 on H200" in str(best.summary(data))


def test_a_pattern_leaves_out_aa_pairs_and_mutants_beside_a_dataset(tmp_path: Path):
    twins = [made("a", us, twin=i, point_id=f"t{i}", group_id="g") for i, us in enumerate((10.0, 10.5))]
    kept(tmp_path / "lab_a", made("a", 10.0))
    kept(tmp_path / "lab_a_noise", *twins)
    kept(tmp_path / "lab_a_check_power", made("mutant", 1.0))
    found = open_dataset(tmp_path / "lab_*")

    assert found.scalar("SELECT count(*) FROM rows") == 1
    assert found.scalar("SELECT max(noise_floor) FROM noise") == pytest.approx(0.05)
    assert open_dataset(tmp_path / "*_noise").scalar("SELECT count(*) FROM rows") == 2


def test_a_parquet_file_that_was_copied_alone_is_a_dataset(tmp_path: Path):
    file = kept(tmp_path / "d", made("a", 10.0)).rename(tmp_path / "e") / parquet.DATA

    assert len(open_dataset(file).current()) == 1


def test_rows_that_are_still_in_the_journal_count(tmp_path: Path):
    path = kept(tmp_path / "d", made("a", 10.0))
    (path / parquet.JOURNAL).write_text(to_json(made("b", 5.0)) + "\n" + '{"cut sho')

    assert sorted(open_dataset(path).current()["backend"]) == ["a", "b"]


def test_a_row_from_before_a_column_existed_has_its_default(tmp_path: Path):
    path = tmp_path / "d"
    path.mkdir()
    pq.write_table(to_table([made("a", 10.0)]).drop_columns(["tp", "frac_of_peak"]), path / parquet.DATA)
    (row,) = open_dataset(path).records("SELECT tp, frac_of_peak, median_us FROM current")

    assert row == {"tp": 1, "frac_of_peak": None, "median_us": 10.0}


def test_current_is_what_the_store_reads_in_the_same_order(tmp_path: Path):
    path = kept(tmp_path / "d", *(made("a", float(i + 1), s_kv=i + 1, tree=[-1, 0], samples_us=[1.0]) for i in range(5)))

    assert_frame_equal(open_dataset(path).current().assign(own_us=np.nan), parquet.read(path).to_pandas())


def test_problems_differ_in_any_key_and_families_not_in_grid_axes():
    rows = [made("a", 1.0), made("b", 1.0), made("a", 1.0, s_kv=1), made("a", 1.0, window=7)]
    rows[3]["point_id"] = "w"
    found = asked(*rows)

    assert found.scalar("SELECT count(DISTINCT problem) FROM points") == 3
    assert found.scalar("SELECT count(DISTINCT family) FROM problems") == 2
    assert found.scalar("SELECT count(*) FROM problems WHERE \"window\" IS NULL AND model = 'm'") == 2


def test_a_hash_collision_of_problems_is_solved_by_another_salt(monkeypatch: pytest.MonkeyPatch):
    said: list[bool] = []
    monkeypatch.setattr(views, "_is_key", lambda *asked: said.append(len(said) > 0) or said[-1])
    rows = [made("a", 1.0), made("b", 1.0), made("a", 1.0, s_kv=1)]
    found = asked(*rows)

    assert said == [False, True, True]  # the first salt failed at its problems, the second at nothing
    assert found.scalar("SELECT count(DISTINCT problem) FROM points SEMI JOIN problems USING (problem)") == 2


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_a_column_of_another_integer_width_is_cast(tmp_path: Path, kind: pa.DataType):
    table = to_table([made("a", 10.0), made("b", 12.0, s_kv=7)])
    (tmp_path / "d").mkdir()
    pq.write_table(
        table.set_column(table.column_names.index("s_kv"), "s_kv", table["s_kv"].cast(kind)), tmp_path / "d" / parquet.DATA
    )
    found = open_dataset(tmp_path / "d")

    assert found.scalar("SELECT any_value(typeof(s_kv)) FROM rows") == "BIGINT"
    assert found.scalar("SELECT count(DISTINCT problem) FROM points") == 2


def test_two_trees_of_one_name_never_compete():
    rows = [
        made("a", 10.0, mask="t", tree=[-1, 0]),
        made("b", 20.0, mask="t", tree=[-1, 0]),
        made("c", 5.0, mask="t", tree=[-1, -1]),
    ]
    found = best.grids(asked(*rows))

    assert sorted(cell for grid in found for _, _, cell in grid.cells) == ["a 10.0 (2.0×) unchecked", "c 5.0 unchecked"]
    (alone,) = best.grids(asked(*rows[:2]))
    assert "tree" not in alone.title and "-1" not in alone.title


def test_null_selects_rows_without_a_value_in_a_report_and_in_a_comparison(tmp_path: Path):
    windows = {"a": None, "b": 128, "c": 1024}
    path = kept(tmp_path / "d", *(made(name, 1.0, window=window) for name, window in windows.items()))
    wanted = (None, (None, 1024), (None, Bounds(high=500)), "128")
    reported = [[*open_dataset(path, where={"window": where}).current()["backend"]] for where in wanted]
    compared = [[*selection.chosen(pd.read_parquet(path), {"window": where})["backend"]] for where in wanted]

    assert reported == compared == [["a"], ["a", "c"], ["a", "b"], ["b"]]


def test_where_selects_rows_by_the_values_of_columns(tmp_path: Path):
    rows = [made("a", 1.0), made("b", 2.0, sinks=True), made("it's", 3.0, s_kv=7), made("d", None, "failed")]
    path = kept(tmp_path / "d", *rows)

    def backends(**where: object) -> list[str]:
        return sorted(open_dataset(path, where=where).current()["backend"])

    assert backends(s_kv=(8192, 9), status="ok") == ["a", "b"]
    assert backends(s_kv=Bounds(8, 9000)) == backends(s_kv=(1, Bounds(8))) == ["a", "b", "d"]
    assert [r["backend"] for _, r in selection.chosen(pd.read_parquet(path), {"s_kv": Bounds(high=7)}).iterrows()] == ["it's"]
    with pytest.raises(UserError, match=r"where.backend={from: 1}: allowed for columns of numbers"):
        backends(backend=Bounds(1))
    assert backends(s_kv="8192") == ["a", "b", "d"]
    with pytest.raises(UserError, match=r"where.s_kv=<=20000: .* a range .* type 'where={s_kv: {from: 2048, to: 20000}}'"):
        backends(s_kv=("<=20000", 1))
    assert backends(sinks=True) == ["b"]
    assert backends(backend="it's") == ["it's"]
    with pytest.raises(UserError, match=r"no row of .* has these values"):
        backends(s_kv=1)
    with pytest.raises(UserError, match="did you mean 'backend'"):
        backends(backnd="a")
    with pytest.raises(UserError, match=r"'margin' is in no row, .* question=best columns=\[margin\]"):
        backends(margin=3)


def test_the_columns_that_a_report_computes_are_those_of_best_that_no_row_has():
    best_columns = {name for name, *_ in views_of(to_table([])).execute("DESCRIBE best")}

    assert set(COMPUTED) == best_columns - set(COLUMNS) - set(records.INTERNAL)


def test_a_frame_answers_questions_like_a_file():
    frame = to_table([made("a", 10.0), made("b", 20.0)]).to_pandas().assign(kernel="mine")

    assert best.grids(views_of(frame))[0].cells == (("1", "8", "a 10.0 (2.0×) unchecked"),)


@pytest.mark.parametrize("path", ["nothing", "nothing_*", "empty"])
def test_a_path_without_rows_is_an_error_that_says_what_to_type(tmp_path: Path, path: str):
    kept(tmp_path / "empty")

    with pytest.raises(UserError, match="no rows there; run a sweep first"):
        open_dataset(tmp_path / path)


def test_a_folder_without_a_dataset_names_the_only_one_below_it(tmp_path: Path):
    kept(tmp_path / "a" / "b", made("a", 10.0))

    with pytest.raises(NoRows, match=rf"holds no dataset; .* below it: {tmp_path}/a/b; type results.path={tmp_path}/a/b$"):
        open_dataset(tmp_path)


def test_a_path_without_rows_names_the_dataset_that_was_meant(tmp_path: Path):
    kept(tmp_path / "h200_specdec", made("a", 10.0))

    with pytest.raises(NoRows, match=f"no rows there; did you mean '{tmp_path}/h200_specdec'"):
        open_dataset(tmp_path / "h200_spedec")


def test_values_that_no_row_has_are_shown_as_they_are_typed(tmp_path: Path):
    kept(tmp_path / "rows", made("a", 10.0))

    with pytest.raises(NoRows, match=r"^where=\{s_qo: \[7, 8\], backend: b\}: no row of "):
        open_dataset(tmp_path / "rows", where={"s_qo": [7, 8], "backend": "b"})


def test_an_error_names_a_file_that_is_no_dataset(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / parquet.DATA).write_text("no parquet")
    (tmp_path / "b").mkdir()
    pq.write_table(to_table([made("a", 1.0)]).select(["backend"]), tmp_path / "b" / parquet.DATA)

    with pytest.raises(UserError, match=r"a/rows.parquet is no readable Parquet file .*move it away"):
        open_dataset(tmp_path / "a")
    with pytest.raises(UserError, match=r"b/rows.parquet lacks the columns .*point_id.*it is not ours"):
        open_dataset(tmp_path / "b")


def test_a_file_damaged_behind_its_intact_end_is_named(tmp_path: Path):
    file = tmp_path / parquet.DATA  # as older versions wrote it: without a checksum
    table = pq.ParquetFile(ROOT / "results" / "h200_main" / "specdec_long_ctx.parquet").read()
    pq.write_table(table.replace_schema_metadata(None), file, compression="zstd")
    damaged = bytearray(whole := file.read_bytes())
    damaged[200 : len(whole) // 2 : 97] = bytes(len(range(200, len(whole) // 2, 97)))
    file.write_bytes(damaged)

    with pytest.raises(DamagedDataset, match=f"{file} is damaged .*move it away"):
        open_dataset(tmp_path).current()
    with pytest.raises(DamagedDataset, match=f"{file} is damaged .*move it away"):
        open_dataset(tmp_path).records("FROM rows")


def test_a_wrong_query_over_a_sound_file_stays_an_error_of_duckdb(tmp_path: Path):
    found = open_dataset(kept(tmp_path / "d", made("a", 10.0)))

    for ask in (found.execute, found.records, found.scalar, found.single_row, found.to_arrow):
        with pytest.raises(duckdb.Error, match="nothing_of_this_name"):
            ask("SELECT nothing_of_this_name FROM rows")


def test_what_is_read_once_answers_as_what_is_read_for_each_question(monkeypatch: pytest.MonkeyPatch):
    """Few rows are a table, and the steps of an engine among them are theirs; many are a view, and of some the steps are opened."""
    path = ",".join(
        str(ROOT / "results" / name) for name in ("h200_drafts/xqa_specdec.parquet", "h200_engines/vllm_drafts.parquet")
    )
    once = open_views(path, threads=1)
    monkeypatch.setattr(dataset, "FEW_ROWS", 0)
    each = open_views(path, threads=1, where={"twin": 0})

    assert (once.kind, once.where, each.kind, each.where) == ("TABLE", {}, "VIEW", {"twin": 0})
    for answer in (*VIEWS, "measured_rest", "engine_attention"):
        assert once.execute(f"FROM {answer} ORDER BY ALL") == each.execute(f"FROM {answer} ORDER BY ALL"), answer
    assert all(once.scalar(f"SELECT count(*) FROM {answer}") for answer in ("ranked", "in_engine", "measured_rest"))
    tables, plans = "SELECT table_name FROM duckdb_tables()", "SELECT current_setting('disabled_optimizers')"
    computed = [{*VIEWS} & {name for (name,) in data.execute(tables)} for data in (once, each)]
    assert computed == [{*VIEWS}, {"one_backend", "spikes"}]  # once, for all that ask
    assert [data.scalar(plans) for data in (once, each)] == ["distinct_aggregate_rewrite", ""]


def test_a_file_is_checked_again_if_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checked, check = [], sources._require_ours
    monkeypatch.setattr(sources, "_require_ours", lambda *given: (checked.append(given[2]), check(*given)))
    place = kept(tmp_path / "d", made("a", 10.0))
    for _ in range(2):
        open_dataset(place)
    pq.write_table(to_table([made("a", 10.0), made("b", 10.0)]), place / parquet.DATA)

    assert open_dataset(place).count == 2 and checked == [str(place / parquet.DATA)] * 2


def test_lines_that_older_rows_call_cold_are_dirty(tmp_path: Path):
    rows = [made("a", 10.0, l2="cold"), made("b", 10.0, l2="warm"), made("c", None, "unsupported")]
    (tmp_path / "d").mkdir()
    pq.write_table(to_table(rows), tmp_path / "d" / parquet.DATA)
    told = {"a": "dirty", "b": "warm", "c": None}

    assert dict(open_dataset(tmp_path / "d").con.execute("SELECT backend, l2 FROM rows").fetchall()) == told
    assert {row["backend"]: row["l2"] for row in parquet.read(tmp_path / "d").to_pylist()} == told
    for name in ("cold", "dirty"):
        assert [r["backend"] for r in open_dataset(tmp_path / "d", where={"l2": name}).records("SELECT backend FROM rows")] == ["a"]


def test_a_journal_of_an_older_version_tells_of_dirty_lines_too(tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / parquet.JOURNAL).write_text(to_json(made("a", 10.0, l2="cold")) + "\n")

    assert parquet.read(tmp_path / "d").column("l2").to_pylist() == ["dirty"]


def test_rows_from_before_the_icache_setting_had_warm_ones(tmp_path: Path):
    rows = [made("a", 10.0, l2="cold"), made("b", 10.0, l2="uncontrolled"), made("c", None, "unsupported")]
    table = to_table(rows).drop_columns("icache")
    (tmp_path / "d").mkdir()
    pq.write_table(table, tmp_path / "d" / parquet.DATA)
    told = {"a": "warm", "b": "uncontrolled", "c": None}

    assert dict(open_dataset(tmp_path / "d").con.execute("SELECT backend, icache FROM rows").fetchall()) == told
    assert {row["backend"]: row["icache"] for row in parquet.read(tmp_path / "d").to_pylist()} == told


@pytest.mark.parametrize("without", [["pace"], ["pace", "context"]])
def test_rows_from_before_the_pace_were_taken_in_bursts_but_for_those_of_engines(tmp_path: Path, without: list[str]):
    rows = [made("a", 10.0, context="isolated"), made("b", 10.0, context="step"), made("c", 10.0, context="engine")]
    (tmp_path / "d").mkdir()
    pq.write_table(to_table(rows).drop_columns(without), tmp_path / "d" / parquet.DATA)
    told = {"a": "bursts", "b": "bursts", "c": "bursts" if "context" in without else "sustained"}

    assert dict(open_dataset(tmp_path / "d").con.execute("SELECT backend, pace FROM rows").fetchall()) == told
    assert {row["backend"]: row["pace"] for row in parquet.read(tmp_path / "d").to_pylist()} == told


def test_a_pattern_leaves_out_rule_edges_and_what_is_beside_a_sweep_unless_it_names_nothing_else():
    results = ROOT / "results"
    found = {place.stem for place in local_datasets(str(results / "h200_*"))}

    edges = ["rule_edges", "rule_edges_fa2_keys"]

    assert {"specdec_long_ctx", "study_in_step"} < found and left_out(str(results / "h200_*")) == [
        f"h200_rules/{one}" for one in edges
    ]
    assert not {name for name in found if name.endswith(("_noise", "_check_power")) or "rule_edges" in name}
    for pattern, alone in (("h200_r*s/rule*", edges), ("h200_rules/drawn*", ["drawn_check_power"]), ("h200_rules", edges)):
        assert local_datasets(str(results / pattern)) == [results / "h200_rules" / f"{name}.parquet" for name in alone]
        assert left_out(str(results / pattern)) == []


@pytest.mark.parametrize("name", ["lab_[1]", "lab_*", "lab_?", "lab_1,lab_2"])
def test_a_path_that_exists_is_no_pattern(name: str, tmp_path: Path):
    kept(tmp_path / name, made("a", 10.0))
    kept(tmp_path / f"{name}_noise", *(made("a", 11.0, twin=twin) for twin in (0, 1)))
    kept(tmp_path / "lab_1", made("a", 30.0), made("b", 40.0))

    assert local_datasets(str(tmp_path / name)) == [tmp_path / name]
    assert list(open_dataset(tmp_path / name).current()["median_us"]) == [10.0]
    assert [row["median_us"] for row in selection.read(str(tmp_path / name)).to_dict("records")] == [10.0]
