-- How well is attention inside an engine predicted, by flag? The rows of `in_engine`, added up: `most_error` is the 90th percentile of
-- the errors without their signs, `most_us` the largest in µs, `share` the median part of a step that attention is.
SELECT device_name, engine, engine_version, flag, phase, kv_dtype, string_agg(DISTINCT called, ', ' ORDER BY called) AS called,
       string_agg(DISTINCT ran, '; ' ORDER BY ran) AS ran, any_value(known) AS known, count(*) AS points, count(error) AS compared,
       median(error) AS median_error, quantile_cont(abs(error), 0.9) AS most_error, max(abs(measured_us - predicted_us)) AS most_us,
       median(share) AS share
FROM in_engine
GROUP BY device_name, engine, engine_version, flag, phase, kv_dtype
