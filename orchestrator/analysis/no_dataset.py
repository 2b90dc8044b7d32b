"""What to say of a path that holds no dataset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from orchestrator.analysis.sources import nearest_dataset
from orchestrator.config.modes import owner
from orchestrator.storage import access, parquet

MAX_NAMED = 6  # datasets that an error lists
BELOW = ("*/*.parquet", f"*/*/{parquet.DATA}")  # how deep datasets are looked for
RUN = "run a sweep first: python -m orchestrator +sweep=NAME"


def no_dataset(path: str) -> str:
    """What is wrong with `results.path=PATH`, which has no rows, and what to type; of a folder, the datasets below it."""
    given = f"results.path={path!r}"
    if access.in_objects(path) or not Path(path).is_dir() or access.exists(path):
        return f"{given}: no rows there;{nearest_dataset(path)} {RUN}"
    what = f"{given}: this folder holds no dataset; a dataset is a folder with {parquet.DATA}"
    below = _below(Path(path))
    if not below:
        return f"{what}, and none lies below it;{nearest_dataset(path)} type results.path=DIR with a dataset, or {RUN}"
    named = ", ".join(below[:MAX_NAMED])
    more = f", and {len(below) - MAX_NAMED} more" if len(below) > MAX_NAMED else ""
    several = f", or 'results.path={Path(path)}/*' for those directly below it" if _directly_below(path, below) > 1 else ""
    return f"{what}; below it: {named}{more}; type results.path={below[0]}{several}"


def _below(folder: Path) -> list[str]:
    """The datasets and the folders of Parquet files in a folder, and the datasets in its folders; companions come last."""
    found = {file.parent for file in chain.from_iterable(folder.glob(pattern) for pattern in BELOW)}
    return [str(place) for place in sorted(found, key=lambda place: (owner(place) is not None, place))]


def _directly_below(path: str, datasets: Sequence[str]) -> int:
    return sum(Path(dataset).parent == Path(path) for dataset in datasets)
