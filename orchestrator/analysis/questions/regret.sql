-- What does `auto` cost? Its time over that of the fastest backend. A reference does not count.
-- The regret is of `own_us`, the time without the launch of the graph; 1 if `auto` made the fastest call itself. `rough`: it is of a
-- time that is only known within 5%. `measured_as`: the backend whose samples `auto` has, since it makes the same call.
SELECT problems.*, points.own_us AS auto_us, points.kernel AS auto_ran, ranked.backend AS best, ranked.kernel AS best_kernel,
       ranked.own_us AS best_us, ranked.rel_err AS best_rel_err, greatest(1, points.own_us / ranked.own_us) AS regret,
       points.row, points.rough OR ranked.rough AS rough, points.measured_as
FROM points
JOIN ranked USING (problem)
JOIN problems USING (problem)
WHERE points.backend = 'auto' AND points.status = 'ok'
