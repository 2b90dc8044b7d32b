-- Which points never ran? Each family of problems and backend has a grid: all combinations of its batches, drafts and contexts.
-- These are the points of the grids without a row on any device.
WITH ran AS (
    SELECT DISTINCT family, backend, batch_size, s_qo, s_kv
    FROM points
    JOIN problems USING (problem)
), incomplete AS (
    SELECT family, backend, list(DISTINCT batch_size) AS batches, list(DISTINCT s_qo) AS drafts, list(DISTINCT s_kv) AS contexts
    FROM ran
    GROUP BY family, backend
    HAVING count(*) < len(batches) * len(drafts) * len(contexts)
), of_batches AS (
    SELECT family, backend, unnest(batches) AS batch_size, drafts, contexts FROM incomplete
), of_drafts AS (
    SELECT family, backend, batch_size, unnest(drafts) AS s_qo, contexts FROM of_batches
), grid AS (
    SELECT family, backend, batch_size, s_qo, unnest(contexts) AS s_kv FROM of_drafts
)
SELECT *
FROM grid
ANTI JOIN ran USING (family, backend, batch_size, s_qo, s_kv)
WHERE s_qo <= s_kv
