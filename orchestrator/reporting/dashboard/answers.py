"""Answers of questions that the page carries: what it shows first comes from the same queries as the reports.

The page picks shapes and adds up what is there of them (`static/answers.js`), as `questions/deployments.py` and
`questions/engine_default.py` do for a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.deployments import HERE
from orchestrator.analysis.questions.exactness import named

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.dataset import Dataset


def number_workloads(data: Dataset) -> None:
    """Creates the table `workload_numbers`: a number from 0 for each shape, which a browser holds exactly, unlike a hash."""
    data.execute("""
        CREATE OR REPLACE TEMP TABLE workload_numbers AS
        SELECT workload, row_number() OVER (ORDER BY workload) - 1 AS number FROM (SELECT DISTINCT workload FROM workloads)""")


def tables(data: Dataset, rows: pd.Series) -> dict[str, pd.DataFrame]:
    """The answers `one_backend` and `engine_default` in the columns that the page adds up.

    `shape` is the number of a shape, and `row` the position of a row among `rows`, the numbers of the page's rows in order.
    """
    import pandas as pd

    costs = data.to_arrow("""
        SELECT number AS shape, who, choice, backend AS ran, kernel, regret, rel_err, weight, status AS statuses, major, us,
               noise_floor, rough, best_rough, is_default
        FROM one_backend JOIN workload_numbers USING (workload)
        WHERE status NOT IN ('not measured', 'not in the engine') ORDER BY ALL""").to_pandas()
    costs = costs.assign(**{name: costs[name].astype(float) for name in ("rough", "best_rough", "is_default")})
    costs["choice"] = costs["choice"].mask(costs["who"] == HERE, costs["choice"].map(shown))
    defaults = data.to_arrow("""
        SELECT row, engine, name, taken, taken_rel_err, best, best_kernel AS kernel, best_rel_err, regret,
               rough OR best_rough AS rough
        FROM engine_default ORDER BY row, engine""").to_pandas()
    position = pd.Series(range(len(rows)), index=rows)
    defaults = defaults.assign(
        row=defaults["row"].map(position), taken=defaults["taken"].map(shown), rough=defaults["rough"].astype(float)
    )
    return {"one_backend": _with_kernel(costs, "ran"), "engine_default": _with_kernel(defaults, "best")}


def _with_kernel(answer: pd.DataFrame, name: str) -> pd.DataFrame:
    """The names of backends with the kernel that they ran, which is no column of its own then."""
    pairs = answer[[name, "kernel"]].astype(object)
    names = [named(backend, _text(kernel)) if isinstance(backend, str) else None for backend, kernel in pairs.to_numpy()]
    return answer.assign(**{name: names}).drop(columns="kernel")


def _text(word: object) -> str | None:
    return word if isinstance(word, str) else None


def too_big(data: Dataset) -> list[int]:
    """The numbers of the shapes whose KV cache is larger than the GPU's memory: they count in no answer for a server."""
    found = data.execute(
        "SELECT DISTINCT number FROM workloads JOIN workload_numbers USING (workload) WHERE too_big ORDER BY number"
    )
    return [number for (number,) in found]


def engine_choices(data: Dataset) -> list[dict[str, Any]]:
    """What each engine offers for each kind of workload on the GPUs of the dataset, also what was not measured."""
    return data.records("""
        SELECT who AS engine, major, phase AS kind, list(DISTINCT choice ORDER BY choice) AS choices
        FROM one_backend WHERE who <> 'backend' AND status <> 'not in the engine' GROUP BY ALL ORDER BY ALL""")
