-- Which backend is fastest for each problem, how far ahead of the next, and is that more than noise? The ranking, with the problem.
SELECT problems.*, ranked.* EXCLUDE (problem, reference, ranked)
FROM ranked
JOIN problems USING (problem)
