-- What does attention take in a layer of a step? The fastest backend of each problem. Where draft.rest has attention inside a running
-- engine (`engine_attention`), that counts instead, and `backend` is the engine's flag.
-- Of a model whose layers are of two kinds (`layer_kinds`), it is the mean over its layers, each kind with its own fastest backend and
-- routine, where both kinds were measured; `of_kind` are the layers that a row stands for if one kind alone was.
-- Of one engine its flags decide of the dtype of queries, which may be another for each length.
WITH of_layers AS (
    SELECT fastest.* REPLACE (if(getvariable('by_flag'), NULL, q_dtype) AS q_dtype, if(getvariable('by_flag'), NULL, out_dtype) AS out_dtype,
                              coalesce(engine_us, own_us) AS own_us, coalesce(engine_flag, backend) AS backend,
                              if(engine_us IS NULL, kernel, NULL) AS kernel, if(engine_us IS NULL, rel_err, NULL) AS rel_err),
           if(all_layers > greatest(full_layers, windowed_layers), if("window" IS NULL, full_layers, windowed_layers), NULL) AS of_kind,
           hash(model, device_name, tp, if(getvariable('by_flag'), NULL, q_dtype), kv_dtype) AS place
    FROM fastest
    LEFT JOIN engine_attention USING (model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo)
    LEFT JOIN layer_kinds USING (model)
), kinds AS (
    SELECT * EXCLUDE (problem, family, routine, backend, kernel, rel_err, us, own_us, rough),
           arg_min({'problem': problem, 'family': family, 'routine': routine, 'backend': backend, 'kernel': kernel, 'rel_err': rel_err,
                    'us': us, 'own_us': own_us, 'rough': rough, 'layers': of_kind, 'windowed': "window" IS NOT NULL},
                   (own_us, routine)) AS best
    FROM of_layers
    WHERE of_kind IS NOT NULL AND routine <> 'ragged_prefill'
    GROUP BY ALL
), pairs AS (
    SELECT * EXCLUDE ("window", of_kind, best), NULL::BIGINT AS "window", NULL::BIGINT AS of_kind,
           arg_min(best, best.windowed) AS whole, arg_max(best, best.windowed) AS part
    FROM kinds
    GROUP BY ALL
    HAVING count(*) = 2
), together AS (
    SELECT * EXCLUDE (whole, part), whole.problem AS problem, whole.family AS family, whole.routine AS routine,
           whole.backend IS NOT DISTINCT FROM part.backend AND whole.kernel IS NOT DISTINCT FROM part.kernel AS is_one,
           if(is_one, whole.backend, whole.backend || ' (full), ' || part.backend || ' (windowed)') AS backend,
           if(is_one, whole.kernel, NULL) AS kernel, greatest(whole.rel_err, part.rel_err) AS rel_err,
           (whole.layers * whole.us + part.layers * part.us) / (whole.layers + part.layers) AS us,
           (whole.layers * whole.own_us + part.layers * part.own_us) / (whole.layers + part.layers) AS own_us,
           whole.rough OR part.rough AS rough
    FROM pairs
)
SELECT * EXCLUDE (place, is_one) FROM (
    SELECT * FROM of_layers WHERE of_kind IS NULL OR place NOT IN (SELECT place FROM together)
    UNION ALL BY NAME FROM together
)
