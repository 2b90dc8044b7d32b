-- Which draft length gives the most tokens per second? Two tables belong to the question: `expected(s_qo, tokens)`, the tokens that
-- a step of one target token and s_qo - 1 drafted ones yields, and `draft_costs` (draft.* of the configuration).
-- A step is one graph: its layers cost `own_us` each, and the launch of the graph belongs to the rest of the step.
WITH steps AS (
    SELECT *,
           layers * own_us + rest_us + if(s_qo > 1, start_us + (s_qo - 1) * cost_us, 0) AS one_step_us,
           batch_size * tokens / one_step_us * 1e6 AS rate
    FROM fastest
    JOIN expected USING (s_qo)
    CROSS JOIN draft_costs
    WHERE mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
)
SELECT * EXCLUDE (problem, family, routine, s_qo, backend, us, own_us, tokens, one_step_us, rate, layers, rest_us, start_us, cost_us),
       max(rate) AS tokens_per_s,
       arg_max(s_qo, (rate, -s_qo)) AS best_s_qo,
       arg_max(routine, (rate, -s_qo)) AS verify_routine,
       arg_max(backend, (rate, -s_qo)) AS verify_backend,
       arg_max(us, (rate, -s_qo)) AS verify_us,
       arg_max(one_step_us, (rate, -s_qo)) AS step_us,
       arg_max(tokens, (rate, -s_qo)) AS tokens_a_step,
       max(rate) FILTER (s_qo = 1) AS one_token_per_s,
       max(rate) / one_token_per_s AS gain,
       list(DISTINCT s_qo ORDER BY s_qo) AS measured
FROM steps
GROUP BY ALL
HAVING len(measured) > 1
