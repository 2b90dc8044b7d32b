-- Does the better flag of two stay the better one inside an engine? A row for each two flags that were timed at one workload on one GPU
-- and run calls that differ; times of several starts are their median. `predicted`, `attention`, `kernels`, `step` and `wall` are what the second
-- flag takes over the first, less 1: by isolated rows, in attention inside the engine at the same length, in all kernels of a step, in
-- steps on the GPU with the gaps between kernels, and by the wall.
-- `decided`: the predicted difference is larger than the 90th percentile of the errors of `in_engine` on that device (`limit_error`).
-- `shown` is what the difference in attention makes of a step, over the step: below `step_floor` or `wall_floor`, the 90th percentile of
-- what two starts of one point on one GPU differ by (0 if nothing was started twice), a step cannot show it.
-- `idle_share` is the larger one of the two: where the GPU waits for the host, the wall shows the host. `so` is what became of a
-- predicted difference, and where a whole step does not show it, why.
WITH every AS (
    SELECT device_name, coalesce(device_uuid, '') AS device_uuid, engine, engine_version, model, tp, kv_dtype, batch_size, s_qo, s_kv, page_size, "window", layers,
           flag, any_value(called) AS called, count(*) AS starts, median(isolated_us) AS isolated_us,
           median(measured_us * isolated_us / predicted_us) AS attention_us, median(kernels_us) AS kernels_us, median(step_us) AS step_us,
           median(wall_us) AS wall_us,
           median(idle_share) AS idle_share, median(host_us) AS host_us
    FROM (SELECT * REPLACE (coalesce("window", 0) AS "window") FROM in_engine)
    WHERE error IS NOT NULL
    GROUP BY ALL
), limits AS (
    SELECT device_name, engine, engine_version, quantile_cont(abs(error), 0.9) AS limit_error
    FROM in_engine WHERE error IS NOT NULL GROUP BY ALL
), floors AS (
    SELECT device_name, engine, engine_version, quantile_cont(step_range, 0.9) AS step_floor, quantile_cont(wall_range, 0.9) AS wall_floor
    FROM in_engine_starts WHERE gpus = 1 GROUP BY ALL
)
SELECT *, CASE
        WHEN NOT decided THEN format('predicted to differ by less than the error ({:.1f}%)', 100 * limit_error)
        WHEN NOT same_attention THEN 'the other sign'
        WHEN same_step AND same_wall THEN 'the same sign'
        ELSE if(same_step, 'hidden by the wall: ', 'hidden by a step: ') || CASE
            WHEN idle_share > 0.1 THEN format('the GPU waits {:.0f}% of it, and the host takes {} and {} µs', 100 * idle_share,
                                              host_us::BIGINT, other_host_us::BIGINT)
            WHEN shown < if(same_step, wall_floor, step_floor)
                THEN format('it is {:.1f}% of one, and two starts differ by {:.1f}%', 100 * shown, 100 * if(same_step, wall_floor, step_floor))
            ELSE format('it is {:.1f}% of one, which is not explained', 100 * shown) END END AS so
FROM (SELECT a.* EXCLUDE (flag, called, starts, isolated_us, attention_us, kernels_us, step_us, wall_us, idle_share, host_us),
       a.flag AS flag, b.flag AS other, a.called AS called, b.called AS other_called, least(a.starts, b.starts) AS starts,
       a.isolated_us, b.isolated_us AS other_isolated_us, b.isolated_us / a.isolated_us - 1 AS predicted,
       b.attention_us / a.attention_us - 1 AS attention, b.kernels_us / a.kernels_us - 1 AS kernels,
       b.step_us / a.step_us - 1 AS step, b.wall_us / a.wall_us - 1 AS wall,
       abs(b.isolated_us - a.isolated_us) > limit_error * greatest(a.isolated_us, b.isolated_us) AS decided,
       sign(predicted) = sign(attention) AS same_attention, sign(predicted) = sign(kernels) AS same_kernels,
       sign(predicted) = sign(step) AS same_step, sign(predicted) = sign(wall) AS same_wall,
       layers * abs(b.attention_us - a.attention_us) / a.step_us AS shown, limit_error,
       coalesce(step_floor, 0) AS step_floor, coalesce(wall_floor, 0) AS wall_floor,
       greatest(a.idle_share, b.idle_share) AS idle_share, a.host_us, b.host_us AS other_host_us
FROM every AS a
JOIN every AS b USING (device_name, device_uuid, engine, engine_version, model, tp, kv_dtype, batch_size, s_qo, s_kv, page_size, "window", layers)
JOIN limits USING (device_name, engine, engine_version)
LEFT JOIN floors USING (device_name, engine, engine_version)
WHERE a.flag < b.flag AND a.called <> b.called
)
