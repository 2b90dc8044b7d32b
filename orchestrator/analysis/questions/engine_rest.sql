-- What does a step inside an engine take beside attention? A row for each number of query tokens in a batch: `layer_us` of each layer and
-- `fixed_us` of the whole step (embedding, the plan of attention, output projection, sampling), on the line through steps of several numbers of layers. Of one
-- number alone (`layers`) all counts as of the layers, which is too much for a longer model. All is of kernels: in the gaps of a step of
-- few layers the GPU waits for the host, which more layers hide.
SELECT device_name, engine, engine_version, model, tp, tokens, list(DISTINCT layers ORDER BY layers) AS layers,
       if(count(DISTINCT layers) > 1, regr_slope(rest, layers), median(rest / layers)) AS layer_us,
       if(count(DISTINCT layers) > 1, regr_intercept(rest, layers), 0) AS fixed_us
FROM (SELECT *, batch_size * s_qo AS tokens, kernels_us - layers * measured_us AS rest FROM engine_points)
GROUP BY device_name, engine, engine_version, model, tp, tokens
