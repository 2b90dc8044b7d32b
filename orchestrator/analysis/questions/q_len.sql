-- Where does a draft of q tokens cost more than its tokens?
-- `cost`: its time in steps of one token at the same batch. Above s_qo it costs more than its tokens one after another.
-- `gain`: the time of batch * s_qo requests of one token over that of the one call. Below 1 it costs more than its tokens apart.
-- All are of `own_us`, the time without the launch of the graph.
WITH calls AS (
    SELECT *, batch_size * s_qo AS tokens
    FROM fastest
    WHERE routine IN ('paged_decode', 'mla') AND min_s_qo IS NULL AND batch_spec IS NULL AND graph_batch IS NULL
), compared AS (
    SELECT *,
           min(own_us) FILTER (s_qo = 1) OVER (PARTITION BY family, cluster, device_name, s_kv, tokens) AS apart_us,
           min(own_us) FILTER (s_qo = 1) OVER (PARTITION BY family, cluster, device_name, s_kv, batch_size) AS one_us
    FROM calls
)
SELECT *, own_us / one_us AS cost, apart_us / own_us AS gain
FROM compared
WHERE s_qo > 1 AND (apart_us IS NOT NULL OR one_us IS NOT NULL)
