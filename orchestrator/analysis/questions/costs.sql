-- What does each choice cost over all workloads of a deployment and phase? The rows of `one_backend`, added up.
-- A deployment is all that its workloads have in common (`deployments.PLACE`). `mean` is the geometric mean of the regret, with `weight`s.
-- `covers`: it was right wherever the engine's default was. Beside the default at these workloads: `saving` is 1 - the mean of its time
-- over the default's, `ahead` where it is faster by more than noise, `floor` the mean noise, `pairs` how many workloads.
-- `most_beside`: the workload at which its time without the launch differs most from the default's, and by how much (`us`); `from_us`
-- and `to_us` are the least and the most over all workloads. `of_plugin`: it is a user's own backend.
-- `rivals`: how many backends ran, right or wrong, at the workload where most did.
-- `of_pages`: what the one other page size that was measured saves beside the engine's own, at workloads that differ in it alone (`lengths`).
-- `typed_page` sets the page size, if the engine takes another by itself: the only one that was measured, or one that saves time
-- by more than noise, by the mean and at more than half of the weight. Of two such workloads flags are compared at that of more flags.
-- `other_builds`: the engine's other releases whose libraries have its times; null if all are of this one's, or of none.
-- `wins`: the `batches` at which it saves most of all flags that do so clearly, by the same rule as for all workloads, and how much.
-- `by_batch`: the batch sizes at which it takes less time than the default by that rule, less by the mean alone ('partly'), as long within
-- noise, or more; empty if one holds for all.
-- `wrong`: workloads at which its answer was wrong; `wrong_err` the largest error there, `why_wrong` the same in words.
WITH timed AS (
    SELECT workload, who, choice, is_default, weight, us, own_us, noise_floor, rough, page_size, own_page,
           hash({place}, phase, who, layers, choice) AS of_choice, lengths, left_out
    FROM one_backend
    WHERE regret IS NOT NULL
), pairs_of_pages AS (
    SELECT other.*, other.own_us / own.own_us AS ratio, other.rough OR own.rough AS is_rough,
           own.noise_floor + {rough} * (other.rough::INT + own.rough::INT) AS floor_there, own.us / other.us - 1 > floor_there AS is_ahead
    FROM timed AS other JOIN timed AS own USING (of_choice, lengths)
    WHERE other.page_size <> other.own_page AND own.page_size = own.own_page
), page_gains AS (
    SELECT of_choice, any_value(page_size) AS page, 1 - exp(sum(weight * ln(ratio)) / sum(weight)) AS saving,
           {{'page': page, 'saving': saving, 'rough': bool_or(is_rough)}} AS of_pages,
           saving > sum(weight * floor_there) / sum(weight) AND sum(weight * is_ahead::INT) / sum(weight) > 0.5 AS saves
    FROM pairs_of_pages
    GROUP BY of_choice
    HAVING count(DISTINCT page_size) = 1
), base AS (
    SELECT workload, who, us AS base_us, own_us AS base_own_us, noise_floor AS base_floor, rough AS base_rough
    FROM timed
    WHERE is_default AND NOT left_out
), all_pages AS (
    SELECT of_choice, list(DISTINCT page_size) AS measured_pages FROM timed GROUP BY of_choice
), beside AS (
    SELECT one_backend.* EXCLUDE (left_out), count(DISTINCT workload) OVER (PARTITION BY {place}, phase, who, layers) AS whole,
           count(DISTINCT choice) FILTER (who = 'backend' AND (regret IS NOT NULL OR wrong)) OVER (PARTITION BY workload) AS ran_there,
           base_us IS NOT NULL AS has_default, base_own_us, own_us / base_own_us AS ratio, rough OR base_rough AS is_rough,
           base_floor + {rough} * (base_rough::INT + rough::INT) AS floor_there,
           base_us / us - 1 > floor_there AS is_ahead, us / base_us - 1 > floor_there AS is_behind
    FROM one_backend
    LEFT JOIN base USING (workload, who)
    WHERE NOT left_out
), of_batches AS (
    SELECT hash({place}, phase, who, layers, choice) AS of_choice, batch_size, bool_or(is_rough) AS is_rough,
           sum(weight * ln(ratio)) AS log_ratio, sum(weight) AS weight
    FROM beside
    WHERE has_default
    GROUP BY {place}, phase, who, layers, choice, batch_size
    HAVING count(ratio) = count(*) AND NOT bool_or(is_default) AND sum(weight * is_ahead::INT) / sum(weight) > 0.5
        AND 1 - exp(sum(weight * ln(ratio)) / sum(weight)) > sum(weight * floor_there) / sum(weight)
    QUALIFY row_number() OVER (PARTITION BY {place}, phase, who, layers, batch_size ORDER BY sum(weight * ln(ratio)) / sum(weight), choice) = 1
), wins AS (
    SELECT of_choice, {{'batches': list(batch_size ORDER BY batch_size), 'saving': 1 - exp(sum(log_ratio) / sum(weight)), 'rough': bool_or(is_rough)}} AS wins
    FROM of_batches
    GROUP BY of_choice
), each_batch AS (
    SELECT hash({place}, phase, who, layers, choice) AS of_choice, batch_size, bool_or(is_rough) AS is_rough,
           1 - exp(sum(weight * ln(ratio)) / sum(weight)) AS saving,
           CASE WHEN abs(saving) <= sum(weight * floor_there) / sum(weight) THEN 'same' WHEN saving < 0 THEN '+'
                WHEN sum(weight * is_ahead::INT) / sum(weight) > 0.5 THEN '−' ELSE 'partly' END AS sign
    FROM beside
    WHERE ratio IS NOT NULL
    GROUP BY {place}, phase, who, layers, choice, batch_size
), signs AS (
    SELECT of_choice, sign, string_agg(batch_size, ', ' ORDER BY batch_size) AS batches,
           format('{{}}{{}}{{:.1f}}%', sign, if(arg_min(is_rough, abs(saving)), '~', ''), 100 * min(abs(saving))) AS least,
           format('{{}}{{}}{{:.1f}}%', sign, if(arg_max(is_rough, abs(saving)), '~', ''), 100 * max(abs(saving))) AS most,
           batches || ': ' || if(sign NOT IN ('−', '+'), sign, if(least = most, least, least || ' to ' || most)) AS words
    FROM each_batch
    GROUP BY of_choice, sign
), by_batch AS (
    SELECT of_choice, 'batch ' || string_agg(words, '; ' ORDER BY sign <> '−', sign <> 'partly', sign <> 'same') AS by_batch
    FROM signs
    GROUP BY of_choice
    HAVING count(*) > 1
)
SELECT {place}, phase, who, layers, choice, any_value(flag) AS flag, bool_and(is_default) AS is_default, 
       list(DISTINCT {{'call': call, 'known': known, 'evidence': evidence, 'alike': alike, 'others': others}}) AS known,
       any_value(own_page) AS own_page, any_value(typed_per_layers) AS typed_per_layers,
       any_value(major) AS major, max(ran_there) AS rivals, any_value(whole) AS workloads, count(regret) AS served,
       coalesce(sum(weight) FILTER (regret IS NOT NULL), 0) AS weight,
       exp(sum(weight * ln(regret)) / sum(weight) FILTER (regret IS NOT NULL)) AS mean, max(regret) AS worst,
       arg_max({{'batch_size': batch_size, 's_kv': s_kv, 's_qo': s_qo, 'best': best, 'kernel': best_kernel,
                 'rough': rough OR best_rough}}, (regret, -row)) FILTER (regret IS NOT NULL) AS worst_at,
       count_if(regret > {much}) AS much_slower, coalesce(sum(weight) FILTER (regret > {much}), 0) AS much_slower_weight,
       max(rel_err) FILTER (regret IS NOT NULL) AS rel_err, arg_max(tolerance, rel_err) FILTER (regret IS NOT NULL) AS allowed, count_if(regret IS NOT NULL AND (rough OR best_rough)) AS rough,
       count_if(wrong) AS wrong, max(rel_err) FILTER (wrong) AS wrong_err,
       why_wrong(wrong_err, arg_max(tolerance, rel_err) FILTER (wrong), arg_max(wrong_reason, rel_err) FILTER (wrong)) AS why_wrong,
       arg_max({{'batch_size': batch_size, 's_kv': s_kv, 's_qo': s_qo}}, rel_err) FILTER (wrong) AS wrong_at,
       histogram(status) AS statuses,
       list(DISTINCT {{'routine': routine, 'backend': called, 'kernel': kernel, 'shown': backend}}) FILTER (regret IS NOT NULL) AS ran,
       list(DISTINCT called) FILTER (regret IS NOT NULL AND stand_in) AS stand_ins,
       string_agg(DISTINCT other_build, ', ' ORDER BY other_build) FILTER (regret IS NOT NULL) AS other_builds,
       any_value(measured_pages) AS pages, coalesce(bool_or(of_plugin), false) AS of_plugin,
       any_value(of_pages) AS of_pages, any_value(wins) AS wins, coalesce(any_value(by_batch), '') AS by_batch,
       CASE WHEN len(pages) = 1 AND pages[1] <> any_value(own_page) THEN any_value(page_flag) || ' ' || pages[1]
            WHEN len(pages) = 2 AND any_value(saves) THEN any_value(page_flag) || ' ' || any_value(page) END AS typed_page,
       list(DISTINCT measured_as) FILTER (measured_as IS NOT NULL) AS measured_as,
       min(us) AS least_us, max(us) AS most_us, list(DISTINCT s_qo ORDER BY s_qo) AS lengths,
       count_if(has_default) = count(ratio) AS covers, count(ratio) AS pairs,
       1 - exp(sum(weight * ln(ratio)) / sum(weight) FILTER (ratio IS NOT NULL)) AS saving,
       coalesce(bool_or(is_rough) FILTER (ratio IS NOT NULL), false) AS rough_ratio, max(ratio) AS worst_ratio,
       count_if(is_ahead) AS ahead, count_if(is_behind) AS behind, count(ratio) - ahead - behind AS close,
       sum(weight * floor_there) / sum(weight) FILTER (ratio IS NOT NULL) AS floor,
       arg_max({{'batch_size': batch_size, 's_kv': s_kv, 's_qo': s_qo, 'window': "window", 'us': own_us - base_own_us, 'base_us': base_own_us}},
               (abs(own_us - base_own_us), -row)) FILTER (ratio IS NOT NULL) AS most_beside,
       min(own_us - base_own_us) FILTER (ratio IS NOT NULL) AS from_us, max(own_us - base_own_us) FILTER (ratio IS NOT NULL) AS to_us,
       sum(weight * is_ahead::INT) / sum(weight) FILTER (ratio IS NOT NULL) AS share_ahead
FROM beside
LEFT JOIN page_gains ON page_gains.of_choice = hash({place}, phase, who, layers, choice)
LEFT JOIN all_pages ON all_pages.of_choice = hash({place}, phase, who, layers, choice)
LEFT JOIN wins ON wins.of_choice = hash({place}, phase, who, layers, choice)
LEFT JOIN by_batch ON by_batch.of_choice = hash({place}, phase, who, layers, choice)
GROUP BY {place}, phase, who, layers, choice
