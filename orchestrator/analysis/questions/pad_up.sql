-- Where do more query tokens cost less? Causal drafts of s_qo tokens that are cheaper if they are padded to `pad_to` tokens.
-- Each side is at its best backend of the same routine. The longer one may run another kernel, so its answer may be less exact:
-- `pad_err_ratio` is its relative error over that of the draft as it is.
-- `longer_by` is of `own_us`, the time without the launch of the graph. Medians must differ by more than noise and `same`,
-- and by `rough` (5%) for each that is only known so far: `rough`, `pad_rough`.
WITH longer AS (
    SELECT *,
           arg_min({'pad_to': s_qo, 'pad_backend': backend, 'pad_kernel': kernel, 'pad_us': us, 'pad_own_us': own_us,
                    'pad_rel_err': rel_err, 'pad_rough': rough}, (us, s_qo))
               OVER (PARTITION BY family, device_name, batch_size, s_kv ORDER BY s_qo
                     ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS padded
    FROM fastest
    WHERE mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine IN ('paged_decode', 'paged_prefill', 'mla')
), both_sides AS (
    SELECT * EXCLUDE (padded), unnest(padded)
    FROM longer
    WHERE padded IS NOT NULL
)
SELECT b.*,
       own_us / pad_own_us - 1 AS longer_by,
       pad_rel_err / nullif(rel_err, 0) AS pad_err_ratio
FROM both_sides AS b
LEFT JOIN noise ON noise.device_name = b.device_name AND us > from_us AND us <= to_us
WHERE us / pad_us - 1 > greatest(floor_at(noise_floor, us, own_us), getvariable('same'))
    + getvariable('rough') * (rough::INT + pad_rough::INT)
