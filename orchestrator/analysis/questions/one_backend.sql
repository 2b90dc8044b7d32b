-- What does one choice for all workloads cost at each of them? A row for each workload and each choice that could serve it.
-- A workload is a problem whatever the routine and the dtype of its queries, which come with the choice.
-- `phase`: decode, drafts (2 to 64 query tokens), tree drafts, chunked prefill (more, over pages), prefill (without pages).
-- `who` is an engine, whose choices are its flags (conf/engine), or `backend`, whose choices are the backends here.
-- `choice` is what a user types, `flag` the engine's name of it, `is_default`: the engine takes it by itself.
-- `layers` are the layers that share the choice: `all`, or full, sliding or mla if the engine has a backend for each kind.
-- `stand_in`: no row is of the engine's own build, so another build of the same call counts.
-- `call` is a call here that is what the flag runs; `known` and `evidence` say how that is known, seen or read; `alike` and `others`,
-- what the same text does in other releases (`Known` of config/engine.py).
-- `status` is ok, or why the choice has no time: the status of its row, `not in the engine` or `not measured`; `unsupported by an older
-- rule` if the row says that an engine's own build takes queries of 16 bits alone, and the flag gives it FP8 queries (conf/engine).
-- `regret` is its time over that of the ranking's winner, of `own_us`, the time without the launch of the graph; null without a time.
-- `wrong`: it ran and its answer was wrong; then `rel_err` and `tolerance` are of the wrong answer.
-- `typed_per_layers`: what is typed for one kind of layers, if another kind takes another flag.
-- `own_page`: the page size that the engine takes by itself with this flag; `page_flag` sets another. A flag whose kernel has pages of
-- its own (`kernel_page`) has its row of these in every workload that differs in pages alone.
-- `noise_floor` is that of the choice's time. `rough` and `best_rough`: that time is only known within `rough` (5%).
-- `other_build`: the engine's other release whose library was measured, such as `vllm 0.25.1`; null for this one's and for others' libraries.
-- `measured_as`: the backend whose samples the choice has there. `of_plugin`: its backend is a user's own.
-- `left_out`: with other pages the same `lengths` have more flags to compare, or any; of backends, if all engines leave it out.
-- With `drafts` only steps with so many drafted tokens count: 0 is decode.
-- Workloads without a weight (`weights`) are left out, and those whose KV cache alone is larger than the GPU's memory (`cache_sizes`).
-- The view `one_backend_too_large` has the latter alone.
WITH measured AS (
    SELECT points.problem, points.backend, points.kernel, points.shown, points.status, points.median_us, points.own_us,
           points.rel_err, points.rough, points.measured_as, points.row, workload, lengths, page_size, weight, problems.routine, q_dtype, kv_dtype,
           points.row IN (SELECT row FROM rows WHERE status = 'unsupported' AND reason LIKE '% needs: fp16 or bf16 queries;%') AS wants_half
    FROM points
    JOIN problems USING (problem)
    JOIN workloads USING (problem)
    WHERE NOT is_reference(points.backend) AND {counted}
), served AS (
    SELECT workload, any_value(phase) AS phase, any_value(call_phase) AS call_phase, any_value(of_layers) AS of_layers,
           any_value(weight) AS weight, any_value(lengths) AS lengths, min(problem) AS problem
    FROM workloads
    WHERE {counted} AND workload IN (SELECT workload FROM measured)
        AND (getvariable('drafts') IS NULL OR phase IN ('decode', 'drafts', 'tree drafts'))
    GROUP BY workload
), keyed AS (
    SELECT served.*, device_name, major, kv_dtype, page_size, coalesce(sinks, false) AS sinks, coalesce(mask NOT IN ('causal', 'full'), false) AS tree,
           coalesce(mask = 'prefix', false) AS begins_with_image
    FROM served
    JOIN problems USING (problem)
    LEFT JOIN majors USING (device_name)
    WHERE getvariable('drafts') IS NULL OR s_qo = getvariable('drafts') + 1
), offered AS (
    SELECT keyed.workload, keyed.lengths, keyed.page_size, f.* EXCLUDE (major, of_layers, kv_dtype, tree, sinks), keyed.of_layers,
           f.serves AND (f.pages IS NULL OR keyed.phase = 'prefill' OR coalesce(list_contains(f.pages, page_size), true)) AS possible
    FROM keyed
    JOIN engine_flags AS f ON f.major = keyed.major AND f.phase = keyed.call_phase AND f.of_layers = keyed.of_layers
        AND f.kv_dtype = keyed.kv_dtype AND f.tree = keyed.tree AND f.sinks = keyed.sinks
        AND NOT keyed.begins_with_image  -- of which no flag is known
    QUALIFY row_number() OVER (PARTITION BY keyed.workload, f.engine, f.typed ORDER BY possible DESC, flag_number) = 1
), calls AS (
    SELECT offered.workload, offered.engine AS who, typed AS choice, c.turn, c.stand_in,
           measured.* EXCLUDE (workload, lengths, page_size) REPLACE (if(wants_half AND c.rounds_q AND NOT c.stand_in, 'unsupported by an older rule', measured.status) AS status)
    FROM offered
    JOIN engine_calls AS c USING (engine, flag_number, phase)
    JOIN measured ON measured.lengths = offered.lengths AND measured.routine = c.routine AND measured.backend = c.backend
        AND measured.page_size IS NOT DISTINCT FROM if(offered.page_size IS NULL, NULL, coalesce(kernel_page, offered.page_size))
        AND (measured.q_dtype LIKE 'fp8%') = (c.rounds_q AND measured.kv_dtype LIKE 'fp8%')
    WHERE possible
    UNION ALL
    SELECT workload, 'backend', backend || if(q_dtype LIKE 'fp8%', ' with FP8 queries', ''), 0, false, measured.* EXCLUDE (workload, lengths, page_size)
    FROM measured
    WHERE backend <> 'auto' OR row IN (SELECT row FROM contenders)
), counted AS (
    -- A stand-in counts only if the engine's own build did not run.
    SELECT *
    FROM calls
    QUALIFY turn = coalesce(min(turn) FILTER (status <> 'skipped' AND status NOT LIKE 'unsupported%') OVER (PARTITION BY workload, who, choice),
                            min(turn) OVER (PARTITION BY workload, who, choice))
), taken AS (
    SELECT workload, who, choice, any_value(stand_in) AS stand_in,
           arg_min({{'backend': shown, 'called': backend, 'kernel': kernel, 'routine': routine, 'q_dtype': q_dtype, 'us': median_us,
                    'own_us': own_us, 'rel_err': rel_err, 'row': row, 'rough': rough, 'measured_as': measured_as}},
                   (status <> 'ok', status <> 'mismatch', median_us, row)) AS ran,
           CASE WHEN bool_or(status = 'ok') THEN 'ok' WHEN bool_or(status = 'mismatch') THEN 'mismatch'
                ELSE string_agg(DISTINCT status, ', ' ORDER BY status) END AS status
    FROM counted
    GROUP BY workload, who, choice
), every AS (
    SELECT offered.workload, engine AS who, typed AS choice, name AS flag, is_default, own_page, page_flag, kernel_page, call, known, evidence, alike, others,
           if(typed_per_layers <> '', of_layers, 'all') AS layers, typed_per_layers,
           coalesce(taken.status, if(possible, 'not measured', 'not in the engine')) AS status, stand_in,
           if(taken.status IN ('ok', 'mismatch'), ran, NULL) AS ran
    FROM offered
    LEFT JOIN taken ON taken.workload = offered.workload AND taken.who = offered.engine AND taken.choice = offered.typed
    UNION ALL BY NAME
    SELECT workload, who, choice, NULL AS flag, false AS is_default, NULL AS own_page, NULL AS page_flag, NULL AS kernel_page, NULL AS call, NULL AS known, NULL AS evidence, NULL AS alike, NULL AS others, 'all' AS layers, NULL AS typed_per_layers, status, stand_in,
           if(status IN ('ok', 'mismatch'), ran, NULL) AS ran
    FROM taken
    JOIN keyed USING (workload)
    WHERE who = 'backend'
), priced AS (
    SELECT problems.* EXCLUDE (problem, family, routine, q_dtype, out_dtype), phase, weight, every.* EXCLUDE (ran), lengths,
           ran.* EXCLUDE (us, own_us, rough),
           if(every.status = 'ok', ran.us, NULL) AS us, if(every.status = 'ok', ran.own_us, NULL) AS own_us,
           if(every.status = 'ok', ran.rough, NULL) AS rough,
           every.status = 'mismatch' AS wrong, one.tolerance AS tolerance, is_of_plugin(one.orchestrator_version) AS of_plugin,
           if(every.status = 'mismatch', one.reason, NULL) AS wrong_reason,
           builds.other_build,
           best.backend AS best, best.kernel AS best_kernel, best.median_us AS best_us, best.own_us AS best_own_us,
           best.rel_err AS best_rel_err, best.rough AS best_rough, best.row AS best_row, keyed.major AS major,
           if(every.status = 'ok' AND best.own_us IS NOT NULL, greatest(1, ran.own_us / best.own_us), NULL) AS regret,
           floor_at(noise.noise_floor, ran.us, ran.own_us) AS noise_floor
    FROM every
    JOIN keyed USING (workload)
    JOIN problems USING (problem)
    LEFT JOIN (FROM ranked_workloads WHERE NOT reference) AS best USING (workload)
    LEFT JOIN rows AS one ON one.row = ran.row
    LEFT JOIN builds ON builds.who = every.who AND builds.libraries = one.libraries
    LEFT JOIN noise ON noise.device_name = problems.device_name AND ran.us > from_us AND ran.us <= to_us
), of_pages AS (
    SELECT workload, who, any_value(lengths) AS lengths, count(regret) FILTER (kernel_page IS NULL) AS flags, bool_or(page_size = own_page) AS own, bool_or(is_default AND regret IS NOT NULL) AS has_default
    FROM priced
    WHERE who <> 'backend'
    GROUP BY workload, who
), fewer AS (
    SELECT workload, who,
           flags = 0 AND max(flags) OVER there > 0 OR has_default AND count_if(has_default) OVER there = 2
               AND row_number() OVER (PARTITION BY who, lengths ORDER BY has_default DESC, flags DESC, own) = 2 AS left_out
    FROM of_pages
    WINDOW there AS (PARTITION BY who, lengths)
)
SELECT priced.* EXCLUDE (kernel_page), coalesce(left_out, bool_and(left_out) OVER (PARTITION BY workload), false) AS left_out
FROM priced
LEFT JOIN fewer USING (workload, who)
