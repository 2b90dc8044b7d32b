-- Where does a draft of q tokens cost more than its tokens?
-- `cost`: its time in steps of one token at the same batch. Above s_qo it costs more than its tokens one after another.
-- `gain`: the time of batch * s_qo requests of one token over that of the one call. Below 1 it costs more than its tokens apart.
-- All are of `own_us`, the time without the launch of the graph. `rough`: one of these times is only known within `rough` (5%).
-- A gated delta net has no context: its `s_kv` is `s_qo`, a draft keeps each state, and its tokens cannot be apart (no `gain`).
WITH calls AS (
    SELECT * EXCLUDE (rough), rough AS own_rough, batch_size * s_qo AS tokens, routine = 'gated_delta' AS is_state,
           if(is_state, hash(*COLUMNS(* EXCLUDE (problem, family, batch_size, s_qo, s_kv, routine_axes, backend, kernel, rel_err, us, own_us, rough))),
              hash(family, device_name, s_kv)) AS alike
    FROM fastest
    WHERE routine IN ('paged_decode', 'mla', 'gated_delta') AND min_s_qo IS NULL AND batch_spec IS NULL AND graph_batch IS NULL
        AND (NOT is_state OR s_qo = 1 OR routine_axes = 'states=each')
), compared AS (
    SELECT *,
           min(own_us) FILTER (s_qo = 1 AND NOT is_state) OVER (PARTITION BY alike, tokens) AS apart_us,
           min(own_us) FILTER (s_qo = 1) OVER (PARTITION BY alike, batch_size) AS one_us,
           bool_or(own_rough) FILTER (s_qo = 1 AND NOT is_state) OVER (PARTITION BY alike, tokens) AS apart_rough,
           bool_or(own_rough) FILTER (s_qo = 1) OVER (PARTITION BY alike, batch_size) AS one_rough
    FROM calls
)
SELECT * EXCLUDE (own_rough, apart_rough, one_rough, alike), own_us / one_us AS cost, apart_us / own_us AS gain,
       own_rough OR coalesce(apart_rough, false) OR coalesce(one_rough, false) AS rough
FROM compared
WHERE s_qo > 1 AND (apart_us IS NOT NULL OR one_us IS NOT NULL)
