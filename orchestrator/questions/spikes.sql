-- What stands out: a time more than `spike` (30%) above, or as far below, the straight line between its two neighbours on an axis
-- (logarithms of both), in the same direction on every axis of batch_size, s_kv and s_qo on which it has two. What other points of
-- the backend are off at that value of the axis is taken off first, by their median: a step that all of them make, as from one
-- query token to two, is how the kernel is, and no spike. (Three points or more of the family, else of the kernel on that device.)
WITH points_on_axes AS (
    SELECT row, family, cluster, device_name, backend, kernel, batch_size, s_qo, s_kv, median_us, ln(median_us) AS us
    FROM points
    JOIN problems USING (problem)
    WHERE status = 'ok' AND median_us > 0
), neighbours AS (
    SELECT *, 'batch_size' AS axis, batch_size AS x,
           lag(batch_size) OVER line AS x0, lead(batch_size) OVER line AS x1, lag(us) OVER line AS us0, lead(us) OVER line AS us1
    FROM points_on_axes
    WINDOW line AS (PARTITION BY family, cluster, device_name, backend, s_qo, s_kv ORDER BY batch_size)
    UNION ALL
    SELECT *, 's_qo', s_qo,
           lag(s_qo) OVER line, lead(s_qo) OVER line, lag(us) OVER line, lead(us) OVER line
    FROM points_on_axes
    WINDOW line AS (PARTITION BY family, cluster, device_name, backend, batch_size, s_kv ORDER BY s_qo)
    UNION ALL
    SELECT *, 's_kv', s_kv,
           lag(s_kv) OVER line, lead(s_kv) OVER line, lag(us) OVER line, lead(us) OVER line
    FROM points_on_axes
    WINDOW line AS (PARTITION BY family, cluster, device_name, backend, batch_size, s_qo ORDER BY s_kv)
), off_the_line AS (
    SELECT *, us - (us0 + (us1 - us0) * ln(x / x0) / ln(x1 / x0)) AS off
    FROM neighbours
    WHERE us0 IS NOT NULL AND us1 IS NOT NULL
), steps_of_family AS (
    SELECT family, cluster, device_name, backend, axis, x, median(off) AS step
    FROM off_the_line
    GROUP BY ALL
    HAVING count(*) >= 3
), steps_of_kernel AS (
    SELECT cluster, device_name, kernel, axis, x, median(off) AS step
    FROM off_the_line
    GROUP BY ALL
    HAVING count(*) >= 3
), beyond AS (
    SELECT off_the_line.*, off - coalesce(steps_of_family.step, steps_of_kernel.step, 0) AS beyond
    FROM off_the_line
    LEFT JOIN steps_of_family USING (family, cluster, device_name, backend, axis, x)
    LEFT JOIN steps_of_kernel USING (cluster, device_name, kernel, axis, x)
)
SELECT row, cluster, device_name, backend, kernel, batch_size, s_qo, s_kv, median_us,
       exp(if(min(beyond) > 0, min(beyond), max(beyond))) AS times,
       map_from_entries(list((axis, exp(beyond)) ORDER BY axis)) AS times_by_axis
FROM beyond
GROUP BY ALL
HAVING min(beyond) > ln(getvariable('spike')) OR max(beyond) < -ln(getvariable('spike'))
