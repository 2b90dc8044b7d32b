-- Which draft length gives the most tokens per second? `draft_steps` (steps.sql) has those of each step.
-- `break_even_tokens`: what a step of the best length has to yield to be as good as a step without a draft.
-- `without_rest`: longer drafts at this batch size whose rest of a step draft.rest lacks.
-- `rates`: tokens per second with each number of query tokens in `measured`.
-- `rough`: a time of the best length, or of one token, is only known within `rough` (5%).
-- A workload whose KV cache alone is larger than the GPU's memory (`cache_sizes`) has no answer.
SELECT * EXCLUDE (problem, family, routine, s_qo, backend, kernel, rel_err, us, own_us, rough, tokens, one_step_us, rate, step_layers,
                  rest_layer_us, rest_by, rest_measured, start_us, cost_us, of_kind, lacking),
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
       list_filter(any_value(lacking), lambda n: n > drafted) AS without_rest,
       step_us / arg_min(one_step_us, one_step_us) FILTER (s_qo = 1) AS break_even_tokens
FROM (SELECT *, list_sort(list_distinct(coalesce(list(s_qo - 1) FILTER (rate IS NULL) OVER (PARTITION BY model, device_name, tp, batch_size), []))) AS lacking
      FROM draft_steps)
WHERE rate IS NOT NULL AND problem NOT IN (SELECT problem FROM workloads WHERE too_big)
GROUP BY ALL
HAVING len(measured) > 1
