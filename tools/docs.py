"""Every generated page, from documents, rules, datasets and the columns of a row: python -m tools.docs [--check]

--check writes nothing, names the pages that would change, and ends with 1 if there are any. docs/versions.md is not among them: it
installs releases (make versions).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.cli import composed
from orchestrator.config.settings import DocumentSettings, load
from orchestrator.grouped import grouped
from orchestrator.reporting import columns_page, document, support_page
from orchestrator.reporting.document import DECISION, Document, Rendered, Shelf
from tools import dataset_page

ROOT = Path(__file__).parent.parent
SOURCES, PAGES = "findings", "docs/findings"
README = "README.md"
IN_README = ("server_flags", "decode", "cards", "fp8", "fp8_latent", "wrong_answers")


def names() -> list[str]:
    return sorted(path.stem for path in (ROOT / SOURCES).glob("*.md") if path.stem.islower())


def finding(name: str, settings: DocumentSettings, shelf: Shelf) -> tuple[Document, Rendered]:
    """A document over its own datasets. Raises ValueError for what it says that is false."""
    read = document.read(f"{SOURCES}/{name}.md")
    found = document.render(read, settings, opened=shelf)
    if found.failures:
        raise ValueError("\n".join(found.failures))
    return read, found


def decisions(name: str, found: Rendered) -> list[str]:
    """The lines of the table of decisions that a document has. Its confidence is the first word: high, medium or low."""
    sure = re.split(r"\W", found.confidence)[0]
    cells = ((*line, *([sure] if len(line) == len(DECISION) else []), f"[{name}]({name}.md)") for line in found.decisions)
    return [f"|{'|'.join(line)}|" for line in cells]


def index(found: dict[str, tuple[Document, Rendered]]) -> str:
    """docs/findings/README.md: what to take, and a line for each finding."""
    header = (*DECISION, "confidence", "finding")
    chosen = sorted(line for name, (_, one) in found.items() for line in decisions(name, one))
    table = "\n".join((f"|{'|'.join(header)}|", "|" + "-|" * len(header), *chosen))
    lines = "\n".join(f"- [{read.head.title}]({name}.md)\n  {one.verdict}" for name, (read, one) in found.items())
    text = Path(__file__).with_name("findings_page.txt").read_text(encoding="utf-8")
    return text.format(table=table, lines=lines, SOURCES=SOURCES)


def servers(datasets: str) -> list[str]:
    """README's table of servers, from the one on the page of datasets: a line for each model, the TP sizes of each GPU, with a
    star if it has no decode, how many more models have such heads, and what most have."""
    lines = [line.strip("|").split("|") for line in first_table(datasets)[2:]]
    gpus = sorted({gpu for _, _, gpu, *_ in lines})
    cells = [["model", *(f"tp, device={gpu.lower()}" for gpu in gpus), "KV cache"], ["-"] * (2 + len(gpus))]
    for model, of in grouped((model, rest) for model, *rest in lines).items():
        tps = grouped((gpu, tp + "*" * ("0" not in drafts.split(", "))) for tp, gpu, _, drafts, *_ in of)
        caches = grouped((kv_dtype, gpu) for _, gpu, kv_dtypes, *_ in of for kv_dtype in kv_dtypes.split(", "))
        kept = (cache + f" ({on[0].lower()})" * ({*on} < {*tps}) for cache, on in caches.items())  # of one GPU of two
        cells.append([model, *(",".join(tps.get(gpu, "–")) for gpu in gpus), ", ".join(kept)])
    more = {line.strip("|").split("|")[0] for line in first_table(datasets.partition(dataset_page.ALIKE)[2])[2:]} - {
        line[0] for line in lines
    }
    most = re.findall(r"^Mostly measured: .*", datasets, re.MULTILINE)
    return [*(f"|{'|'.join(line)}|" for line in cells), "", f"{len(more)} more models have the same heads; *: drafts only.", *most]


def readme(found: dict[str, tuple[Document, Rendered]], datasets: str) -> str:
    """README with its servers, the lines of findings, and the first table of each finding that it has a place for."""
    lines = [f"|[{found[name][0].head.title}]({PAGES}/{name}.md)|{found[name][1].verdict}|" for name in IN_README]
    text = filled((ROOT / README).read_text(), "servers", servers(datasets))
    text = filled(text, "findings", ("|question|answer|", "|-|-|", *lines))
    for name, (_, one) in found.items():
        text = filled(text, name, first_table(one.text))
    return text


def filled(text: str, name: str, lines: Iterable[str]) -> str:
    """A text with lines in its place of this name, `<!-- name -->` to `<!-- /name -->`; as it is if it has none."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, found, rest = text.partition(begin)
    return before + begin + "\n".join((*lines, "")) + end + rest.partition(end)[2] if found else text


def first_table(text: str) -> list[str]:
    """The lines of the first table of a page, without spaces around its bars."""
    (table,) = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[:1] or [""]
    return [re.sub(r" *\| *", "|", line) for line in table.splitlines()]


def pages() -> Iterator[tuple[str, str]]:
    """Each page and its text, the quick ones first."""
    yield "docs/support.md", support_page.page()
    yield "docs/columns.md", columns_page.page()
    yield "results/README.md", (datasets := dataset_page.page())
    settings, shelf = load(composed(["mode=document", f"document={SOURCES}"])), Shelf()
    found = {name: finding(name, settings, shelf) for name in names()}
    yield from ((f"{PAGES}/{name}.md", one.text) for name, (_, one) in found.items())
    yield f"{PAGES}/README.md", index(found)
    yield README, readme(found, datasets)


def main(*args: str) -> int:
    made = dict(pages())
    there = {str(path.relative_to(ROOT)) for path in (ROOT / PAGES).glob("*.md")}
    stale = [name for name, text in made.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    for name in stale if "--check" not in args else ():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(made[name])
    left = sorted(there - made.keys())
    print("\n".join([*(f"{name} is new" for name in stale), *(f"{name}: no document makes it; delete it" for name in left)]))
    return int("--check" in args and bool(stale or left))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
