-- What does an engine's default cost? The rows of `one_backend` that are the default of a release and have a time: its time over that
-- of the fastest backend at the same workload. `taken` is the backend here that makes the same call, the engine's own build if it was
-- measured (`stand_in` otherwise), `name` what the engine calls it, `taken_us` its time
-- without the launch, as `regret` has it, and `best_us` that of the fastest.
SELECT * EXCLUDE (who, best_us, best_own_us, choice, flag, is_default, status, backend, called, us, own_us, rel_err, wrong, tolerance, wrong_reason, own_page,
                  page_flag, typed_per_layers, lengths, left_out),
       who AS engine, flag AS name, called AS taken, own_us AS taken_us, best_own_us AS best_us, rel_err AS taken_rel_err
FROM one_backend
WHERE is_default AND regret IS NOT NULL AND NOT left_out
