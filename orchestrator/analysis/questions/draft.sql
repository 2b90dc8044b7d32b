-- Which draft length gives the most tokens per second? Three tables belong to the question: `expected(s_qo, tokens)`, the tokens
-- that a step of one target token and s_qo - 1 drafted ones yields, `draft_costs` (draft.* of the configuration), and
-- `measured_rest`, the rest of a layer by its query tokens if draft.rest is given. Then workloads without one have no answer.
-- `break_even_tokens`: what a step of the best length has to yield to be as good as a step without a draft.
-- `rates`: tokens per second with each number of query tokens in `measured`.
-- `rough`: a time of the best length, or of one token, is only known within `rough` (5%).
-- A workload whose KV cache alone is larger than the GPU's memory (`cache_sizes`) has no answer.
-- A step is one graph: its layers cost `own_us` each, and the launch of the graph belongs to the rest of the step. Where draft.rest has
-- attention inside a running engine (`engine_attention`), that counts instead, and `verify_backend` is the engine's flag.
WITH steps AS (
    SELECT * EXCLUDE (layers, rest_us, rest_layer_us, rest_once_us, rest_by, model_layers, engine_us, engine_flag)
               REPLACE (coalesce(engine_us, own_us) AS own_us, coalesce(engine_flag, backend) AS backend,
                        if(engine_us IS NULL, kernel, NULL) AS kernel, if(engine_us IS NULL, rel_err, NULL) AS rel_err),
           coalesce(layers, model_layers, 1) AS step_layers,
           step_layers * coalesce(engine_us, fastest.own_us) + if(rest_measured, step_layers * rest_layer_us + rest_once_us, rest_us) + if(s_qo > 1, start_us + (s_qo - 1) * cost_us, 0) AS one_step_us,
           batch_size * tokens / one_step_us * 1e6 AS rate
    FROM fastest
    JOIN expected USING (s_qo)
    CROSS JOIN draft_costs
    LEFT JOIN measured_rest USING (model, device_name, tp, batch_size, s_qo)
    LEFT JOIN engine_attention USING (model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo)
    WHERE problem NOT IN (SELECT problem FROM workloads WHERE too_big)
        AND (rest_layer_us IS NOT NULL OR NOT rest_measured) AND mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
)
SELECT * EXCLUDE (problem, family, routine, s_qo, backend, kernel, rel_err, us, own_us, rough, tokens, one_step_us, rate, step_layers,
                  rest_measured, start_us, cost_us),
       max(rate) AS tokens_per_s,
       arg_max(s_qo, (rate, -s_qo)) AS best_s_qo,
       arg_max(routine, (rate, -s_qo)) AS verify_routine,
       arg_max(backend, (rate, -s_qo)) AS verify_backend,
       arg_max(kernel, (rate, -s_qo)) AS verify_kernel,
       arg_max_null(rel_err, (rate, -s_qo)) AS verify_rel_err,
       arg_max(us, (rate, -s_qo)) AS verify_us,
       arg_max(one_step_us, (rate, -s_qo)) AS step_us,
       arg_max(tokens, (rate, -s_qo)) AS tokens_a_step,
       max(rate) FILTER (s_qo = 1) AS one_token_per_s,
       max(rate) / one_token_per_s AS gain,
       arg_max(rough, (rate, -s_qo)) OR coalesce(arg_max(rough, rate) FILTER (s_qo = 1), false) AS rough,
       list(DISTINCT s_qo ORDER BY s_qo) AS measured,
       list_transform(measured, lambda n: list_max(list_transform(list_filter(list({'n': s_qo, 'rate': rate}), lambda one: one.n = n), lambda one: one.rate))) AS rates,
       best_s_qo - 1 AS drafted,
       best_s_qo = max(s_qo) AS at_edge,
       step_us / arg_min(one_step_us, one_step_us) FILTER (s_qo = 1) AS break_even_tokens
FROM steps
GROUP BY ALL
HAVING len(measured) > 1
