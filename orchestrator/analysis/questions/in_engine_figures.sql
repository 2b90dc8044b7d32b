-- The figures of `in_engine` and `in_engine_pairs`, a row for each GPU and release of an engine. `within`: the share of the points whose
-- error is at most 5% or 2 µs. `shown`: of the decided pairs those that differ by more of a step than two starts do.
-- What an isolated time is good for: `most_median`, the error at the median, `least_within` and `least_same`, the pairs of one sign;
-- `holds`: all, the order of flags alone, or nothing.
SELECT *, 0.02::DOUBLE AS most_median, 0.9::DOUBLE AS least_within, 0.98::DOUBLE AS least_same, median_error <= most_median AS median_holds,
       within >= least_within AS within_holds, same_attention / nullif(decided, 0) >= least_same AS order_holds,
       CASE WHEN order_holds AND median_holds AND within_holds THEN 'all' WHEN order_holds THEN 'order' ELSE 'nothing' END AS holds,
       replace(replace(engine, 'vllm', 'vLLM'), 'sglang', 'SGLang') || ' ' || engine_version AS title,
       list_transform(regexp_extract_all(engine_version, '[0-9]+'), lambda number: number::INT) AS release
FROM (
    SELECT device_name, engine, engine_version, count(*) AS points, count(error) AS compared, median(share) AS share, median(abs(error)) AS median_error,
           quantile_cont(abs(error), 0.9) AS most_error, max(abs(error)) AS worst_error,
           avg((abs(error) <= 0.05 OR abs(measured_us - predicted_us) <= 2)::INT) FILTER (error IS NOT NULL) AS within,
           string_agg(DISTINCT kv_dtype, ',' ORDER BY kv_dtype) FILTER (error IS NOT NULL) AS caches
    FROM in_engine
    GROUP BY ALL
)
LEFT JOIN (
    SELECT device_name, engine, engine_version, count(*) AS pairs, count_if(decided) AS decided,
           count_if(decided AND same_attention) AS same_attention, count_if(decided AND same_kernels) AS same_kernels, count_if(decided AND same_step) AS same_step,
           count_if(decided AND same_wall) AS same_wall, count_if(decided AND shown > step_floor) AS shown,
           count_if(decided AND shown > step_floor AND same_step) AS shown_same
    FROM in_engine_pairs
    GROUP BY ALL
) USING (device_name, engine, engine_version)
