-- Which backend is fastest for each problem, how far ahead of the next, and is that more than noise?
-- Each kernel is ranked once, under the backend of the same name: `auto` would beat or lose to its own choice by noise.
-- torch_sdpa reads a copy of the cache without pages, which no engine has. So it is ranked only where nothing else ran, and its time
-- is `reference_us`.
-- `rel_err` is the relative error of the winner's worst row, and `err_ratio` is that over the runner-up's.
-- The margin is of `own_us`, the time without the launch of the graph. The noise floor is of medians, and so is `above_noise`.
-- Costs in a step have intervals of their own: if these overlap, a lead is not `above_noise` either.
-- `row` is the winner's. `rough` and `runner_up_rough`: such a time is only known within `rough` (5%), which is added to the noise.
-- `measured_as`: the backend whose samples the winner has, if it was credited with them.
WITH named_like_kernel_first AS (
    SELECT problem, kernel, shown, median_us, own_us, rel_err, rough, measured_as, row,
           if(backend = kernel, row, row + 1e18::BIGINT) AS turn
    FROM points
    WHERE status = 'ok'
    QUALIFY NOT is_reference(backend) OR bool_and(is_reference(backend)) OVER (PARTITION BY problem)
), reference AS (
    SELECT problem, min(median_us) AS reference_us
    FROM points
    WHERE status = 'ok' AND is_reference(backend)
    GROUP BY problem
), kernels AS (
    SELECT problem, kernel, arg_min(shown, turn) AS backend, arg_min(median_us, turn) AS median_us, arg_min(own_us, turn) AS own_us,
           arg_min_null(rel_err, turn) AS rel_err, arg_min(rough, turn) AS rough,
           arg_min_null(measured_as, turn) AS measured_as, arg_min(row, turn) AS row
    FROM named_like_kernel_first
    GROUP BY problem, kernel
), ahead AS (
    SELECT problem,
           arg_min(backend, (median_us, kernel), 2) AS backends,
           min(median_us, 2) AS times,
           min(own_us, 2) AS own_times,
           arg_min({'kernel': kernel, 'rel_err': rel_err, 'rough': rough, 'measured_as': measured_as, 'row': row},
                   (median_us, kernel), 2) AS ran
    FROM kernels
    GROUP BY problem
)
SELECT problems.*,
       backends[1] AS backend,
       ran[1].kernel AS kernel,
       times[1] AS median_us,
       own_times[1] AS own_us,
       backends[2] AS runner_up,
       own_times[2] / own_times[1] - 1 AS margin,
       ran[1].rel_err AS rel_err,
       ran[2].rel_err AS runner_up_rel_err,
       ran[1].rel_err / nullif(ran[2].rel_err, 0) AS err_ratio,
       ran[1].rough AS rough,
       ran[2].rough AS runner_up_rough,
       ran[1].measured_as AS measured_as,
       reference_us,
       ran[1].row AS row,
       coalesce(noise_floor, getvariable('noise_floor')) AS noise_floor,
       times[2] / times[1] - 1 > coalesce(noise_floor, getvariable('noise_floor'))
           + getvariable('rough') * (ran[1].rough::INT + ran[2].rough::INT)
           AND coalesce(first.in_step_high_us < second.in_step_low_us, true) AS above_noise
FROM ahead
JOIN problems USING (problem)
LEFT JOIN rows AS first ON first.row = ran[1].row
LEFT JOIN rows AS second ON second.row = ran[2].row
LEFT JOIN reference USING (problem)
LEFT JOIN noise ON noise.device_name = problems.device_name AND times[1] > from_us AND times[1] <= to_us
