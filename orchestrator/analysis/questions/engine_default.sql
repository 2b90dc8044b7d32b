-- What does an engine's default cost? Its time over that of the best backend of the same problem. torch_sdpa does not count: it
-- reads a copy of the cache. The tables engine_defaults and engine_builds come from analysis/engines.py: where an engine's own build
-- of a library was measured, that one counts.
-- Shapes whose KV cache alone is larger than the GPU's memory (`cache_sizes`) do not count.
-- The regret is of `own_us`, the time without the launch of the graph.
-- `rough` and `best_rough`: that time is only known within `rough` (5%). `measured_as`: the backend whose samples the default has.
WITH times AS (
    SELECT problem, backend, arg_min(shown, (median_us, row)) AS shown, min(median_us) AS us, min(own_us) AS own_us,
           arg_min(kernel, (median_us, row)) AS kernel, arg_min_null(rel_err, (median_us, row)) AS rel_err, arg_min(row, median_us) AS row,
           arg_min(rough, (median_us, row)) AS rough, arg_min_null(measured_as, (median_us, row)) AS measured_as
    FROM points
    WHERE status = 'ok' AND NOT is_reference(backend)
    GROUP BY problem, backend
),
least AS (
    SELECT problem, min(us) AS best_us, min(own_us) AS best_own_us, arg_min(shown, (us, row)) AS best,
           arg_min(kernel, (us, row)) AS best_kernel, arg_min_null(rel_err, (us, row)) AS best_rel_err,
           arg_min(rough, (us, row)) AS best_rough
    FROM times
    GROUP BY problem
),
devices AS (
    SELECT device_name, any_value(split_part(compute_capability, '.', 1))::INT AS major
    FROM rows
    WHERE compute_capability IS NOT NULL
    GROUP BY device_name
)
SELECT problems.*, d.engine, d.name, times.backend AS taken, times.us AS taken_us, times.rel_err AS taken_rel_err, best, best_kernel, best_us, best_rel_err, times.own_us / best_own_us AS regret,
       times.row, times.rough, best_rough, times.measured_as
FROM problems
JOIN devices USING (device_name)
JOIN engine_defaults AS d
    ON d.major = devices.major AND d.routine = problems.routine
    AND coalesce(d.drafts = (s_qo > 1), true) AND coalesce(d.trees = (mask NOT IN ('causal', 'full')), true)
    AND coalesce(d.fp8_cache = (kv_dtype LIKE 'fp8%'), true) AND coalesce(d.equal_dims = (head_dim_qk = head_dim_vo), true)
LEFT JOIN engine_builds AS b ON b.engine = d.engine AND b.stands_in = d.backend
LEFT JOIN times AS own ON own.problem = problems.problem AND own.backend = b.backend
JOIN times ON times.problem = problems.problem AND times.backend = coalesce(own.backend, d.backend)
JOIN least ON least.problem = problems.problem
WHERE problems.problem NOT IN (SELECT problem FROM shapes WHERE too_big)
