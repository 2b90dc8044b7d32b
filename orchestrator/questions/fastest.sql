-- What one could run: the least time of each problem over every backend but torch_sdpa, which reads a copy of the cache without
-- pages, made outside the time.
WITH least AS (
    SELECT problem, min(median_us) AS us, arg_min(backend, (median_us, row)) AS backend
    FROM points
    WHERE status = 'ok' AND backend <> 'torch_sdpa'
    GROUP BY problem
)
SELECT problems.*, backend, us
FROM least
JOIN problems USING (problem)
