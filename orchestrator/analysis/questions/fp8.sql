-- Where is FP8 faster? The best time with a 16-bit cache over the best with FP8 keys and values, and with FP8 queries too.
-- Gains are of `own_us`, the time without the launch of the graph. `fp8_kv_rough`, `fp8_q_rough`: a time of that gain is only known
-- within `rough` (5%).
WITH widths AS (
    SELECT *,
           CASE WHEN q_dtype LIKE 'fp8%' THEN 'bf16' ELSE q_dtype END AS dtype,
           kv_dtype IN ('bf16', 'fp16') AND q_dtype IN ('bf16', 'fp16') AS half,
           kv_dtype LIKE 'fp8%' AND q_dtype NOT LIKE 'fp8%' AS fp8_kv,
           kv_dtype LIKE 'fp8%' AND q_dtype LIKE 'fp8%' AS fp8_q
    FROM fastest
)
SELECT * EXCLUDE (problem, family, q_dtype, kv_dtype, out_dtype, half, fp8_kv, fp8_q, backend, kernel, rel_err, us, own_us, rough),
       min(us) FILTER (half) AS half_us,
       min(us) FILTER (fp8_kv) AS fp8_kv_us,
       min(us) FILTER (fp8_q) AS fp8_q_us,
       arg_min(backend, us) FILTER (half) AS half_backend,
       arg_min(backend, us) FILTER (fp8_kv) AS fp8_kv_backend,
       arg_min(backend, us) FILTER (fp8_q) AS fp8_q_backend,
       arg_min(kernel, us) FILTER (fp8_kv) AS fp8_kv_kernel,
       arg_min(kernel, us) FILTER (fp8_q) AS fp8_q_kernel,
       arg_min_null(rel_err, us) FILTER (half) AS half_rel_err,
       arg_min_null(rel_err, us) FILTER (fp8_kv) AS fp8_kv_rel_err,
       arg_min_null(rel_err, us) FILTER (fp8_q) AS fp8_q_rel_err,
       min(own_us) FILTER (half) AS half_own_us,
       half_own_us / min(own_us) FILTER (fp8_kv) AS fp8_kv_gain,
       half_own_us / min(own_us) FILTER (fp8_q) AS fp8_q_gain,
       coalesce(arg_min(rough, us) FILTER (half), false) AS half_rough,
       half_rough OR coalesce(arg_min(rough, us) FILTER (fp8_kv), false) AS fp8_kv_rough,
       half_rough OR coalesce(arg_min(rough, us) FILTER (fp8_q), false) AS fp8_q_rough
FROM widths
GROUP BY ALL
HAVING half_us IS NOT NULL AND (fp8_kv_us IS NOT NULL OR fp8_q_us IS NOT NULL)
