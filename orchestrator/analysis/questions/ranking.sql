-- The ranking: which contender is fastest at each {key}, which is next, and is the lead more than noise? Nothing else says "fastest".
-- A reference is ranked only where nothing else was right; its time is `reference_us` otherwise (`reference_backend`).
-- The margin is of `own_us`, the time without the launch of the graph. `noise_floor` holds what
-- the launch of calls under 50 µs differs by; `above_noise` is of medians.
-- Costs in a step have intervals of their own: if these overlap, a lead is not `above_noise` either.
-- `rough` and `runner_up_rough`: such a time is only known within `rough` (5%), which is added to the noise.
-- `rel_err` is the relative error of the winner's worst row, `err_ratio` that over the runner-up's. `measured_as`: the backend whose
-- samples the winner has. `row` is the winner's, `ranked` how many competed.
WITH places AS (
    SELECT {key},
           arg_min({{'backend': backend, 'kernel': kernel, 'reference': reference, 'median_us': median_us, 'own_us': own_us,
                     'rel_err': rel_err, 'rough': rough, 'measured_as': measured_as, 'row': row}},
                   (reference, own_us, median_us, backend, row), 2) AS ran,
           min(median_us) FILTER (reference) AS reference_us,
           min(backend) FILTER (reference) AS reference_backend,
           coalesce(nullif(count(*) FILTER (NOT reference), 0), count(*)) AS ranked
    FROM {contenders}
    GROUP BY {key}
), two AS (
    SELECT * EXCLUDE (ran), ran[1] AS first,
           if(ran[2].reference AND NOT ran[1].reference, NULL, ran[2]) AS second
    FROM places
)
SELECT {key}, first.backend AS backend, first.kernel AS kernel, first.reference AS reference, first.median_us AS median_us,
       first.own_us AS own_us, first.rel_err AS rel_err, first.rough AS rough, first.measured_as AS measured_as, first.row AS row,
       second.backend AS runner_up,
       second.own_us / first.own_us - 1 AS margin,
       second.rel_err AS runner_up_rel_err,
       first.rel_err / nullif(second.rel_err, 0) AS err_ratio,
       second.rough AS runner_up_rough,
       reference_us, reference_backend, ranked,
       floor_at(noise.noise_floor, first.median_us, first.own_us) AS noise_floor,
       second.median_us / first.median_us - 1 > floor_at(noise.noise_floor, first.median_us, first.own_us)
           + getvariable('rough') * (first.rough::INT + second.rough::INT)
           AND coalesce(one.in_step_high_us < other.in_step_low_us, true) AS above_noise
FROM two
JOIN rows AS one ON one.row = first.row
LEFT JOIN rows AS other ON other.row = second.row
LEFT JOIN noise ON noise.device_name = one.device_name AND first.median_us > from_us AND first.median_us <= to_us
