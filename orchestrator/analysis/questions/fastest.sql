-- Which backend that is no reference is fastest for each problem? `rough`: its time is only known within `rough` (5%).
SELECT problems.*, backend, kernel, rel_err, median_us AS us, own_us, rough
FROM ranked
JOIN problems USING (problem)
WHERE NOT reference
