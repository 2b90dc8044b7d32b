"""One answer: both questions, both exports and the page say the same of every committed deployment."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.questions import engine_default, one_backend, open_views
from orchestrator.analysis.questions.deployments import HERE, PLACE, parts
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import selected
from orchestrator.config.modes import owner
from orchestrator.errors import UserError
from orchestrator.formats.engine_config import config_text
from orchestrator.reporting.dashboard.data import deployments
from tests.helpers.datasets import EVERY, RESULTS

NO_FLAG = ("rules", "gated_delta")  # gated delta nets: their engines have no flag for them
FOLDERS = sorted({name.partition("/")[0] for name in EVERY if not any(word in name for word in NO_FLAG)})
TYPED = ("--attention", "--prefill", "--decode", "--dsa", "-ac.")  # how a line with a flag of a backend begins


@pytest.mark.parametrize("folder", FOLDERS)
def test_price_and_advice_are_one(folder: str):
    """The price of a default is recomputed from the rows of `engine_default`; advice is what each command prints."""
    datasets = [name for name in EVERY if name.startswith(f"{folder}/") and owner(RESULTS / name) is None]
    checked = sum(agree(name) for name in datasets if "noise" not in name and "check_power" not in name)

    assert checked > 0


def agree(name: str) -> int:
    """The number of answers of a dataset that were compared."""
    data = open_views(f"{RESULTS / name}.parquet", threads=1)
    found = [part for part in parts(data) if part.who != HERE]
    if not found:
        return 0
    keys = ", ".join((*PLACE, "phase", "engine", "layers"))
    query = f"SELECT {keys}, sum(weight * ln(regret)) / sum(weight), count(*) FROM engine_default GROUP BY ALL"
    prices = {tuple(values): (math.exp(log), count) for *values, log, count in data.execute(query)}
    of_default = {line[:3]: line for line in engine_default.grids(data)[0].cells} if prices else {}
    of_one = {line[:3]: line for line in one_backend.grids(data)[0].cells}
    exported = {engine.title: _export(data, engine) for engine in selected()}
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
        if choice is not None:  # what it runs, and whether that was seen or read
            assert line[4] == choice.runs == pages[line[:3]]["runs"]
            assert choice.known in choice.runs and ("seen on" in choice.known) != ("read" in choice.known)
            assert any(f"{choice.label} runs {choice.runs}: " in one and part.holds in one for one in exported[part.who])
    for engine, lines in exported.items():
        changes = [part for part in found if part.who == engine and part.answer.choice and not part.answer.keeps]
        assert sum(line.startswith(TYPED) for line in lines) == len(changes)
    return len(found)


def _export(data: object, engine: object) -> list[str]:
    try:
        # The flags of all caches, though one of these alone is no comment.
        return config_text(data, engine, Draft(), "d").replace("\n# -", "\n-").splitlines()  # type: ignore[arg-type]
    except UserError:  # no workload of this engine
        return []
