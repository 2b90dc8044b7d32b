-- Is a draft verified faster by the decode kernel or by the prefill kernel? The best of each, for problems equal in all other keys.
SELECT * EXCLUDE (problem, family, routine, backend, median_us, runner_up, margin, reference_us, noise_floor, above_noise),
       min(median_us) FILTER (routine = 'paged_decode') AS decode_us,
       min(median_us) FILTER (routine = 'paged_prefill') AS prefill_us,
       any_value(backend) FILTER (routine = 'paged_decode') AS decode_backend,
       any_value(backend) FILTER (routine = 'paged_prefill') AS prefill_backend,
       greatest(decode_us, prefill_us) / least(decode_us, prefill_us) - 1 AS ahead_by,
       CASE WHEN ahead_by <= getvariable('same') THEN 'either'
            WHEN prefill_us < decode_us THEN 'prefill'
            ELSE 'decode' END AS faster
FROM best
WHERE routine IN ('paged_decode', 'paged_prefill')
GROUP BY ALL
HAVING decode_us IS NOT NULL AND prefill_us IS NOT NULL
