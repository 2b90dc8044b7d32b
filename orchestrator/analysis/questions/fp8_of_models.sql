-- Is FP8 faster in a model with full and windowed layers? The rows of `fp8` of both kinds, each by its number of layers, and with the
-- queries that are faster there: `fp8_kv` if both take 16-bit ones, `fp8_q` if both take FP8 ones, else by the kind that takes FP8 ones.
-- Times are of a layer, the mean over the model's layers; errors are the larger ones.
WITH kinds AS (
    SELECT fp8.*, if("window" IS NULL, full_layers, windowed_layers) AS count_of,
           coalesce(fp8_q_gain > fp8_kv_gain, fp8_kv_gain IS NULL) AS by_q, if(by_q, fp8_q_gain, fp8_kv_gain) AS gain,
           if(by_q, fp8_q_rel_err, fp8_kv_rel_err) AS rel_err, if(by_q, fp8_q_rough, fp8_kv_rough) AS rough
    FROM fp8 JOIN layer_kinds USING (model)
    WHERE all_layers > greatest(full_layers, windowed_layers) AND NOT too_big
), models AS (
    SELECT * EXCLUDE ("window", half_us, half_backend, half_rel_err, half_own_us, half_rough, too_big, fp8_kv_us, fp8_kv_backend,
                      fp8_kv_kernel, fp8_kv_rel_err, fp8_kv_gain, fp8_kv_rough, fp8_kv_wrong_err, fp8_kv_wrong, fp8_q_us, fp8_q_backend,
                      fp8_q_kernel, fp8_q_rel_err, fp8_q_gain, fp8_q_rough, fp8_q_wrong_err, fp8_q_wrong, count_of, by_q, gain, rel_err, rough),
           NULL::BIGINT AS "window", max(kinds.half_rel_err) AS half_rel_err, sum(count_of * kinds.half_own_us) / sum(count_of) AS half_own_us,
           sum(count_of * kinds.half_own_us) / sum(count_of * kinds.half_own_us / kinds.gain) AS gain, max(kinds.rel_err) AS rel_err, bool_or(kinds.rough) AS rough,
           CASE WHEN bool_and(by_q) THEN 'q' WHEN NOT bool_or(by_q) THEN 'kv'
                WHEN bool_or(by_q AND kinds."window" IS NULL) THEN 'full' ELSE 'windowed' END AS queries
    FROM kinds
    GROUP BY ALL
    HAVING count(DISTINCT coalesce(kinds."window", 0)) = 2 AND count(kinds.gain) = count(*)
)
SELECT * EXCLUDE (gain, rel_err, rough, queries),
       if(queries = 'kv', gain, NULL) AS fp8_kv_gain, if(queries = 'kv', rel_err, NULL) AS fp8_kv_rel_err, rough AS fp8_kv_rough,
       if(queries = 'q', gain, NULL) AS fp8_q_gain, if(queries = 'q', rel_err, NULL) AS fp8_q_rel_err, rough AS fp8_q_rough,
       if(queries = 'full', gain, NULL) AS fp8_full_gain, if(queries = 'full', rel_err, NULL) AS fp8_full_rel_err, rough AS fp8_full_rough,
       if(queries = 'windowed', gain, NULL) AS fp8_windowed_gain, if(queries = 'windowed', rel_err, NULL) AS fp8_windowed_rel_err, rough AS fp8_windowed_rough
FROM models
