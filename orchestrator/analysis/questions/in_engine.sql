-- Does an isolated time hold inside an engine? A row for each point that was timed in a running engine (timing.context=engine), beside
-- the isolated row of the call that `conf/engine` names for its flag in its release (`called`: ROUTINE/BACKEND); of several one of
-- the engine's own build (vLLM's or FlashInfer's release), then of its torch, which brings Triton, then of the same GPU, then the newest.
-- `predicted_us` is that row's `own_us`, moved to the KV tokens of the profiled steps: on the line between the two nearest lengths that
-- were measured (`scaled` = line), in proportion if there is one alone. `measured_us` is attention in a layer of the engine, and
-- `error` what that is over `predicted_us`, less 1.
-- `why_not` says why a point is not compared, and then `error` is null; above all where the profile has other kernels (`ran`, by the
-- names of conf/kernel_names.yaml) than the isolated row (`isolated_kernel`). A kernel here that has several names there, such as one that
-- splits the keys and combines them, must have all of them in the profile.
-- `same_gpu`: that row is of the very GPU, not of another of its kind.
-- `idle_share` is the part of a step, by the wall, in which the GPU ran no kernel: the host decides how long such a step takes.
WITH isolated AS (
    SELECT problems.*, every.row AS isolated_row, points.backend, coalesce(every.resolved_backend, every.backend) AS kernel, every.own_us,
           points.rough, every.finished_at, every.device_uuid, every.libraries, every.torch_version
    FROM points
    JOIN problems USING (problem)
    JOIN rows AS newest USING (row)
    JOIN rows AS every ON every.point_id = newest.point_id AND every.device_name = newest.device_name AND every.status = 'ok'
    WHERE points.status = 'ok' AND NOT is_reference(points.backend) AND coalesce(problems.context, 'isolated') = 'isolated'
        AND coalesce(problems.l2, 'clean') = 'clean' AND coalesce(problems.icache, 'warm') = 'warm' AND coalesce(problems.pace, 'bursts') = 'bursts' AND problems.mask = 'causal'
        AND coalesce(problems.seq_lens, 'fixed') = 'fixed' AND problems.batch_spec IS NULL AND problems.min_s_qo IS NULL AND problems.graph_batch IS NULL
        AND problems.max_seq_len IS NULL AND problems.enable_pdl IS NULL
), beside AS (
    SELECT e.row, kv_tokens, i.*, r.turn, r.stand_in, coalesce(i.device_uuid = e.device_uuid, false) AS same_gpu,
           coalesce(list_has_any(string_split(i.libraries, ', '), [e.engine || ' ' || e.engine_version, 'flashinfer-python ' || ran.flashinfer_version]),
                    false) AS same_build,
           i.torch_version IS NOT DISTINCT FROM ran_torch AS same_torch
    FROM engine_points AS e
    JOIN (SELECT row AS ran_row, flashinfer_version, torch_version AS ran_torch FROM rows) AS ran ON ran_row = e.row
    JOIN engine_runs AS r USING (engine, engine_version, flag, major, of_layers, phase, kv_dtype, sinks)
    JOIN isolated AS i ON i.routine = r.routine AND i.backend = r.backend AND i.device_name = e.device_name
        AND (i.q_dtype LIKE 'fp8%') = (r.rounds_q AND e.kv_dtype LIKE 'fp8%')
        AND (i.kv_dtype, i.page_size, i.batch_size, i.s_qo) = (e.kv_dtype, e.page_size, e.batch_size, e.s_qo)
        AND (i.num_qo_heads, i.num_kv_heads, i.head_dim_qk, i.head_dim_vo) = (e.num_qo_heads, e.num_kv_heads, e.head_dim_qk, e.head_dim_vo)
        AND i.head_dim_ckv IS NOT DISTINCT FROM e.head_dim_ckv AND i."window" IS NOT DISTINCT FROM e."window"
        AND coalesce(i.sinks, false) = e.sinks
), matched AS (
    SELECT beside.*
    FROM beside
    JOIN engine_points AS e USING (row)
    WHERE beside.s_kv = e.s_kv
    QUALIFY row_number() OVER (PARTITION BY row ORDER BY turn, same_build DESC, same_torch DESC, same_gpu DESC, finished_at DESC, isolated_row) = 1
), ends AS (
    SELECT matched.row,
           first({'at': other.s_kv, 'us': other.own_us} ORDER BY other.s_kv DESC, other.finished_at DESC, other.isolated_row)
               FILTER (other.s_kv <= kv_tokens) AS low,
           first({'at': other.s_kv, 'us': other.own_us} ORDER BY other.s_kv, other.finished_at DESC, other.isolated_row)
               FILTER (other.s_kv >= kv_tokens) AS high
    FROM matched
    JOIN isolated AS other USING (family, device_name, batch_size, s_qo, backend)
    WHERE (other.device_uuid, other.libraries) IS NOT DISTINCT FROM (matched.device_uuid, matched.libraries)
    GROUP BY matched.row
), names AS (
    SELECT row, unnest(string_split(main_kernels, ' | ')) AS name FROM engine_points
    UNION ALL
    SELECT DISTINCT row, name FROM (SELECT row, unnest(string_split(combine_kernels, ' | ')) AS name FROM engine_points)
    JOIN kernel_names ON contains(name || ' ', part)
), profiles AS (
    SELECT row, array_to_string(list_sort(list(DISTINCT coalesce(trim(part), regexp_extract(name, '[^<(]{1,60}')))), ', ') AS ran
    FROM names LEFT JOIN (SELECT DISTINCT part FROM kernel_names) ON contains(name || ' ', part)
    GROUP BY row
), compared AS (
    SELECT row, bool_and(part IS NOT NULL) AND count(DISTINCT part) = any_value(parts) AS is_same
    FROM matched
    LEFT JOIN (SELECT routine, kernel, count(DISTINCT part) AS parts FROM kernel_names GROUP BY ALL) USING (routine, kernel)
    JOIN names USING (row)
    LEFT JOIN kernel_names AS k ON k.routine = matched.routine AND k.kernel = matched.kernel AND contains(name || ' ', part)
    GROUP BY row
), told AS (
    SELECT e.*, m.routine || '/' || m.backend AS called, m.kernel AS isolated_kernel, m.isolated_row, m.own_us AS isolated_us, m.rough,
           m.stand_in, same_gpu, ran, r.note, r.known,
           CASE WHEN r.note <> '' THEN r.note
                WHEN m.row IS NULL THEN 'no isolated row of ' || r.calls || ' there'
                WHEN m.kernel NOT IN (SELECT kernel FROM kernel_names) THEN 'how a profile names ' || m.kernel || ' is not known'
                WHEN NOT is_same THEN 'it ran ' || ran || ', and ' || called || ' does not' END AS why_not,
           if(low.at < high.at, 'line', 'proportion') AS scaled,
           if(low.at < high.at, low.us + (high.us - low.us) * (e.kv_tokens - low.at) / (high.at - low.at), m.own_us * e.kv_tokens / e.s_kv)
               AS at_length_us
    FROM engine_points AS e
    JOIN (
        SELECT engine, engine_version, flag, major, of_layers, phase, kv_dtype, sinks, any_value(note) AS note, any_value(known) AS known,
               string_agg(routine || '/' || backend, ' or ' ORDER BY turn) AS calls
        FROM engine_runs GROUP BY ALL
    ) AS r USING (engine, engine_version, flag, major, of_layers, phase, kv_dtype, sinks)
    LEFT JOIN matched AS m USING (row)
    LEFT JOIN ends USING (row)
    LEFT JOIN compared USING (row)
    LEFT JOIN profiles USING (row)
)
SELECT * EXCLUDE (major, of_layers, note, at_length_us, scaled),
       if(why_not IS NULL, at_length_us, NULL) AS predicted_us,
       if(why_not IS NULL, scaled, NULL) AS scaled,
       measured_us / predicted_us - 1 AS error,
       greatest(0, 1 - kernels_us / wall_us) AS idle_share
FROM told
