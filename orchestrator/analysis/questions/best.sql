-- Which backend is fastest for each workload and dtype of its queries, whatever the routine, how far ahead of the next, and is that more
-- than noise? The ranking, with the winner's problem.
SELECT problems.*, ranked_calls.* EXCLUDE (call_of, reference, ranked)
FROM ranked_calls
JOIN (SELECT row, problem FROM points) USING (row)
JOIN problems USING (problem)
