-- Where does FP8 pay? The best time over a 16-bit cache over the best with FP8 keys and values, and with FP8 queries too.
WITH widths AS (
    SELECT *, q_dtype LIKE 'fp8%' AS fp8_q, kv_dtype LIKE 'fp8%' AS fp8_kv,
           kv_dtype IN ('bf16', 'fp16') AND q_dtype IN ('bf16', 'fp16') AS half
    FROM best
)
SELECT * EXCLUDE (problem, family, q_dtype, kv_dtype, out_dtype, fp8_q, fp8_kv, half,
                  backend, median_us, runner_up, margin, noise_floor, above_noise),
       CASE WHEN fp8_q THEN 'bf16' ELSE q_dtype END AS dtype,
       min(median_us) FILTER (half) AS half_us,
       arg_min(backend, median_us) FILTER (half) AS half_backend,
       min(median_us) FILTER (fp8_kv AND NOT fp8_q) AS fp8_kv_us,
       arg_min(backend, median_us) FILTER (fp8_kv AND NOT fp8_q) AS fp8_kv_backend,
       min(median_us) FILTER (fp8_kv AND fp8_q) AS fp8_q_us,
       arg_min(backend, median_us) FILTER (fp8_kv AND fp8_q) AS fp8_q_backend,
       half_us / fp8_kv_us AS fp8_kv_gain,
       half_us / fp8_q_us AS fp8_q_gain
FROM widths
GROUP BY ALL
HAVING half_us IS NOT NULL AND (fp8_kv_us IS NOT NULL OR fp8_q_us IS NOT NULL)
