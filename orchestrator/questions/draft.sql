-- Which draft length gives the most tokens a second? Tables of the question: `expected(s_qo, tokens)`, the tokens that a step of
-- one target token and s_qo - 1 drafted ones yields, and `draft_costs` (draft.* of the configuration).
WITH verified AS (
    SELECT problem, min(median_us) AS verify_us, arg_min(backend, (median_us, row)) AS backend
    FROM points
    WHERE status = 'ok' AND backend <> 'torch_sdpa'
    GROUP BY problem
), steps AS (
    SELECT problems.*, backend, verify_us, tokens,
           layers * verify_us + rest_us + if(s_qo > 1, start_us + (s_qo - 1) * cost_us, 0) AS step_us,
           batch_size * tokens / step_us * 1e6 AS tokens_per_s
    FROM verified
    JOIN problems USING (problem)
    JOIN expected USING (s_qo)
    CROSS JOIN draft_costs
    WHERE mask = 'causal' AND min_s_qo IS NULL AND routine <> 'ragged_prefill'
)
SELECT * EXCLUDE (problem, family, routine, s_qo, backend, verify_us, tokens, step_us, tokens_per_s),
       arg_max(s_qo, (tokens_per_s, -s_qo)) AS s_qo,
       arg_max(routine, (tokens_per_s, -s_qo)) AS routine,
       arg_max(backend, (tokens_per_s, -s_qo)) AS backend,
       arg_max(verify_us, (tokens_per_s, -s_qo)) AS verify_us,
       arg_max(step_us, (tokens_per_s, -s_qo)) AS step_us,
       arg_max(tokens, (tokens_per_s, -s_qo)) AS tokens,
       max(tokens_per_s) AS tokens_per_s,
       max(tokens_per_s) FILTER (s_qo = 1) AS one_token_per_s,
       max(tokens_per_s) / one_token_per_s AS gain,
       list(DISTINCT s_qo ORDER BY s_qo) AS measured
FROM steps
GROUP BY ALL
HAVING len(measured) > 1
