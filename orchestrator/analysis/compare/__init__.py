"""What changed between two selections of rows: point by point and group by group. Reads Parquet alone.

The frame of pairs has the columns of both rows, with the suffixes `_a` for the baseline and `_b` for the candidate. Those that
identify a point (`pairs.POINT_COLUMNS`) have no suffix. It also has:

added by `pairs.pair`, per side
log_us_a, log_us_b              log of the median of the samples, in µs
log_se_a, log_se_b              the standard error of that log, from the samples alone
mhz_a, mhz_b                    median SM clock of the samples, in MHz; null if the row has none
launch_share_us_a, ..._b        what the launch of a graph adds to the median, as `own_us` has it; 0 if none is in it

added by `verdicts.judge`
verdict                         slower, faster, same, undecided; or failing, lost, missing, not measured, fixed, new
comparable                      whether both sides have times that may be compared
counted                         comparable, and its samples are not those of another comparable pair (`measured_as`)
log_ratio                       log_us_b - log_us_a
se                              standard error of log_ratio, with the noise floor and differences of clocks and GPUs
common_variance                 the part of se² that all pairs of a group may share, so that it does not average out
change, change_low, change_high time of the candidate over that of the baseline, less 1; and its 95% interval
interleaved                     whether both were measured on one device at the same time, as A/A pairs are
throttled_a, throttled_b        whether the row's samples were taken while the clock was throttled
note                            what a person should know of the pair, in words; empty if nothing

added by `comparison.compare`
red                             the point makes the comparison red: the gate found it slower, or it has no time any more;
                                of two kinds of device there is no gate, so only the latter
adjusted, limit                 the change without what GPUs and runs explain, and what it must reach to be red alone

The frame of groups has `by` and `value` (the column and its value), `points`, the number of points with each verdict, and
`log_ratio`, `se`, `verdict`, `change`, `change_low` and `change_high` of the group's mean, `red`, and `adjusted`, the median change
without what GPUs and runs explain.
"""
