-- Which points ran and have no correct result: wrong, failed, hung or out of memory?
SELECT row, status, reason, device_name, cluster, model, tp, routine, backend, resolved_backend AS kernel, q_dtype, kv_dtype, "window", batch_size, s_qo, s_kv, point_id, command
FROM current
WHERE status IN ('mismatch', 'failed', 'timeout', 'oom')
