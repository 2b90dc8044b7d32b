-- Where is FP8 faster? The fastest time with a 16-bit cache over that with FP8 keys and values, and with FP8 queries too.
-- Gains are of `own_us`, the time without the launch of the graph. `fp8_kv_rough`, `fp8_q_rough`: a time of that gain is only known
-- within `rough` (5%). `paged` are paged decode and paged prefill together: a draft takes the faster one over each cache.
WITH widths AS (
    SELECT * EXCLUDE (problem, family, q_dtype, kv_dtype, out_dtype)
               REPLACE (if(routine IN ('paged_decode', 'paged_prefill'), 'paged', routine) AS routine),
           CASE WHEN q_dtype LIKE 'fp8%' THEN 'bf16' ELSE q_dtype END AS dtype,
           CASE WHEN kv_dtype IN ('bf16', 'fp16') AND q_dtype IN ('bf16', 'fp16') THEN 'half'
                WHEN kv_dtype LIKE 'fp8%' AND q_dtype NOT LIKE 'fp8%' THEN 'kv'
                WHEN kv_dtype LIKE 'fp8%' AND q_dtype LIKE 'fp8%' THEN 'q' END AS width
    FROM fastest
), told AS (
    SELECT * EXCLUDE (backend, kernel, rel_err, us, own_us, rough),
           {'backend': backend, 'kernel': kernel, 'rel_err': rel_err, 'us': us, 'own_us': own_us, 'rough': rough} AS side
    FROM widths
), sides AS (
    SELECT * EXCLUDE (width, side),
           first(side ORDER BY side.us) FILTER (width = 'half') AS half,
           first(side ORDER BY side.us) FILTER (width = 'kv') AS kv,
           first(side ORDER BY side.us) FILTER (width = 'q') AS q
    FROM told
    GROUP BY ALL
)
SELECT * EXCLUDE (half, kv, q),
       half.us AS half_us, kv.us AS fp8_kv_us, q.us AS fp8_q_us,
       half.backend AS half_backend, kv.backend AS fp8_kv_backend, q.backend AS fp8_q_backend,
       kv.kernel AS fp8_kv_kernel, q.kernel AS fp8_q_kernel,
       half.rel_err AS half_rel_err, kv.rel_err AS fp8_kv_rel_err, q.rel_err AS fp8_q_rel_err,
       half.own_us AS half_own_us, half.own_us / kv.own_us AS fp8_kv_gain, half.own_us / q.own_us AS fp8_q_gain,
       half.rough AS half_rough,
       half.rough OR coalesce(kv.rough, false) AS fp8_kv_rough,
       half.rough OR coalesce(q.rough, false) AS fp8_q_rough
FROM sides
WHERE half IS NOT NULL AND (kv IS NOT NULL OR q IS NOT NULL)
