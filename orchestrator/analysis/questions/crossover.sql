-- Is a draft verified faster by the decode kernel or by the prefill kernel? The best of each, for problems equal in all other keys.
-- How far one is ahead is of `own_us`, the time without the launch of the graph. Each time that is only known within `rough` (5%) adds
-- that to what `either` allows; `rough` says that there is one.
SELECT * EXCLUDE (problem, family, routine, backend, kernel, median_us, own_us, rel_err, runner_up, runner_up_rel_err, err_ratio,
                  margin, reference_us, reference_backend, noise_floor, above_noise, rough, runner_up_rough, measured_as, row),
       min(median_us) FILTER (routine = 'paged_decode') AS decode_us,
       min(median_us) FILTER (routine = 'paged_prefill') AS prefill_us,
       any_value(backend) FILTER (routine = 'paged_decode') AS decode_backend,
       any_value(backend) FILTER (routine = 'paged_prefill') AS prefill_backend,
       any_value(kernel) FILTER (routine = 'paged_decode') AS decode_kernel,
       any_value(kernel) FILTER (routine = 'paged_prefill') AS prefill_kernel,
       any_value(rel_err) FILTER (routine = 'paged_decode') AS decode_rel_err,
       any_value(rel_err) FILTER (routine = 'paged_prefill') AS prefill_rel_err,
       min(own_us) FILTER (routine = 'paged_decode') AS decode_own_us,
       min(own_us) FILTER (routine = 'paged_prefill') AS prefill_own_us,
       any_value(rough) FILTER (routine = 'paged_decode')::INT + any_value(rough) FILTER (routine = 'paged_prefill')::INT AS roughs,
       roughs > 0 AS rough,
       greatest(decode_own_us, prefill_own_us) / least(decode_own_us, prefill_own_us) - 1 AS ahead_by,
       CASE WHEN ahead_by <= getvariable('same') + getvariable('rough') * roughs THEN 'either'
            WHEN prefill_us < decode_us THEN 'prefill'
            ELSE 'decode' END AS faster
FROM (SELECT problems.*, ranked.* EXCLUDE (problem, reference, ranked) FROM ranked JOIN problems USING (problem))
WHERE routine IN ('paged_decode', 'paged_prefill')
GROUP BY ALL
HAVING decode_us IS NOT NULL AND prefill_us IS NOT NULL
