"""The site without a browser: its pages and links, histories, comparisons, and what becomes of the folder."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from orchestrator import ROOT
from orchestrator.config.exports import Export
from orchestrator.config.settings import SiteSettings, load
from orchestrator.errors import NoRows, UserError
from orchestrator.reporting.dashboard.page import Asset, linked
from orchestrator.reporting.site import build as site_build
from orchestrator.reporting.site import datasets, pairs, target
from orchestrator.reporting.site.build import SiteContent, build
from orchestrator.reporting.site.target import Target
from orchestrator.storage import checksum
from orchestrator.storage.row import Row
from tests.helpers.command_line import Invoke, composed
from tests.helpers.compared import MORNING, NIGHT, dataset, timed
from tests.helpers.datasets import RESULTS

HOSTILE = "<img src=x onerror=alert(1)> & \u202e"
OTHER = {"device_name": "NVIDIA H100", "device_uuid": "GPU-2", "run_id": "r3"}
OLD, NEW = "flashinfer-python 0.7.1", "flashinfer-python 0.7.2"


def at(us: float, when: str, batch: int, library: str, **keys: Any) -> Row:
    libraries = {"libraries": library, "torch_version": "2.11.0", "compute_capability": "9.0", "l2": "clean"}
    found = timed("fa2_tc", us, when, batch_size=batch, q_dtype="bf16", kv_dtype="bf16", rel_err=0.003, **libraries, **keys)
    return {**found, "point_id": f"fa2_tc-{batch}", "p05_us": us * 0.99, "p95_us": us * 1.02}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night with two points, a morning with an upgrade that makes one of them slower, another GPU, and A/A pairs."""
    root = tmp_path_factory.mktemp("results")
    dataset(root / "night", [at(20.0, NIGHT, 1, OLD), at(100.0, NIGHT, 8, OLD, model=HOSTILE)])
    dataset(root / "Morning", [at(30.0, MORNING, 1, NEW, run_id="r2"), at(100.0, MORNING, 8, NEW, run_id="r2", model=HOSTILE)])
    dataset(root / "morning", [at(40.0, MORNING, 1, NEW, **OTHER)])
    dataset(root / "pairs", [at(20.0, NIGHT, 1, OLD, twin=twin) for twin in (0, 1)])
    return root


@pytest.fixture(scope="module")
def made(results: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SiteContent]:
    folder = tmp_path_factory.mktemp("made") / "site"
    return folder, build(str(results), {}, str(folder))


def files(folder: Path) -> dict[str, str]:
    """The text of each page by its address."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.html"))}


def test_every_link_is_relative_and_leads_to_a_file_of_the_site_and_every_page_is_linked(made: tuple[Path, SiteContent]):
    folder, _ = made
    linked_to: set[Path] = set()
    for address, page in files(folder).items():
        here = (folder / address).parent
        found = re.findall(r'(?:href|src)="(?!data:)([^"#]*)', page)
        assert found and not [link for link in found if "://" in link or link.startswith("/")]
        linked_to |= {(here / link).resolve() for link in found}

    assert linked_to == {path.resolve() for path in folder.rglob("*.*") if path.is_file() and path.name != "site.json"}
    assert json.loads((folder / "site.json").read_text())["files"] == sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file() and path.name != "site.json"
    )


def test_the_index_has_a_line_for_each_dataset_with_its_answer(made: tuple[Path, SiteContent]):
    folder, built = made
    index = (folder / "index.html").read_text()
    lines = {line[1]: line[0] for line in re.findall(r"(<tr>\n<td><a href=\"datasets/([\w.-]+)\.html\".*?</tr>)", index, re.DOTALL)}

    assert (built.datasets, built.comparisons, built.histories) == (4, 2, 1)
    assert sorted(lines) == ["morning", "morning.2", "night", "pairs"]
    assert "fa2_tc at 2 of 2 workloads" in lines["night"]
    servers = re.findall(r"<a href=\"(datasets/[\w.-]+\.html)#f\.[^\"]*\">([^<]*)</a></td>\n<td>([^<]*)", index)
    assert sorted(gpu for _, _, gpu in servers) == ["NVIDIA H100", "NVIDIA H200", "NVIDIA H200"]
    assert all(
        word in lines["night"] for word in ("NVIDIA H200", OLD, "torch 2.11.0", "2026-11-20", "2 rows, 2 ok", "night.parquet")
    )
    assert "1 points measured twice" in lines["pairs"]


def test_text_of_a_dataset_is_no_markup(made: tuple[Path, SiteContent]):
    pages = files(made[0])

    assert any("&lt;img src=x" in page for page in pages.values())
    assert not [address for address, page in pages.items() if "<img" in page or "\u202e" in page]
    assert all("default-src 'none'" in page.replace("&#x27;", "'") for page in pages.values())
    assert all("unsafe-inline" not in page for address, page in pages.items() if not address.startswith("datasets/"))


def test_the_history_has_each_point_over_time_those_that_changed_most_first(made: tuple[Path, SiteContent]):
    page = files(made[0])["history/nvidia-h200-fa2_tc.html"]
    lines = [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>\n<td>.*?</tr>", page, re.DOTALL)]

    assert [re.findall(r"batch_size \d", line[0]) for line in lines] == [["batch_size 1"], [], ["batch_size 8"], []]
    assert [line[1] for line in lines] == ["+50.0%", "", "+0.0%", ""]
    assert [line[4:] for line in lines[:2]] == [["20.00", "19.80", "20.40", OLD], ["30.00", "29.70", "30.60", NEW]]  # no A/A pair
    assert "kernel fa2_tc, measured_as –, device_uuid GPU-1, torch_version 2.11.0, cuda –" in page
    assert "<td>+50.0%</td>" in files(made[0])["index.html"]


def test_no_time_of_a_history_is_below_zero_and_rough_ones_come_last(tmp_path: Path):
    (tmp_path / "results").mkdir()
    for name, when, us, run_id in (("night", NIGHT, 20.0, "r1"), ("morning", MORNING, 80.0, "r2")):
        rough = {**at(us, when, 1, OLD, run_id=run_id), "stop_reason": "decided", "ci95_rel": 5.0}
        dataset(tmp_path / "results" / name, [rough, at(us / 20 + 20, when, 8, OLD, run_id=run_id)])
    built = build(str(tmp_path / "results"), {}, str(tmp_path / "site"))
    page = files(tmp_path / "site")["history/nvidia-h200-fa2_tc.html"]

    assert re.findall(r"batch_size (\d)", page) == ["8", "1"] and "<td>~+300.0%</td>" in page
    assert not re.findall(r"<td>-[\d.]+</td>", page) and built.histories == 1
    assert "<td>+14.3%</td>" in files(tmp_path / "site")["index.html"]  # 21 to 24 µs, not the rough one


def test_a_history_of_flashinfers_fa3_says_whose_it_is(tmp_path: Path):
    (tmp_path / "results").mkdir()
    for name, when, run_id in (("night", NIGHT, "r1"), ("morning", MORNING, "r2")):
        row = {**at(20.0, when, 1, OLD, run_id=run_id), "backend": "fa3_chunks", "resolved_backend": "fa3_chunks"}
        dataset(tmp_path / "results" / name, [row])
    build(str(tmp_path / "results"), {}, str(tmp_path / "site"))
    found = files(tmp_path / "site")

    assert "History of fa3_chunks (FlashInfer) on NVIDIA H200" in found["history/nvidia-h200-fa3_chunks.html"]
    assert "fa3_chunks (FlashInfer)</a>" in found["index.html"]


def test_gpus_and_versions_with_common_points_are_compared(made: tuple[Path, SiteContent]):
    pages = files(made[0])
    versions = pages["comparisons/flashinfer-python-0-7-1-to-flashinfer-python-0-7-2-on-nvidia-h200.html"]
    devices = pages["comparisons/nvidia-h100-to-nvidia-h200.html"]

    assert "1 slower" in versions and "+50.00%" in versions
    assert "NVIDIA H200 over NVIDIA H100, best against best:</p>\n<ul>\n<li>q bf16, kv bf16 1.33</li>" in devices.replace(
        "\n</li>", "</li>"
    )
    assert "comparisons/nvidia-h100-to-nvidia-h200.html" in pages["index.html"]


def test_versions_are_compared_in_their_order_also_those_of_environments():
    versions = {"0.10.0": "2026-11-20", "0.9.0": "2026-11-21", "0.9.1": "2026-11-22"}
    of_all = {"device_name": "H200", "torch_version": "2.11.0", "dataset": 0}
    rows = [{**of_all, "libraries": f"x {v}", "env": f"x-{v}", "finished_at": day} for v, day in versions.items()]
    found = pairs.find(pd.DataFrame(rows).reindex(columns=[*datasets.POINT_KEYS, *{**of_all, "libraries": 0, "finished_at": 0}]))

    assert [(count, a.library, b.library) for count, a, b in found] == [(1, "x 0.9.0", "x 0.9.1"), (1, "x 0.9.1", "x 0.10.0")]
    assert pairs._ordered(["x main", "x 1.0"], {"x main": 2, "x 1.0": 1}) == ["x 1.0", "x main"]


def test_the_workflow_of_the_docs_types_what_make_site_does():
    workflow = yaml.safe_load((ROOT / "docs" / "pages.yaml").read_text())
    steps = [step.get("run", step.get("uses")) for step in workflow["jobs"]["publish"]["steps"]]
    (made,) = re.findall(r"^site: .*\n\t\S+ -m orchestrator (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    settings = load(composed(*made.split()))

    assert isinstance(settings, SiteSettings)
    assert (settings.export, settings.results.path, settings.document) == (Export("site", "public"), "results", "docs")
    assert steps.index(f"attention-orchestrator {made}") < steps.index("actions/upload-pages-artifact@v3")
    assert "/public/\n" in (ROOT / ".gitignore").read_text()


def test_files_without_a_checksum_are_told_together(capsys: pytest.CaptureFixture[str]):
    with checksum.noted_together():
        for files in (["a", "b"], ["b"], []):
            checksum.note_unsealed(files)
        assert capsys.readouterr().err == ""

    assert capsys.readouterr().err.startswith("note: a and 1 more files: they have no checksum")


def test_the_parquet_file_is_the_dataset(made: tuple[Path, SiteContent], results: Path):
    copied, own = (pd.read_parquet(path)["median_us"].tolist() for path in (made[0] / "data/night.parquet", results / "night"))
    assert copied == own == [20.0, 100.0]


def test_a_repeated_run_gives_the_same_bytes(made: tuple[Path, SiteContent], results: Path, tmp_path: Path):
    build(str(results / "night"), {}, str(tmp_path / "again"))
    again = {path.relative_to(tmp_path / "again"): path.read_bytes() for path in (tmp_path / "again").glob("da*/*")}

    assert len(again) == 2
    assert again == {path: (made[0] / path).read_bytes() for path in again}


def written(folder: Path, **content: str) -> int:
    """A run that writes these files into the folder `data`. Returns the size of the site."""
    site = Target(str(folder))
    site.claim(str(folder))
    for name, text in content.items():
        site.write(f"data/{name}", text)
    return site.finish()


def test_a_repeated_run_makes_only_what_changed(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    real = site_build.open_views
    monkeypatch.setattr(site_build, "open_views", lambda place, **given: opened.append(Path(place).name) or real(place, **given))
    shutil.copytree(results, tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "morning")  # of another GPU, whose comparison takes as long as that of two versions
    folder, there = tmp_path / "site", str(tmp_path / "results")

    def again(**where: Any) -> tuple[list[str], SiteContent]:
        opened.clear()
        return opened, build(there, where, str(folder))

    first = again()[1]
    before = files(folder)
    assert first.comparisons == 1 and len(opened) == 3 and again() == ([], first) and files(folder) == before
    (folder / "datasets" / "night.html").write_text("edited")
    assert again() == (["night"], first) and files(folder) == before
    shutil.rmtree(tmp_path / "results" / "pairs")
    dataset(tmp_path / "results" / "pairs", [at(21.0, NIGHT, 1, OLD, twin=twin) for twin in (0, 1)])
    assert again()[0] == ["pairs"]
    shutil.rmtree(tmp_path / "results" / "Morning")  # which is compared, so that building it takes longer
    assert again(s_kv=8192)[0] == ["night", "pairs"]  # other rows
    monkeypatch.setattr(site_build, "_code", lambda: "edited")
    assert again()[0] == ["night", "pairs"]


def test_a_run_replaces_what_differs_removes_what_is_gone_and_leaves_what_is_not_ours(tmp_path: Path):
    folder, outside = tmp_path / "site", tmp_path / "outside"
    written(folder, a="1", b="2", c="3")
    (folder / "CNAME").write_text("example.org")
    for left in (folder, folder / "data"):
        (left / ".0123456789abcdef.part").write_text("of a run that was killed")
    outside.write_text("mine")
    for name in ("b", "c"):
        (folder / "data" / name).unlink()
        (folder / "data" / name).symlink_to(outside)
    manifest = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps({**manifest, "files": [*manifest["files"], "../outside", "CNAME/..", "/etc/x"]}))
    before = (folder / "data" / "a").stat().st_mtime_ns

    assert written(folder, a="1", b="22") == 3
    assert {path.name: path.is_symlink() for path in (folder / "data").iterdir()} == {"a": False, "b": False, "c": True}
    assert (folder / "data" / "b").read_text() == "22" and (folder / "data" / "a").stat().st_mtime_ns == before
    assert outside.read_text() == "mine" and sorted(path.name for path in folder.iterdir()) == ["CNAME", "data", "site.json"]


def test_no_link_is_followed_out_of_the_folder_and_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, outside = tmp_path / "site", tmp_path / "outside"
    written(folder)
    outside.mkdir()
    (folder / "data").symlink_to(outside)
    with pytest.raises(UserError, match=r"data/a cannot be written \(its folder is a link; remove it\)"):
        written(folder, a="1")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UserError, match="it is a symbolic link; type export=DIR"):
        written(tmp_path / "link")
    monkeypatch.setattr(target, "MAX_BYTES", 10)
    with pytest.raises(UserError, match="the site has more than 1e-08 GB; name fewer datasets"):
        written(tmp_path / "large", a="1" * 11)

    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("README.md", "it is a file; type export=DIR"),
        ("docs", "it holds files that are not a site's"),
        ("results/h200_engines/flex_attention/site", "it is in the dataset .*results/h200_engines/flex_attention"),
        ("nowhere/at/all", r"it cannot be written \(No such file or directory\)"),
    ],
)
def test_a_folder_that_is_not_a_site_s_is_refused(folder: str, words: str):
    before = sorted((ROOT / "docs").iterdir())
    with pytest.raises(UserError, match=words):
        build(str(RESULTS / "h200_engines/flex_attention"), {}, str(ROOT / folder))

    assert sorted((ROOT / "docs").iterdir()) == before and not (ROOT / folder / "site.json").exists()


def test_the_command_needs_a_folder_and_reads_no_question(invoke: Invoke):
    done = [invoke("mode=site", "results.path=results/h200_*", *keys) for keys in ([], ["export=x", "question=best"])]

    assert [one.returncode for one in done] == [2, 2]
    assert done[0].stderr.startswith("error: export: mode=site writes a folder; type export=DIR")
    assert done[1].stderr.startswith("error: question: mode=site does not read it")


def test_a_site_says_what_it_does_and_has_an_index_from_the_first_dataset_on(results: Path, tmp_path: Path):
    said: list[str] = []

    def stop(words: str) -> None:
        said.append(words)
        if words.startswith("2 of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(str(results), {}, str(tmp_path / "site"), stop)

    assert said == ["1 of 4 datasets: Morning", "2 of 4 datasets: morning"]
    assert "datasets/morning.html" in (tmp_path / "site" / "index.html").read_text()
    assert build(str(results), {}, str(tmp_path / "site")).datasets == 4


def test_the_documents_of_a_folder_are_pages_and_their_links_lead_on(results: Path, tmp_path: Path):
    built = build(str(results / "night"), {}, str(tmp_path / "site"), document=str(ROOT / "docs"))
    pages = files(tmp_path / "site")
    found = {address: page for address, page in pages.items() if address.startswith("documents/")}
    links = [(address, *link) for address, page in found.items() for link in re.findall(r'href="([^"#]*)(?:#([^"]*))?"', page)]
    here = [
        (address, posixpath.normpath(f"documents/{to}") if to else address, part) for address, to, part in links if ":" not in to
    ]

    assert built.datasets == 1 and len(found) == len(list((ROOT / "docs").rglob("*.md"))) > 40
    assert all(f'<a href="{address}">' in pages["index.html"] for address in found)
    assert "documents/findings-fp8.html" in {to for _, to, _ in here} and len([part for *_, part in here if part]) > 40
    assert [link for link in here if link[1] not in pages and not link[1].endswith((".css", "site.json"))] == []
    assert [link for link in here if link[2] and f'id="{link[2]}"' not in pages[link[1]]] == []


def test_a_document_keeps_links_to_the_web_and_the_text_of_all_others(results: Path, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# A <b>\n\nSee [`x[1]`](b.md#c), ![a plot](p.png), [w](https://x.org/y), [f](../f.md), [g](#h)"
    )
    (tmp_path / "docs" / "b.md").write_text("# B\n\nWhat?\n\n## C: `a`, b\n")
    folder = tmp_path / "site"
    built = [build(str(results / "night"), {}, str(folder), document=str(tmp_path / "docs")) for _ in range(2)]
    pages = files(folder)
    a = pages["documents/a.html"]

    assert built[0] == built[1] and "A &lt;b&gt;</h1>" in a
    assert (
        '<p>See <a href="b.html#c"><code>x[1]</code></a>, a plot, <a href="https://x.org/y">w</a>, f, <a href="#h">g</a></p>' in a
    )
    assert '<h2 id="c-a-b">' in pages["documents/b.html"]
    assert "<td>What?</td>" in pages["index.html"]
    build(str(results / "night"), {}, str(folder))
    assert not [address for address in files(folder) if address.startswith("documents/")]
    with pytest.raises(UserError, match=r"document='\S+none': mode=site takes a folder with Markdown files, such as document=docs"):
        build(str(results / "night"), {}, str(folder), document=str(tmp_path / "none"))


def test_where_chooses_rows_and_datasets(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    built = build(f"{results}/?orning", {"device_name": "NVIDIA H100"}, str(tmp_path / "site"))

    assert (built.datasets, built.without_rows, built.comparisons, built.histories) == (1, 1, 0, 0)
    with pytest.raises(NoRows, match="no dataset there has rows with these values"):
        build(str(results / "night"), {"device_name": "none"}, str(tmp_path / "site"))
    monkeypatch.setattr(datasets, "MAX_DATASETS", 2)
    with pytest.raises(UserError, match=r"4 datasets; a site holds 2; type a narrower pattern"):
        build(str(results), {}, str(tmp_path / "site"))


def test_a_linked_page_that_lost_a_place_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrator.reporting.dashboard.page.static", lambda name: "<html></html>")
    with pytest.raises(AssertionError, match=r"page\.html"):
        linked(b"", "x", dict.fromkeys(("style", "echarts", "app"), Asset("a", "")), "..", "index.html")


def test_names_of_files_differ_and_are_plain():
    names = datasets.Names("dataset")
    found = [names.new(words) for words in ("X y", "x_y", "x-y", "ÄÖ", "…", "../../etc")]

    assert found == ["x-y", "x_y", "x-y.2", "dataset", "dataset.2", "etc"]
