-- Which times stand out? A spike is a time more than `spike` (30%) above or below the straight line between its two neighbours on an
-- axis (in logarithms), in the same direction on every axis of batch_size, s_kv and s_qo on which it has two neighbours.
-- A step that a whole series makes, as from one query token to two, is no spike (a series is one kernel of a backend, all else
-- equal). So the median of what the points of a series are off at that value of the axis is subtracted first. If a series has fewer
-- than three such points, those of the same kernel on that device in all series are used.
WITH all_series AS MATERIALIZED (
    SELECT row_number() OVER () AS series, dense_rank() OVER (ORDER BY device_name, kernel) AS on_device, *
    FROM (SELECT DISTINCT family, device_name, backend, kernel FROM points JOIN problems USING (problem))
), measured AS (
    SELECT row, series, batch_size, s_qo, s_kv, ln(median_us) AS us
    FROM points
    JOIN problems USING (problem)
    JOIN all_series USING (family, device_name, backend, kernel)
    WHERE status IN ('ok', 'too coarse') AND median_us > 0
), lines AS (
    SELECT row, series, batch_size, s_qo, s_kv,
           off_the_line(lag(us) OVER b, lag(batch_size) OVER b, us, batch_size, lead(us) OVER b, lead(batch_size) OVER b) AS off_batch,
           off_the_line(lag(us) OVER q, lag(s_qo) OVER q, us, s_qo, lead(us) OVER q, lead(s_qo) OVER q) AS off_draft,
           off_the_line(lag(us) OVER c, lag(s_kv) OVER c, us, s_kv, lead(us) OVER c, lead(s_kv) OVER c) AS off_context
    FROM measured
    WINDOW b AS (PARTITION BY series, s_qo, s_kv ORDER BY batch_size),
           q AS (PARTITION BY series, batch_size, s_kv ORDER BY s_qo),
           c AS (PARTITION BY series, batch_size, s_qo ORDER BY s_kv)
), off_by_axis AS (
    SELECT row, series, 'batch_size' AS axis, batch_size AS x, off_batch AS off FROM lines WHERE off_batch IS NOT NULL
    UNION ALL
    SELECT row, series, 's_qo', s_qo, off_draft FROM lines WHERE off_draft IS NOT NULL
    UNION ALL
    SELECT row, series, 's_kv', s_kv, off_context FROM lines WHERE off_context IS NOT NULL
), steps AS (
    SELECT series, axis, x, median(off) AS step FROM off_by_axis GROUP BY ALL HAVING count(*) >= 3
), steps_on_device AS (
    SELECT on_device, axis, x, median(off) AS step FROM off_by_axis JOIN all_series USING (series) GROUP BY ALL HAVING count(*) >= 3
), beyond AS (
    SELECT row, off - coalesce(steps.step, steps_on_device.step, 0) AS off
    FROM off_by_axis
    JOIN all_series USING (series)
    LEFT JOIN steps USING (series, axis, x)
    LEFT JOIN steps_on_device USING (on_device, axis, x)
), spikes AS (
    SELECT row, exp(if(min(off) > 0, min(off), max(off))) AS times
    FROM beyond
    GROUP BY row
    HAVING min(off) > ln(getvariable('spike')) OR max(off) < -ln(getvariable('spike'))
)
SELECT row, device_name, backend, kernel, batch_size, s_qo, s_kv, median_us, times
FROM spikes
JOIN points USING (row)
JOIN problems USING (problem)
