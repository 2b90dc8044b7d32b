-- Who competes at each problem: every kernel with a right answer, once, under the backend of the same name. `auto` beside its own
-- choice, or one call planned in two ways, would win or lose by noise. An engine's own build of a kernel (`own_builds`, conf/engine)
-- competes for itself.
-- `reference`: it computes from a copy of the cache without pages, which no engine has.
-- `backend` is the name for people (`points.shown`), `called` the plain one. `row` is the row with the time.
SELECT problem, arg_min(kernel, turn) AS kernel, bool_or(is_reference(points.backend)) AS reference,
       arg_min(shown, turn) AS backend, arg_min(points.backend, turn) AS called,
       arg_min(median_us, turn) AS median_us, arg_min(own_us, turn) AS own_us, arg_min_null(rel_err, turn) AS rel_err,
       arg_min(rough, turn) AS rough, arg_min_null(measured_as, turn) AS measured_as, arg_min(row, turn) AS row
FROM (
    SELECT points.*, coalesce(build, kernel) AS competitor, if(backend = competitor, row, row + 1e18::BIGINT) AS turn
    FROM points
    LEFT JOIN own_builds USING (backend)
    WHERE status = 'ok'
) AS points
GROUP BY problem, competitor, is_reference(points.backend)
