-- What attention takes in the steps of an engine, by its fastest flag, where drafts were measured beside one token.
SELECT model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo, min(us), arg_min(flag, us) || ' in ' || arg_min(release, us)
FROM (
    SELECT model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo, flag, engine || ' ' || engine_version AS release,
           median(measured_us * s_kv / kv_tokens) AS us
    FROM engine_points GROUP BY ALL
)
GROUP BY model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo
WINDOW alike AS (PARTITION BY model, device_name, tp, kv_dtype, batch_size, s_kv)
QUALIFY min(s_qo) OVER alike = 1 AND max(s_qo) OVER alike > 1
