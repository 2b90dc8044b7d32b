-- Which backend takes the least energy for each problem, and what does the fastest one take? Only rows with timing.energy=true have
-- an energy. A reference does not count. fastest_j is null if the fastest backend has no energy.
-- `expected(s_qo, tokens)` is the table of question=draft; like there, only drafts of one length have an expected number of tokens.
WITH one AS (
    SELECT problem, arg_min(row, (energy_j, row)) AS row, count(*) AS backends
    FROM contenders
    JOIN rows USING (row)
    WHERE NOT reference AND energy_j IS NOT NULL
    GROUP BY problem
)
SELECT problems.*, points.backend, least.energy_j, least.energy_token_j,
       if(mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
              AND s_qo <= getvariable('max_draft'),
          least.energy_j / (batch_size * tokens), NULL) AS energy_generated_j,
       least.energy_rel, points.median_us, backends, ranked.backend AS fastest,
       ranked.median_us AS fastest_us, winner.energy_j AS fastest_j, winner.energy_j / least.energy_j AS fastest_over_least,
       points.row
FROM one
JOIN points USING (row)
JOIN (SELECT row, energy_j, energy_token_j, energy_rel FROM rows) AS least USING (row)
JOIN ranked ON ranked.problem = one.problem
JOIN problems ON problems.problem = one.problem
JOIN (SELECT row, energy_j FROM rows) AS winner ON winner.row = ranked.row
LEFT JOIN expected USING (s_qo)
