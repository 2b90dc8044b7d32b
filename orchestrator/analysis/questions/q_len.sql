-- Where does a draft of q tokens cost more than its tokens?
-- `cost`: its time in steps of one token at the same batch. Above s_qo it costs more than its tokens one after another.
-- `gain`: the time of batch * s_qo requests of one token over that of the one call. Below 1 it costs more than its tokens apart.
-- All are of `own_us`, the time without the launch of the graph. `rough`: one of these times is only known within `rough` (5%).
WITH calls AS (
    SELECT * EXCLUDE (rough), rough AS own_rough, batch_size * s_qo AS tokens
    FROM fastest
    WHERE routine IN ('paged_decode', 'mla') AND min_s_qo IS NULL AND batch_spec IS NULL AND graph_batch IS NULL
), compared AS (
    SELECT *,
           min(own_us) FILTER (s_qo = 1) OVER (PARTITION BY family, device_name, s_kv, tokens) AS apart_us,
           min(own_us) FILTER (s_qo = 1) OVER (PARTITION BY family, device_name, s_kv, batch_size) AS one_us,
           bool_or(own_rough) FILTER (s_qo = 1) OVER (PARTITION BY family, device_name, s_kv, tokens) AS apart_rough,
           bool_or(own_rough) FILTER (s_qo = 1) OVER (PARTITION BY family, device_name, s_kv, batch_size) AS one_rough
    FROM calls
)
SELECT * EXCLUDE (own_rough, apart_rough, one_rough), own_us / one_us AS cost, apart_us / own_us AS gain,
       own_rough OR coalesce(apart_rough, false) OR coalesce(one_rough, false) AS rough
FROM compared
WHERE s_qo > 1 AND (apart_us IS NOT NULL OR one_us IS NOT NULL)
