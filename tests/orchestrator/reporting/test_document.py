"""mode=document: tables and numbers from datasets in a person's Markdown, and statements that fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.command_line import Invoke
from tests.helpers.compared import dataset, timed

HEAD = "---\ntitle: Which is fastest?\nverdict: fa2_tc\nconfidence: high\nresults: {path}\n---\n"


@pytest.fixture
def slow_and_fast(tmp_path: Path) -> str:
    return dataset(tmp_path / "rows", [timed("fa2_tc", 10.0), timed("trtllm-native", 25.0)])


@pytest.fixture
def rendered(tmp_path: Path, slow_and_fast: str, invoke: Invoke) -> Callable[..., tuple[int, str, str]]:
    """Exit code, output and errors of a document with this body."""

    def of(body: str, *words: str, head: str = HEAD) -> tuple[int, str, str]:
        path = tmp_path / "finding.md"
        path.write_text(head.replace("{path}", slow_and_fast) + body)
        done = invoke("mode=document", f"document={path}", *words)
        return done.returncode, done.stdout, done.stderr

    return of


def test_a_document_prints_its_head_its_text_and_the_command(rendered: Callable[..., tuple[int, str, str]], tmp_path: Path):
    code, text, _ = rendered("Because.\n")

    again = f"Reproduce: `python -m orchestrator mode=document document={tmp_path}/finding.md`."
    assert (code, text) == (0, f"# Which is fastest?\n\n**fa2_tc**\n\nConfidence: high.\n\nBecause.\n\n{again}\n")


def test_a_question_is_the_table_of_the_report(rendered: Callable[..., tuple[int, str, str]], invoke: Invoke, slow_and_fast: str):
    asked = ("mode=report", "question=best", f"results.path={slow_and_fast}", "format=markdown")

    def said(*words: str) -> str:
        return re.sub(r" ?\| ?", "|", invoke(*asked, *words).stdout.strip())  # pages have no spaces between cells

    assert said() in rendered("```question best\n```\n")[1]
    assert said("columns=[backend,median_us]") in rendered("```question best\ncolumns: [backend, median_us]\n```\n")[1]


@pytest.mark.parametrize(
    ("inline", "value"),
    [
        ("count(*) FROM best", "1"),
        ("max(median_us) / min(median_us) FROM points | .2f", "2.50"),
        ("min(median_us), max(median_us) FROM points | .1f", "10.0 to 25.0"),
        ("min(median_us), min(median_us) FROM points | .1f", "10.0"),
        ("backend, count(*) FROM points GROUP BY ALL | tally", "fa2_tc at 1, trtllm-native at 1"),
        ("backend FROM points ORDER BY 1", "fa2_tc, trtllm-native"),
        ("'a' || 'b'", "ab"),
        ("most_often(x) FROM (VALUES ('b'), ('a'), ('b'), ('a'), ('c')) AS t(x)", "a"),
        ("family('flash_attn_3_vllm')", "flash_attn_3"),
        ("0.251 | .0%", "25%"),
        ("NULL", "–"),
        ("count(*) FROM measured WHERE device_name = 'NVIDIA H200'", "2"),
    ],
)
def test_an_expression_becomes_its_value(inline: str, value: str, rendered: Callable[..., tuple[int, str, str]]):
    assert f"\n\nIt is {value}.\n" in rendered(f"It is {{{{ {inline} }}}}.\n")[1]


def test_a_query_is_a_table_over_a_view(rendered: Callable[..., tuple[int, str, str]]):
    view = "```view mine\nSELECT backend, median_us / 10 AS times FROM points\n```\n"
    query = '```sql .1f Times of 10 µs\nSELECT backend, times, times AS "exact|.3f", 1 AS n FROM mine ORDER BY times\n```\n'

    text = rendered(view + query)[1]

    assert "**Times of 10 µs**\n\n|backend|times|exact|n|\n|---|---|---|---|\n" in text
    assert "|fa2_tc|1.0|1.000|1|\n|trtllm-native|2.5|2.500|1|\n" in text


def test_a_block_of_another_language_stays_as_it_is(rendered: Callable[..., tuple[int, str, str]]):
    text = "````markdown\n```sql\nSELECT no_such\n```\n{{ no_such }}\n````\n"

    assert f"\n\n{text}\nReproduce:" in rendered(text)[1]


@pytest.mark.parametrize("head", ["results: {{order: {path}}}", "results: {path}\ntables: {{order: {file}}}"])
def test_a_name_that_sql_has_is_refused(head: str, tmp_path: Path, slow_and_fast: str, invoke: Invoke):
    pq.write_table(pa.table({"us": [3.0]}), tmp_path / "loads.parquet")
    lines = head.format(path=slow_and_fast, file=tmp_path / "loads.parquet")
    (tmp_path / "a.md").write_text(f"---\ntitle: a\nverdict: b\nconfidence: c\n{lines}\n---\n")

    done = invoke("mode=document", f"document={tmp_path}/a.md")

    assert done.returncode == 2
    assert "order: give the " in done.stderr


def test_what_is_false_fails_with_its_line_and_its_values(rendered: Callable[..., tuple[int, str, str]], tmp_path: Path):
    code, text, said = rendered(
        "Words.\n\n```expect\n(SELECT count(*) FROM best) = 1;\n\n(SELECT max(median_us) FROM points) < 20;\nNULL\n```\n"
    )

    assert code == 1
    assert "Words." in text
    assert [line for line in said.splitlines() if line.startswith("error")] == [
        f"error: {tmp_path}/finding.md:12: expected (SELECT max(median_us) FROM points) < 20, found False; "
        "SELECT max(median_us) FROM points is [(25.0,)]",
        f"error: {tmp_path}/finding.md:13: expected NULL, found None",
    ]


def test_several_datasets_are_schemas_and_views_of_all(rendered: Callable[..., tuple[int, str, str]], tmp_path: Path):
    other = dataset(tmp_path / "other", [timed("fa2_tc", 5.0)])
    head = HEAD.replace("{path}", f"\n  h200: {{path}}\n  h100: {other}")
    body = "{{ h200.best.median_us / h100.best.median_us FROM h200.best, h100.best | .1f }}\n{{ dataset FROM best ORDER BY 1 }}\n"

    assert "\n2.0\nh100, h200\n" in rendered(body, head=head)[1]
    assert "\n0.5\nh100, h200\n" in rendered(body, f"results.path=[{other},{tmp_path}/rows]", head=head)[1]
    code, _, said = rendered(body, f"results.path={other}", head=head)
    assert code == 2
    assert "reads 2 datasets, h200, h100; type as many, in this order" in said


def test_a_dataset_may_be_some_of_its_rows(rendered: Callable[..., tuple[int, str, str]], slow_and_fast: str):
    head = HEAD.replace("{path}", f"{{path: {slow_and_fast}, where: {{backend: trtllm-native}}}}")

    assert "\ntrtllm-native\n" in rendered("{{ backend FROM best }}\n", head=head)[1]


def test_another_dataset_of_the_user(rendered: Callable[..., tuple[int, str, str]], tmp_path: Path):
    mine = dataset(tmp_path / "mine", [timed("cudnn", 1.0)])

    text = rendered("{{ backend FROM best }}\n", f"results.path={mine}")[1]

    assert "\ncudnn\n" in text
    assert text.endswith(f"document={tmp_path}/finding.md results.path={mine}`.\n")


def test_a_parquet_file_that_is_no_dataset_is_a_table(rendered: Callable[..., tuple[int, str, str]], tmp_path: Path):
    pq.write_table(pa.table({"load": ["burst"], "us": [3.0]}), tmp_path / "loads.parquet")
    head = HEAD.replace("{path}", f"{{path}}\ntables:\n  loads: {tmp_path}/loads.parquet")

    assert "\nburst\n" in rendered("{{ load FROM loads }}\n", head=head)[1]
    assert "loads.parquet: it cannot be read" in rendered("", head=head.replace("/loads.parquet", "/no/loads.parquet"))[2]


def test_what_rows_say_is_no_markup(tmp_path: Path, invoke: Invoke):
    hostile = "<script>alert(1)</script> [x](javascript:1) | `{{ 1 }}`\x1b[2J"
    rows = dataset(tmp_path / "hostile", [timed(hostile, 1.0)])
    path = tmp_path / "finding.md"
    path.write_text(HEAD.replace("{path}", rows) + "{{ backend FROM points }}\n\n```sql\nSELECT backend FROM points\n```\n")

    text = invoke("mode=document", f"document={path}").stdout
    page = invoke("mode=document", f"document={path}", "format=html").stdout

    assert "\x1b" not in text
    assert "<script" not in text
    assert "](" not in text.replace("]\\(", "")
    assert "{{ 1 }}" in text
    assert "<script" not in page
    assert "href" not in page
    assert page.count("<td>") == 1


@pytest.mark.parametrize(
    "query", ["* FROM read_csv('/etc/hostname')", "* FROM '/etc/hostname'", "* FROM read_text('/etc/hostname')"]
)
def test_a_query_reads_no_file(query: str, rendered: Callable[..., tuple[int, str, str]]):
    code, text, said = rendered(f"{{{{ {query} }}}}\n")

    assert (code, text) == (2, "")
    assert "finding.md:7: " in said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("Words.\n{{ no_such FROM best }}\n", ":8: Binder Error"),
        ("```sql\nSELECT 1\n", ":7: the block is not closed; add a line ```"),
        ("```sql\nSELECT * FROM range(1000)\n```\n", ":7: 1,000 rows; allowed: 200"),
        ("```question best nowhere\n```\n", ":7: dataset: unknown 'nowhere'; allowed: data"),
        ("```question best\nwhere: {s_qo: 9}\n```\n", ":7: where={s_qo: 9}: no row"),
        ("```question best\ncolour: red\n```\n", ":7: colour"),
        ("```view a b\nSELECT 1\n```\n", ":7: view 'a b': it takes a name"),
        ("{{ backend FROM best WHERE false }}\n", ":7: backend FROM best WHERE false: 0 rows; allowed: 1 to 200"),
        ("```expect\nno_such > 1\n```\n", ":8: Binder Error"),
    ],
)
def test_a_block_that_cannot_be_answered_is_named_by_its_line(body: str, words: str, rendered: Callable[..., tuple[int, str, str]]):
    code, text, said = rendered(body)

    assert (code, text) == (2, "")
    assert f"finding.md{words}" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# Words\n", ":1: a document begins with YAML between two lines ---"),
        ("---\ntitle: a\n---\n", ":1: verdict"),
        ("---\ntitle: a\ntitle: b\n---\n", ":3: the key 'title' is in line 2 too"),
    ],
)
def test_a_file_that_is_no_document_says_what_one_is(text: str, words: str, tmp_path: Path, invoke: Invoke):
    (tmp_path / "a.md").write_text(text)

    done = invoke("mode=document", f"document={tmp_path}/a.md")

    assert done.returncode == 2
    assert f"a.md{words}" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "document: mode=document renders one; type document="),
        (("document=a.md", "format=csv"), "format='csv': allowed: 'terminal', 'markdown' or 'html'"),
        (("document=a.md", "question=best"), "question: mode=document does not read it"),
        (("document=no/such.md",), "document=no/such.md: it cannot be read"),
    ],
)
def test_a_wrong_command_says_what_to_type(words: tuple[str, ...], said: str, invoke: Invoke):
    done = invoke("mode=document", *words)

    assert done.returncode == 2
    assert said in done.stderr
