-- What does the padding of a captured graph cost? Each backend's time with padded requests over that of the same batch alone.
-- `ratio` is of `own_us`, the time without the launch of the graph. `rough`: a time of it is only known within `rough` (5%).
WITH timed AS (
    SELECT problems.*, points.backend, points.median_us AS us, points.own_us, points.rough
    FROM points
    JOIN problems USING (problem)
    WHERE points.status = 'ok' AND NOT is_reference(points.backend)
), by_batch AS (
    SELECT * EXCLUDE (problem, family, graph_batch, graph_fill, us, own_us, rough),
           min(us) FILTER (graph_batch IS NULL) AS alone_us,
           min(own_us) FILTER (graph_batch IS NULL) AS alone_own_us,
           any_value(rough) FILTER (graph_batch IS NULL) AS alone_rough,
           list({'graph_batch': graph_batch, 'graph_fill': graph_fill, 'padded_us': us, 'padded_own_us': own_us,
                 'padded_rough': rough})
               FILTER (graph_batch IS NOT NULL) AS graphs
    FROM timed
    GROUP BY ALL
), each_graph AS (
    SELECT * EXCLUDE (graphs), unnest(graphs, recursive := true)
    FROM by_batch
    WHERE alone_us IS NOT NULL
)
SELECT * EXCLUDE (alone_rough, padded_rough), padded_own_us / alone_own_us AS ratio, alone_rough OR padded_rough AS rough
FROM each_graph
