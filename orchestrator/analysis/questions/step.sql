-- What does the attention of one model step cost with each backend: its plan, and its call in every layer? A row for each point that
-- was measured with timing.host=true. `model_layers` has the layers of the step: draft.layers, or the model's own.
-- In a graph the step pays one launch of the graph. Without one a layer takes as long as its kernels, or as the host needs to issue
-- them if that is longer. Nothing overlaps with the plan here. A reference does not count.
WITH costs AS (
    SELECT points.problem, points.shown AS backend, points.kernel, points.median_us, points.own_us, layers,
           plan_host_us, plan_host_p95_us, plan_syncs, plan_d2h_copies, plan_h2d_copies, plan_kernels, plan_device_us,
           call_host_us, call_syncs, call_copies, call_kernels, cuda_graph, points.row,
           layers * points.own_us AS attention_us,
           if(cuda_graph, plan_host_us + points.median_us - points.own_us + layers * points.own_us, NULL) AS graph_step_us,
           plan_host_us + layers * greatest(points.own_us, call_host_us) AS eager_step_us
    FROM points
    JOIN rows USING (row)
    JOIN model_layers USING (model)
    WHERE points.status = 'ok' AND plan_host_us IS NOT NULL AND call_host_us IS NOT NULL AND NOT is_reference(points.backend)
        AND (points.backend <> 'auto' OR points.row IN (SELECT row FROM contenders)) -- its choice counts already
)
SELECT problems.*, costs.* EXCLUDE (problem),
       coalesce(graph_step_us, eager_step_us) AS step_us,
       plan_host_us / step_us AS plan_share,
       eager_step_us / graph_step_us AS eager_over_graph,
       rank() OVER (PARTITION BY problem ORDER BY step_us) AS step_rank,
       rank() OVER (PARTITION BY problem ORDER BY own_us) AS kernel_rank,
       step_us / min(step_us) OVER (PARTITION BY problem) AS over_least
FROM costs
JOIN problems USING (problem)
