-- What does attention take in a layer of a step? The fastest backend of each problem. Where draft.rest has attention inside a running
-- engine (`engine_attention`), that counts instead, and `backend` is the engine's flag.
SELECT fastest.* REPLACE (coalesce(engine_us, own_us) AS own_us, coalesce(engine_flag, backend) AS backend,
                          if(engine_us IS NULL, kernel, NULL) AS kernel, if(engine_us IS NULL, rel_err, NULL) AS rel_err)
FROM fastest
LEFT JOIN engine_attention USING (model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo)
