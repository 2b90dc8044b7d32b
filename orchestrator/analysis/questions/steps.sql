-- Tokens per second of a step that verifies s_qo - 1 drafted tokens: `rate`, for each time of attention in one layer of a source.
-- Three tables belong to it: `expected(s_qo, tokens)`, the tokens that such a step yields, `draft_costs` (draft.* of the
-- configuration), and `measured_rest`, the rest of a step by its query tokens if draft.rest is given: without one `rate` is null.
-- A step is one graph: its layers cost `own_us` each, and the launch of the graph belongs to the rest of the step.
SELECT * EXCLUDE (layers, rest_us, rest_once_us, model_layers),
       coalesce(layers, model_layers, 1) AS step_layers,
       step_layers * own_us + if(rest_measured, step_layers * rest_layer_us + rest_once_us, rest_us) + if(s_qo > 1, start_us + (s_qo - 1) * cost_us, 0) AS one_step_us,
       batch_size * tokens / one_step_us * 1e6 AS rate
FROM {source}
JOIN expected USING (s_qo)
CROSS JOIN draft_costs
LEFT JOIN measured_rest USING (model, device_name, tp, batch_size, s_qo)
WHERE mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
