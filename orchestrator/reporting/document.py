"""A person's Markdown with the answers of datasets in it: blocks of questions and SQL become tables, `{{ }}` becomes numbers.

docs/dashboard.md has its head, its blocks and its schemas. What rows say is no SQL, no path and no markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from orchestrator.analysis.connection import Connection
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import of_references
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.questions.deployments import create_decisions
from orchestrator.analysis.questions.tables import formatted, in_form
from orchestrator.analysis.sql import literal, query
from orchestrator.config.base import Frozen, Scalar
from orchestrator.config.parts import Results
from orchestrator.config.ranges import Filter
from orchestrator.config.settings import AskSettings, DocumentSettings, Settings
from orchestrator.errors import UserError, explain, unknown
from orchestrator.reporting import records, report
from orchestrator.tables import markdown
from orchestrator.untrusted import yaml
from orchestrator.untrusted.files import open_to_read, read_text
from orchestrator.untrusted.text import for_markdown

MAX_ROWS = 200  # of a table, and of the values of {{ }}
NAME = re.compile(r"[A-Za-z_]\w*")
IDENTIFIER = re.compile(r"'(?:[^']|'')*'|--[^\n]*|(?:([A-Za-z_]\w*)\s*\.\s*)?([A-Za-z_]\w*)")
HEADING = re.compile(r"<h([2-6])>(.*?)</h\1>")
NO_ANCHOR = re.compile(r"<[^>]*>|&\w+;|[^\w\- ]")  # of a title, in what hosts of Git repositories call its section
FENCE = re.compile(r"(`{3,}) *(\w*)([^`]*)")
INLINE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
SPEC = re.compile(r"\s\|\s*([^|'\"]+?)\s*$")
FORM = re.compile(r"[-+,.\d]*[fdeg%]")  # a format of Python
SUBQUERY = re.compile(r"\(\s*(?:SELECT|FROM|WITH)\b", re.IGNORECASE)
VIEWS = "SELECT view_name FROM duckdb_views() WHERE NOT internal UNION SELECT table_name FROM duckdb_tables()"


def _sources(given: Any) -> Any:
    """Datasets by name: one without a name is called `data`, and one without rows to choose is a path."""
    alone = isinstance(given, str | list) or (isinstance(given, dict) and set(given) <= set(Source.model_fields))
    named = {"data": given} if alone else given
    if not isinstance(named, dict):
        return given
    return {name: {"path": source} if isinstance(source, str | list) else source for name, source in named.items()}


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Source(Results):
    """A dataset, or several folders that are read as one, and which of its rows count."""

    where: Filter = Field(default_factory=dict)


class Head(Frozen):
    """What a document begins with.

    `title` is its question, `verdict` the answer in a line and `confidence` how sure that is. `results` are datasets, one or
    several by name, and `tables` the paths of other Parquet files. `where` chooses rows of all datasets. `measure` is the
    command that measures the rows. `decide` are lines of a table of decisions, of the values that `DECISION` names, with the
    confidence of that line if it is not the document's.
    """

    title: str
    verdict: str
    confidence: str
    results: Annotated[dict[Name, Source], BeforeValidator(_sources)]
    tables: dict[Name, str] = Field(default_factory=dict)
    where: Filter = Field(default_factory=dict)
    measure: str | None = None
    decide: tuple[tuple[Scalar, ...], ...] = ()


DECISION = ("GPU", "cache", "query tokens", "batch", "use", "instead of", "gain")


@dataclass(frozen=True)
class Document:
    """A document that was read: its head, the text behind it, and the line of the file at which that begins."""

    path: str
    head: Head
    body: str
    line: int


@dataclass(frozen=True)
class Rendered:
    """A document as Markdown, the cells of its lines of decisions, and what it says that is false."""

    text: str
    verdict: str
    confidence: str
    decisions: tuple[tuple[str, ...], ...]
    failures: tuple[str, ...]


def read(path: str) -> Document:
    """The document of a file. Raises UserError for a file that is no document, by line."""
    text = read_text(path, "document")
    begin, head, body = ("", "", "")
    if text.startswith("---\n"):
        begin, _, rest = text.partition("\n")
        head, end, body = rest.partition("\n---\n")
        begin = begin if end else ""
    if not begin:
        raise UserError(f"{path}:1: a document begins with YAML between two lines ---: title, verdict, confidence, results")
    try:
        parsed = Head.model_validate(yaml.load("\n" + head, path))
    except ValidationError as error:
        raise UserError(f"{path}:1: {explain(error)}") from None
    return Document(path, parsed, body, head.count("\n") + 4)


def render(document: Document, settings: DocumentSettings, results: str | None = None, opened: Shelf | None = None) -> Rendered:
    """The document over its datasets, or over those of `results`. Raises UserError for a block that cannot be answered, by line."""
    sources = _chosen(document, results)
    shelf = opened if opened is not None else Shelf()
    datasets = {name: shelf.open(source) for name, source in sources.items()}
    return _Writer(document, settings, sources, AllViews(datasets, document.head.tables)).rendered(results)


def html(text: str, title: str) -> str:
    """A page of HTML from rendered Markdown, in which no HTML of the text has an effect."""
    from html import escape

    style = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto}td,th{border:1px solid #ccc;padding:.2em .6em}"
    style += "table{border-collapse:collapse}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head>\n<body>\n{html_body(text)}</body></html>\n"
    )


def html_body(text: str) -> str:
    """What is between the tags of a page's body. Text cannot define where the links of other text lead; headings are targets."""
    from markdown_it import MarkdownIt

    body = str(MarkdownIt("commonmark", {"html": False}).enable("table").disable("reference").render(text))
    return HEADING.sub(lambda of: f'<h{of[1]} id="{NO_ANCHOR.sub("", of[2].lower()).replace(" ", "-")}"{of[0][3:]}', body)


def _chosen(document: Document, results: str | None) -> dict[str, Source]:
    """Each dataset, with the path that `results` has for it in the order of the document's names, and the rows that count."""
    named = document.head.results
    given = [source.path for source in named.values()] if results is None else [results] if len(named) == 1 else results.split(",")
    if len(given) != len(named):
        raise UserError(
            f"results.path={results}: {document.path} reads {len(named)} datasets, {', '.join(named)}; type as many, in this order"
        )
    return {
        name: Source(path=path, where={**document.head.where, **source.where})
        for path, (name, source) in zip(given, named.items(), strict=True)
    }


@contextmanager
def at(place: str) -> Iterator[None]:
    """Turns what DuckDB says of a query into a UserError that names the place."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise UserError(f"{place}: {error}") from None


class Shelf:
    """Datasets that are open, so that several documents open each of them once."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Dataset] = {}

    def open(self, source: Source) -> Dataset:
        key = (source.path, repr(source.where))
        if key not in self._open:
            self._open[key] = open_views(source.path, where=source.where)
        return self._open[key]


class AllViews(Connection):
    """The views of several datasets in one connection that reads no file. A view is copied when a query first names it."""

    def __init__(self, datasets: Mapping[str, Dataset], tables: Mapping[str, str]) -> None:
        super().__init__([], threads=1)
        self.datasets = dict(datasets)
        self.known = {
            name: {"measured", "decisions", *data.later, *(v for (v,) in data.execute(VIEWS))}
            for name, data in self.datasets.items()
        }
        self._there: set[tuple[str, str]] = set()
        self._own: set[str] = set(tables)
        self.con.execute("SET enable_external_access = false")
        for name in self.datasets:
            with at(f"results: {name}: give the dataset another name"):
                self.execute(f"CREATE SCHEMA {name}")
        self.execute(f"CREATE MACRO is_reference(backend) AS regexp_matches(backend, {literal(of_references())})")
        # Of equal counts the first by name, so that a page does not depend on how rows are read.
        self.execute(
            "CREATE MACRO most_often(x) AS list_sort(list_transform(map_entries(histogram(x)), "
            "lambda e: {'n': -e.value::BIGINT, 'x': e.key}))[1].x"
        )
        self.execute("CREATE MACRO family(backend) AS if(backend LIKE 'flash_attn_3%', 'flash_attn_3', backend)")
        for name, path in tables.items():
            with at(f"tables: {name}: give the table another name"):
                self._copy(name, _parquet(path))
        self.con.execute("SET lock_configuration = true")

    def ask(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and rows of a query. Raises duckdb.Error for one that is wrong."""
        self._load(query)
        relation = self.con.sql(query)
        if relation is None:
            raise UserError("this is no query; type SELECT ... or FROM ...")
        return relation.columns, relation.fetchall()

    def define(self, name: str, query: str) -> None:
        self._load(query)
        self._own.add(name)
        self.execute(f"CREATE TABLE {name} AS {query}")

    def _load(self, query: str) -> None:
        """Copies the views that a query names, of the dataset before the point or of all."""
        for schema, name in IDENTIFIER.findall(query):
            if schema in self.datasets:
                self._load_one(schema, name)
            elif name not in self._own and any(name in known for known in self.known.values()):
                self._own.add(name)
                for dataset in self.datasets:
                    self._load_one(dataset, name)
                parts = [
                    f"SELECT {literal(dataset)} AS dataset, * FROM {dataset}.{name}"
                    for dataset in self.datasets
                    if name in self.known[dataset]
                ]
                self.execute(f"CREATE VIEW main.{name} AS {' UNION ALL BY NAME '.join(parts)}")

    def _load_one(self, dataset: str, name: str) -> None:
        if (dataset, name) in self._there or name not in self.known[dataset]:
            return
        self._there.add((dataset, name))
        data = self.datasets[dataset]
        if name == "decisions":
            create_decisions(data)
        columns = dict(data.execute(f"SELECT column_name, column_type FROM (DESCRIBE {'current' if name == 'measured' else name})"))
        source = f"FROM {name}"
        if name == "measured":
            source = query("measured", samples=", ".join(name for name, kind in columns.items() if kind.endswith("[]")))
        self._copy(f"{dataset}.{name}", data.to_arrow(f"{source}{' ORDER BY row' if 'row' in columns else ''}"))

    def _copy(self, name: str, table: Any) -> None:
        self.con.register("copied", table)
        self.execute(f"CREATE TABLE {name} AS FROM copied")
        self.con.unregister("copied")


def _parquet(path: str) -> Any:
    """A Parquet file that is no dataset. Raises UserError if it cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with open_to_read(path) as file:
            return parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"tables: {path}: it cannot be read ({error}); name a Parquet file") from None


class _Writer:
    """Renders one document."""

    def __init__(self, document: Document, settings: DocumentSettings, sources: Mapping[str, Source], answers: AllViews) -> None:
        self.document, self.settings, self.sources, self.answers = document, settings, sources, answers
        self.failures: list[str] = []

    def rendered(self, results: str | None) -> Rendered:
        head = self.document.head
        body = "".join(self._parts()).strip("\n")
        verdict, confidence = self._inline(head.verdict, 1), self._inline(head.confidence, 1)
        decisions = tuple(self._decision(line) for line in head.decide)
        again = f"python -m orchestrator mode=document document={self.document.path}"
        again += "" if results is None else f" 'results.path=[{results}]'" if "," in results else f" results.path={results}"
        measure = f"\nMeasure again: `{head.measure}`." if head.measure else ""
        text = f"# {head.title}\n\n**{verdict}**\n\nConfidence: {confidence}.\n\n{body}\n\nReproduce: `{again}`.{measure}\n"
        return Rendered(re.sub(r"\n{3,}", "\n\n", text), verdict, confidence, decisions, tuple(self.failures))

    def _decision(self, line: Sequence[Scalar]) -> tuple[str, ...]:
        if len(line) not in (len(DECISION), len(DECISION) + 1):
            raise self._wrong(1, f"decide: a line has {len(line)} values; it takes {len(DECISION)}: {', '.join(DECISION)}")
        return tuple(self._inline(str(cell), 1) for cell in line)

    def _parts(self) -> Iterator[str]:
        """The text between blocks, with its values, and what each block prints. Blocks of other languages stay as they are."""
        prose: list[str] = []
        number, lines = self.document.line, self.document.body.split("\n")
        while lines:
            found = FENCE.fullmatch(lines[0])
            if not found:
                prose.append(lines.pop(0))
                number += 1
                continue
            yield self._inline("\n".join([*prose, ""]), number - len(prose))
            if found[1] not in lines[1:]:
                raise self._wrong(number, f"the block is not closed; add a line {found[1]}")
            end = lines.index(found[1], 1)
            if found[2] in BLOCKS:
                yield self._block(found[2], found[3].strip(), "\n".join(lines[1:end]), number)
            else:
                yield "\n".join([*lines[: end + 1], ""])
            lines, prose, number = lines[end + 1 :], [], number + end + 1
        yield self._inline("\n".join(prose), number - len(prose))

    def _block(self, kind: str, argument: str, body: str, line: int) -> str:
        try:
            return BLOCKS[kind](self, argument, body, line)
        except UserError as error:
            raise error if str(error).startswith(f"{self.document.path}:") else self._wrong(line, str(error)) from None

    def _question(self, argument: str, body: str, line: int) -> str:
        """The tables of a question over one dataset."""
        question, _, dataset = argument.partition(" ")
        name = dataset.strip() or next(iter(self.sources))
        if name not in self.sources:
            raise UserError(unknown("dataset", name, self.sources))
        source = self.sources[name]
        typed = {"where": {}, **(yaml.load("\n" * line + body, self.document.path) or {})}
        tables, typed["where"] = typed.pop("tables", None), {**source.where, **typed["where"]}
        base = {field.alias or key: getattr(self.settings, key) for key, field in Settings.model_fields.items()}
        chosen = {"mode": "report", "question": question, "results": {"path": source.path}}
        try:
            settings = AskSettings.model_validate({**base, **typed, **chosen})
        except ValidationError as error:
            raise UserError(explain(error)) from None
        grids = [records.short_table(settings)] if settings.columns else report.dataset_grids(settings, question)
        return markdown([grid for grid in grids if grid.cells][:tables], "|") + "\n"

    def _sql(self, argument: str, body: str, line: int) -> str:
        """The table of a query, whose numbers have the form that their column or the block names."""
        form, _, title = argument.partition(" ")
        if not FORM.fullmatch(form):
            form, title = "", argument
        columns, rows = self._ask(body, line)
        if len(rows) > MAX_ROWS:
            raise UserError(f"{len(rows):,} rows; allowed: {MAX_ROWS}, add a LIMIT or a WHERE")
        table = markdown([formatted(title or "-", columns, rows, form)], "|")
        return (table if title else table.partition("\n\n")[2]) + "\n"

    def _view(self, argument: str, body: str, line: int) -> str:
        if not NAME.fullmatch(argument):
            raise UserError(f"view {argument!r}: it takes a name of letters, digits and _")
        with at(f"{self.document.path}:{line}"):
            self.answers.define(argument, body)
        return ""

    def _expect(self, argument: str, body: str, line: int) -> str:
        """Notes each statement that is not true, with the values of its queries."""
        at = line + 1
        for statement in body.split(";"):
            text = statement.strip()
            start = at + statement[: len(statement) - len(statement.lstrip())].count("\n")
            at += statement.count("\n")
            if text and (found := self._ask(f"SELECT ({text})", start)[1][0][0]) is not True:
                values = "".join(f"; {part} is {self._ask(part, start)[1]}" for part in _subqueries(text))
                self.failures.append(f"{self.document.path}:{start}: expected {' '.join(text.split())}, found {found}{values}")
        return ""

    def _inline(self, text: str, line: int) -> str:
        """Prose with the values of its `{{ }}`."""
        return INLINE.sub(lambda found: self._value(found[1], line + text[: found.start()].count("\n")), text)

    def _value(self, text: str, line: int) -> str:
        spec = SPEC.search(text)
        query, form = (text[: spec.start()], spec[1]) if spec else (text, "")
        starts = re.match(r"\s*(SELECT|WITH|FROM)\b", query, re.IGNORECASE)
        _, rows = self._ask(query if starts else f"SELECT {query}", line)
        if not rows or len(rows) > MAX_ROWS:
            raise self._wrong(line, f"{query.strip()}: {len(rows):,} rows; allowed: 1 to {MAX_ROWS}")
        if form != "tally":
            return for_markdown(", ".join(_span(row, form) for row in rows))
        most_first = sorted(rows, key=lambda row: (-row[1], str(row[0])))
        return for_markdown(", ".join(f"{in_form(name)} at {count:,}" for name, count in most_first))

    def _ask(self, query: str, line: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        with at(f"{self.document.path}:{line}"):
            return self.answers.ask(query)

    def _wrong(self, line: int, words: str) -> UserError:
        return UserError(f"{self.document.path}:{line}: {words}")


BLOCKS = {"question": _Writer._question, "sql": _Writer._sql, "view": _Writer._view, "expect": _Writer._expect}


def _subqueries(text: str) -> list[str]:
    """The queries in brackets that an expression compares, outermost first."""
    found, begin = [], 0
    while start := SUBQUERY.search(text, begin):
        depth, end = 0, start.start()
        for end in range(start.start(), len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if not depth:
                break
        found.append(text[start.start() + 1 : end])
        begin = end + 1
    return found


def _span(row: Sequence[Any], form: str) -> str:
    """`1.30 to 3.80`; one of them if both ends read alike."""
    return " to ".join(dict.fromkeys(in_form(value, form) for value in row))
