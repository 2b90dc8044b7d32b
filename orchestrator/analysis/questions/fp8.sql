-- Where is FP8 faster? The fastest time with a 16-bit cache over that with FP8 keys and values, and with FP8 queries too.
-- Gains are of `own_us`, the time without the launch of the graph. `fp8_kv_rough`, `fp8_q_rough`: a time of that gain is only known
-- within `rough` (5%). `paged` are paged decode and paged prefill together: a draft takes the faster one over each cache.
-- If one engine was asked for, rows are those of the flags that question=one_backend advises, at workloads whose cache fits the GPU.
-- `too_big`: the 16-bit cache alone is larger than the GPU's memory (`cache_sizes`), so no server can choose it.
-- Where no answer was right and some was wrong, `fp8_kv_backend` and `fp8_q_backend` are the worst of these, without a time;
-- `fp8_q_wrong` says how far it was off, `fp8_q_wrong_err` is its relative error.
WITH answers AS (
    SELECT *, false AS wrong FROM fastest
    UNION ALL BY NAME
    SELECT problems.*, points.shown AS backend, points.kernel, points.rel_err, false AS rough, rows.tolerance, rows.reason, true AS wrong
    FROM points JOIN problems USING (problem) JOIN rows USING (row)
    WHERE points.status = 'mismatch' AND NOT is_reference(points.backend)
), widths AS (
    SELECT * EXCLUDE (problem, family, q_dtype, kv_dtype, out_dtype, layers, memory_bytes, cache_bytes)
               REPLACE (if(routine IN ('paged_decode', 'paged_prefill'), 'paged', routine) AS routine),
           coalesce(cache_bytes > memory_bytes, false) AS too_big,
           CASE WHEN q_dtype LIKE 'fp8%' THEN 'bf16' ELSE q_dtype END AS dtype,
           CASE WHEN kv_dtype IN ('bf16', 'fp16') AND q_dtype IN ('bf16', 'fp16') THEN 'half'
                WHEN kv_dtype LIKE 'fp8%' AND q_dtype NOT LIKE 'fp8%' THEN 'kv'
                WHEN kv_dtype LIKE 'fp8%' AND q_dtype LIKE 'fp8%' THEN 'q' END AS width
    FROM answers
    LEFT JOIN cache_sizes USING (problem)
), told AS (
    SELECT * EXCLUDE (backend, kernel, rel_err, us, own_us, rough, too_big, tolerance, reason, wrong),
           {'backend': backend, 'kernel': kernel, 'rel_err': rel_err, 'us': us, 'own_us': own_us, 'rough': rough, 'too_big': too_big,
            'why': why_wrong(rel_err, tolerance, reason), 'wrong': wrong} AS side
    FROM widths
), sides AS (
    SELECT * EXCLUDE (width, side),
           first(side ORDER BY side.us) FILTER (width = 'half' AND NOT side.wrong) AS half,
           first(side ORDER BY side.wrong, side.us, side.rel_err DESC, side.backend) FILTER (width = 'kv') AS kv,
           first(side ORDER BY side.wrong, side.us, side.rel_err DESC, side.backend) FILTER (width = 'q') AS q
    FROM told
    GROUP BY ALL
)
SELECT * EXCLUDE (half, kv, q),
       half.us AS half_us, kv.us AS fp8_kv_us, q.us AS fp8_q_us,
       half.backend AS half_backend, kv.backend AS fp8_kv_backend, q.backend AS fp8_q_backend,
       kv.kernel AS fp8_kv_kernel, q.kernel AS fp8_q_kernel,
       half.rel_err AS half_rel_err, if(kv.wrong, NULL, kv.rel_err) AS fp8_kv_rel_err, if(q.wrong, NULL, q.rel_err) AS fp8_q_rel_err,
       half.own_us AS half_own_us, half.own_us / kv.own_us AS fp8_kv_gain, half.own_us / q.own_us AS fp8_q_gain,
       half.rough AS half_rough, half.too_big AS too_big,
       half.rough OR coalesce(kv.rough, false) AS fp8_kv_rough,
       half.rough OR coalesce(q.rough, false) AS fp8_q_rough,
       if(kv.wrong, kv.rel_err, NULL) AS fp8_kv_wrong_err, if(q.wrong, q.rel_err, NULL) AS fp8_q_wrong_err,
       if(kv.wrong, kv.why, NULL) AS fp8_kv_wrong, if(q.wrong, q.why, NULL) AS fp8_q_wrong
FROM sides
WHERE half IS NOT NULL AND (kv IS NOT NULL OR q IS NOT NULL)
