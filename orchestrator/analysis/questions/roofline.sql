-- How far is each point from what this device can do? Ceilings and frac_of_peak were measured on the device itself.
-- intensity: FLOPs per byte; roof: what the device reaches at that intensity, in TFLOP/s.
SELECT row, device_name, cluster, model, routine, backend, resolved_backend, q_dtype, kv_dtype, mask, l2, batch_size, s_qo, s_kv,
       median_us, own_us, ci95_rel, rel_err, stop_reason, bound,
       flops / bytes AS intensity,
       tflops, tb_per_sec, peak_tflops, peak_tb_per_sec,
       least(peak_tflops, intensity * peak_tb_per_sec) AS roof,
       frac_of_peak, frac_of_datasheet, kv_read_amplification
FROM timed
WHERE status = 'ok' AND bytes > 0 AND (NOT getvariable('by_flag') OR row IN (SELECT row FROM points))
