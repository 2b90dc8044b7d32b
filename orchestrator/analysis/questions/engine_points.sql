-- The rows of points that were timed in a running engine, with the columns that its questions read. `phase` and `of_layers` are what
-- `conf/engine` tells workloads apart by, `major` that of the GPU's compute capability.
-- `start` counts the starts that timed a point: each worker, and so each dataset, begins its own `engine_start` at 1.
SELECT row, device_name, device_uuid, model, tp, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, head_dim_ckv, "window",
       coalesce(sinks, false) AS sinks, kv_dtype, page_size, batch_size, s_qo, s_kv, engine, engine_version, flag, resolved_backend,
       step_layers AS layers, attention_us AS measured_us, attention_main_us AS main_us, attention_combine_us AS combine_us,
       attention_metadata_us AS metadata_us, attention_share AS share, engine_kernels_us AS kernels_us, engine_step_us AS step_us,
       engine_wall_us AS wall_us, engine_host_us AS host_us, engine_kv_tokens AS kv_tokens, main_kernels, combine_kernels, engine_graph AS graph,
       engine_runner AS runner,
       row_number() OVER (PARTITION BY device_name, engine, engine_version, model, tp, kv_dtype, page_size, batch_size, s_qo, s_kv, "window",
                          step_layers, flag ORDER BY engine_start, row) AS start,
       coalesce(split_part(compute_capability, '.', 1)::INT, 0) AS major, {layers} AS of_layers,
       if(s_qo = 1, 'decode', 'verify') AS phase
FROM rows
WHERE context = 'engine' AND status = 'ok'
