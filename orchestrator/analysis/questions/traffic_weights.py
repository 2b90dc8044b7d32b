"""`traffic=FILE` as weights of the question `one_backend`: how much of the traffic each measured shape stands for.

Traffic says how many decode steps there are at each batch size and context, and not how long drafts are. So each draft length gets
the whole traffic, and so does each other way to serve it: a group is all shapes that differ only in batch_size and s_kv, and its
weights add up to 1. Prompts weigh the shapes with as many query tokens as KV tokens. Chunks of prompts, and batches whose requests
differ in length, are neither: their weight is 0.
"""

from __future__ import annotations

from collections import defaultdict

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import percent
from orchestrator.analysis.traffic import Mix, weights
from orchestrator.tables import Grid

MAX_LISTED = 8  # shapes of a line, those with the most traffic
HEADER = ("kind", "s_qo", "weights: batch × s_kv", "traffic beyond half or twice the nearest s_kv")


def create(data: Dataset, mix: Mix | None, longest_draft: int) -> None:
    """The table `traffic_weights(shape, alike, kind, s_qo, batch_size, s_kv, weight, far)`, from the view `all_shapes`.

    `far` is the share of the group's traffic about which its shapes say little (`Weights.far`). Without traffic the table is empty.
    Shapes that no backend has served take no traffic.
    """
    data.execute("""
        CREATE TEMP TABLE traffic_weights(
            shape UBIGINT, alike UBIGINT, kind VARCHAR, s_qo BIGINT, batch_size BIGINT, s_kv BIGINT, weight DOUBLE, far DOUBLE)""")
    if mix is None:
        return
    served = data.records(f"""
        SELECT DISTINCT shape, kind, alike, s_qo, batch_size, s_kv, s_qo = s_kv AS is_prompt
        FROM all_shapes JOIN problems USING (problem) JOIN points USING (problem)
        WHERE status = 'ok' AND NOT is_reference(backend) AND batch_spec IS NULL AND coalesce(seq_lens, 'fixed') = 'fixed'
            AND (s_qo <= {longest_draft} OR s_qo = s_kv)""")
    groups = defaultdict(list)
    for record in served:
        groups[record["alike"], None if record["is_prompt"] else record["s_qo"]].append(record)
    for (_, s_qo), shapes in groups.items():
        prompts = s_qo is None
        if prompts and not mix.prompts:
            continue
        found = weights(mix, ((r["batch_size"], r["s_kv"]) for r in shapes), prompts=prompts)
        for r in shapes:
            values = [r[key] for key in ("shape", "alike", "kind", "s_qo", "batch_size", "s_kv")]
            weight = found.by_shape[r["batch_size"], r["s_kv"]]
            data.execute("INSERT INTO traffic_weights VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [*values, weight, found.far])


def grids(data: Dataset, mix: Mix) -> list[Grid]:
    """The weights that the answer took, one line for all groups that have the same."""
    found = data.execute("""
        SELECT kind, if(s_qo = s_kv, NULL, s_qo) AS length,
               list((batch_size, s_kv, weight) ORDER BY weight DESC, batch_size, s_kv), far
        FROM traffic_weights
        GROUP BY kind, length, alike, far
        ORDER BY kind, length""")
    lines = ((kind, "prompts" if s_qo is None else str(s_qo), _listed(shapes), percent(far)) for kind, s_qo, shapes, far in found)
    cells = tuple(dict.fromkeys(lines))
    title = "; ".join(["weights of your traffic: the share that each shape stands for", *mix.notes])
    return [Grid(title, HEADER, cells)]


def _listed(shapes: list[tuple[int, int, float]]) -> str:
    """`8 × 8,192: 75%`, for each shape with traffic."""
    words = [f"{batch} × {s_kv:,}: {percent(weight)}" for batch, s_kv, weight in shapes if weight > 0]
    more = f", and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more
