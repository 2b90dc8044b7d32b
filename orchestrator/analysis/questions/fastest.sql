-- Which backend one would run is fastest for each problem? torch_sdpa does not count: it reads a copy of the cache without pages,
-- and the time to make that copy is not measured. `rough`: its time is only known within `rough` (5%).
WITH least AS (
    SELECT problem, min(median_us) AS us, min(own_us) AS own_us, arg_min(shown, (median_us, row)) AS backend,
           arg_min(kernel, (median_us, row)) AS kernel, arg_min_null(rel_err, (median_us, row)) AS rel_err,
           arg_min(rough, (median_us, row)) AS rough
    FROM points
    WHERE status = 'ok' AND NOT is_reference(backend)
    GROUP BY problem
)
SELECT problems.*, backend, kernel, rel_err, us, own_us, rough
FROM least
JOIN problems USING (problem)
