-- Where does a draft of q tokens cost more than its tokens?
-- `cost`: its time in steps of one token at the same batch; more than s_qo, and it costs more than its tokens one after another.
-- `gain`: batch * s_qo requests of one token over the one call; under 1, and it costs more than its tokens taken apart.
WITH calls AS (
    SELECT *, batch_size * s_qo AS tokens
    FROM fastest
    WHERE routine IN ('paged_decode', 'mla') AND min_s_qo IS NULL AND batch_spec IS NULL
), beside AS (
    SELECT *,
           min(us) FILTER (s_qo = 1) OVER (PARTITION BY family, cluster, device_name, s_kv, tokens) AS apart_us,
           min(us) FILTER (s_qo = 1) OVER (PARTITION BY family, cluster, device_name, s_kv, batch_size) AS one_us
    FROM calls
)
SELECT *, us / one_us AS cost, apart_us / us AS gain
FROM beside
WHERE s_qo > 1 AND (apart_us IS NOT NULL OR one_us IS NOT NULL)
