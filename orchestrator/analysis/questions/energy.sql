-- Which backend takes the least energy for each problem, and what does the fastest one take? Only rows with timing.energy=true have
-- an energy. A reference does not count. fastest_j is null if the fastest backend has no energy.
-- `expected(s_qo, tokens)` is the table of question=draft; like there, only drafts of one length have an expected number of tokens.
WITH least AS (
    SELECT problem,
           arg_min({'backend': called, 'energy_token_j': energy_token_j, 'energy_rel': energy_rel, 'us': contenders.median_us,
                    'row': row}, (energy_j, row)) AS of_least,
           min(energy_j) AS energy_j, count(*) AS backends
    FROM contenders
    JOIN rows USING (row)
    WHERE NOT reference AND energy_j IS NOT NULL
    GROUP BY problem
)
SELECT problems.*, of_least.backend AS backend, least.energy_j, of_least.energy_token_j AS energy_token_j,
       if(mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
              AND s_qo <= getvariable('max_draft'),
          least.energy_j / (batch_size * tokens), NULL) AS energy_generated_j,
       of_least.energy_rel AS energy_rel, of_least.us AS median_us, backends, ranked.backend AS fastest,
       ranked.median_us AS fastest_us, winner.energy_j AS fastest_j, winner.energy_j / least.energy_j AS fastest_over_least,
       of_least.row AS row
FROM least
JOIN ranked USING (problem)
JOIN problems USING (problem)
JOIN (SELECT row, energy_j FROM rows) AS winner ON winner.row = ranked.row
LEFT JOIN expected USING (s_qo)
