-- Which backend takes the least energy for each problem, and what does the fastest one take? Only rows with timing.energy=true have
-- an energy. torch_sdpa does not count: it reads a copy of the cache. fastest_j is null if the fastest backend has no energy.
-- `expected(s_qo, tokens)` is the table of question=draft; like there, only drafts of one length have an expected number of tokens.
WITH timed AS (
    SELECT points.problem, points.backend, points.median_us, energy_j, energy_token_j, energy_rel, points.row
    FROM points JOIN rows USING (row)
    WHERE points.status = 'ok' AND NOT is_reference(points.backend)
), fast AS (
    SELECT problem, arg_min(backend, (median_us, row)) AS fastest, arg_min(median_us, (median_us, row)) AS fastest_us,
           first(energy_j ORDER BY median_us, row) AS fastest_j
    FROM timed
    GROUP BY problem
), least AS (
    SELECT problem,
           arg_min(backend, (energy_j, row)) AS backend,
           min(energy_j) AS energy_j,
           arg_min(energy_token_j, (energy_j, row)) AS energy_token_j,
           arg_min(energy_rel, (energy_j, row)) AS energy_rel,
           arg_min(median_us, (energy_j, row)) AS median_us,
           arg_min(row, (energy_j, row)) AS row,
           count(*) AS backends
    FROM timed
    WHERE energy_j IS NOT NULL
    GROUP BY problem
)
SELECT problems.*, backend, energy_j, energy_token_j,
       if(mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
              AND s_qo <= getvariable('max_draft'),
          energy_j / (batch_size * tokens), NULL) AS energy_generated_j,
       energy_rel, median_us, backends, fastest, fastest_us, fastest_j,
       fastest_j / energy_j AS fastest_over_least, row
FROM least JOIN fast USING (problem)
JOIN problems USING (problem)
LEFT JOIN expected USING (s_qo)
