-- What does `auto` cost? Its time over that of the best backend. torch_sdpa does not count: it reads a copy of the cache.
-- The regret is of `own_us`, the time without the launch of the graph. `rough`: it is of a time that is only known within 5%.
-- `measured_as`: the backend whose samples `auto` has, since it makes the same call.
WITH choices AS (
    SELECT problem,
           min(median_us) AS best_us,
           arg_min(shown, (median_us, row)) AS best,
           arg_min(kernel, (median_us, row)) AS best_kernel,
           arg_min_null(rel_err, (median_us, row)) AS best_rel_err,
           min(median_us) FILTER (backend = 'auto') AS auto_us,
           min(own_us) FILTER (backend = 'auto') / min(own_us) AS regret,
           arg_min(kernel, median_us) FILTER (backend = 'auto') AS auto_ran,
           arg_min(row, median_us) FILTER (backend = 'auto') AS row,
           arg_min_null(measured_as, median_us) FILTER (backend = 'auto') AS measured_as,
           bool_or(rough) FILTER (backend = 'auto') OR arg_min(rough, (median_us, row)) AS rough
    FROM points
    WHERE status = 'ok' AND NOT is_reference(backend)
    GROUP BY problem
    HAVING auto_us IS NOT NULL
)
SELECT problems.*, auto_us, auto_ran, best, best_kernel, best_us, best_rel_err, regret, row, rough, measured_as
FROM choices
JOIN problems USING (problem)
