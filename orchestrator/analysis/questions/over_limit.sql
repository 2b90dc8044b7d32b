-- Which rates are impossible: above this device's measured ceiling, or above its datasheet?
SELECT row, greatest(frac_of_peak, frac_of_datasheet) AS frac, frac_of_peak, frac_of_datasheet, median_us,
       device_name, cluster, model, routine, backend, resolved_backend AS kernel, q_dtype, kv_dtype, batch_size, s_qo, s_kv, point_id, command
FROM current
WHERE status = 'ok' AND (frac_of_peak > 1 OR frac_of_datasheet > 1)
