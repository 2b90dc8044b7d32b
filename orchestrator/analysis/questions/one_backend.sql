-- What does one choice for all shapes cost at each of them? A row for each shape and each choice that could serve it.
-- A shape is a problem whatever the dtype of its queries: over an FP8 cache some backends round the queries to FP8 and others do not,
-- and that comes with the choice. For one or a few query tokens a choice may also run in the decode or in the prefill routine.
-- `kind`: decode, verify (2 to 64 query tokens), chunked prefill (more, over pages), prefill (without pages), MLA.
-- `who` is an engine, whose choices are its flags (`engine_flags`), or `backend`, whose choices are the backends here.
-- `regret` is of `own_us`, the time without the launch of the graph. It is null if the choice has no time there; `statuses` says why.
-- `noise_floor` is that of the choice's time there.
-- `rough` and `best_rough`: the choice's time, or the best's, is only known within `rough` (5%).
-- `measured_as`: the backend whose samples the choice has there.
-- A choice without a row at a shape was not measured there, and has none here.
-- torch_sdpa does not count: it reads a copy of the cache. Shapes without a weight (`weights`) are left out,
-- and shapes whose KV cache alone is larger than the GPU's memory (`cache_sizes`).
WITH shaped AS (
    SELECT points.*, shape, kind, weight, problems.routine, q_dtype, s_qo, mask, problems.device_name
    FROM points
    JOIN problems USING (problem)
    JOIN shapes USING (problem)
    WHERE NOT is_reference(backend) AND weight > 0
), least AS (
    SELECT shape, arg_min(shown, (median_us, row)) AS best, arg_min(kernel, (median_us, row)) AS best_kernel, min(median_us) AS best_us,
           arg_min(own_us, (median_us, row)) AS best_own_us, arg_min_null(rel_err, (median_us, row)) AS best_rel_err,
           arg_min(rough, (median_us, row)) AS best_rough
    FROM shaped
    WHERE status = 'ok'
    GROUP BY shape
), majors AS (
    SELECT device_name, any_value(split_part(compute_capability, '.', 1))::INT AS major
    FROM rows
    WHERE compute_capability IS NOT NULL
    GROUP BY device_name
), offered AS (
    SELECT shaped.*, 'backend' AS who, backend || if(q_dtype LIKE 'fp8%', ' with FP8 queries', '') AS choice
    FROM shaped
    WHERE kernel <> 'auto' OR backend <> 'auto'
    UNION ALL
    SELECT shaped.*, engine, flags
    FROM shaped
    JOIN majors USING (device_name)
    JOIN engine_flags AS e
        ON e.major = majors.major AND e.routine = shaped.routine AND e.backend = shaped.backend AND coalesce(e.kind = shaped.kind, true)
        AND coalesce(e.drafts = (s_qo > 1), true) AND coalesce(e.trees = (mask NOT IN ('causal', 'full')), true)
), taken AS (
    SELECT shape, who, choice,
           arg_min(shown, (median_us, row)) FILTER (status = 'ok') AS backend,
           arg_min(kernel, (median_us, row)) FILTER (status = 'ok') AS kernel,
           arg_min(routine, (median_us, row)) FILTER (status = 'ok') AS routine,
           arg_min(q_dtype, (median_us, row)) FILTER (status = 'ok') AS q_dtype,
           min(median_us) FILTER (status = 'ok') AS us,
           arg_min(own_us, (median_us, row)) FILTER (status = 'ok') AS own_us,
           arg_min_null(rel_err, (median_us, row)) FILTER (status = 'ok') AS rel_err,
           arg_min(row, (median_us, row)) FILTER (status = 'ok') AS row,
           arg_min(rough, (median_us, row)) FILTER (status = 'ok') AS rough,
           arg_min_null(measured_as, (median_us, row)) FILTER (status = 'ok') AS measured_as,
           string_agg(DISTINCT status, ', ' ORDER BY status) AS statuses
    FROM offered
    GROUP BY shape, who, choice
), of_shape AS (
    SELECT shape, any_value(kind) AS kind, any_value(weight) AS weight, min(problem) AS problem
    FROM shaped
    GROUP BY shape
)
SELECT problems.* EXCLUDE (problem, family, routine, q_dtype, out_dtype), kind, weight, taken.*,
       least.* EXCLUDE (shape, best_own_us), major, own_us / best_own_us AS regret,
       coalesce(noise_floor, getvariable('noise_floor')) AS noise_floor
FROM taken
JOIN of_shape USING (shape)
JOIN least USING (shape)
JOIN problems USING (problem)
LEFT JOIN majors ON majors.device_name = problems.device_name
LEFT JOIN noise ON noise.device_name = problems.device_name AND taken.us > from_us AND taken.us <= to_us
