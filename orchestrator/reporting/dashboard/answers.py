"""Answers of questions that the page carries: what it shows first comes from the same queries as the reports.

The page picks shapes and adds up what is there of them (`static/answers.js`), as `questions/choices.py` and
`questions/engine_default.py` do for a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.analysis.engine_flags import DEFAULT_FLAGS, flags_for
from orchestrator.analysis.engines import SGLANG, VLLM
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.choices import HERE, KINDS
from orchestrator.analysis.questions.exactness import named

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.dataset import Dataset


def number_shapes(data: Dataset) -> None:
    """Creates the table `shape_numbers`: a number from 0 for each shape, which a browser holds exactly, unlike a hash."""
    data.execute("""
        CREATE OR REPLACE TEMP TABLE shape_numbers AS
        SELECT shape, row_number() OVER (ORDER BY shape) - 1 AS number FROM (SELECT DISTINCT shape FROM shapes)""")


def tables(data: Dataset, rows: pd.Series) -> dict[str, pd.DataFrame]:
    """The answers `one_backend` and `engine_default` in the columns that the page adds up.

    `shape` is the number of a shape, and `row` the position of a row among `rows`, the numbers of the page's rows in order.
    """
    import pandas as pd

    costs = data.to_arrow("""
        SELECT number AS shape, who, choice, backend AS ran, kernel, regret, rel_err, weight, statuses, major, us, noise_floor,
               rough, best_rough
        FROM one_backend JOIN shape_numbers USING (shape) ORDER BY ALL""").to_pandas()
    of_engines = zip(costs["who"], costs["choice"], costs["major"], strict=True)
    costs = costs.assign(**{name: costs[name].astype(float) for name in ("rough", "best_rough")})
    costs["is_default"] = [float(one in DEFAULT_FLAGS) for one in of_engines]
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
    found = data.execute("SELECT DISTINCT number FROM shapes JOIN shape_numbers USING (shape) WHERE too_big ORDER BY number")
    return [number for (number,) in found]


def engine_choices(data: Dataset) -> list[dict[str, Any]]:
    """What each engine offers for each kind of shape on the devices of the dataset, also what was not measured."""
    majors = [major for (major,) in data.execute("SELECT DISTINCT major FROM one_backend WHERE major IS NOT NULL ORDER BY major")]
    return [
        {"engine": engine, "major": major, "kind": kind, "choices": sorted(flags_for(engine, major, kind))}
        for engine in (VLLM, SGLANG)
        for major in majors
        for kind in KINDS
    ]
