-- How far do several starts of an engine agree? A row for each point that was timed in two starts or more on one GPU, and one for each
-- that was timed on several `gpus`: the range of its times over the least, of attention in a layer (at one length), of a step on the GPU,
-- and of a step by the wall.
SELECT device_name, engine, engine_version, model, tp, kv_dtype, batch_size, s_qo, s_kv, page_size, "window", layers, flag, count(*) AS starts,
       greatest(1, count(DISTINCT device_uuid)) AS gpus,
       max(measured_us / kv_tokens) / min(measured_us / kv_tokens) - 1 AS attention_range,
       max(step_us) / min(step_us) - 1 AS step_range, max(wall_us) / min(wall_us) - 1 AS wall_range
FROM engine_points
GROUP BY GROUPING SETS (
    (device_name, engine, engine_version, model, tp, kv_dtype, batch_size, s_qo, s_kv, page_size, "window", layers, flag, device_uuid),
    (device_name, engine, engine_version, model, tp, kv_dtype, batch_size, s_qo, s_kv, page_size, "window", layers, flag)
)
HAVING count(*) > 1 AND (grouping(device_uuid) = 0 OR count(DISTINCT device_uuid) > 1)
