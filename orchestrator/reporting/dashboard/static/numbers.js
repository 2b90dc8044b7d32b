// Numbers for people, and what the line plot can draw.

export const MISSING = "–";

// Four significant digits, thousands apart.
export function short(value) {
  if (value === null || value === undefined) return MISSING;
  if (typeof value !== "number") return String(value);
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(2);
  const digits = Math.abs(value) >= 1000 ? { maximumFractionDigits: 1 } : { maximumSignificantDigits: 4 };
  return value.toLocaleString("en-US", digits);
}

// An axis and its value.
export function nameOf(name, value) {
  if (name === "dtype" || name === "phase") return String(value);
  return `${name} ${value === null ? "none" : short(value)}`;
}

// Two significant digits, as in the reports: a relative error of 0.0026 is 0.26%.
export function twoDigits(share) {
  return `${Number((share * 100).toPrecision(2))}%`;
}

export function times(ratio) {
  return `${ratio.toFixed(2)}×`;
}

// `spread` says how low_us and high_us bound it: as a time, or as a rate, which is the higher the shorter the time. Without `linear`
// the scale is logarithmic until a person chooses another.
export const METRICS = {
  over_best: { label: "time over the fastest", spread: "time", linear: true },
  median_us: { label: "median time, µs", spread: "time" },
  in_step_us: { label: "cost of a call in a step, µs", spread: null },
  tb_per_sec: { label: "achieved rate, TB/s", spread: "rate" },
  tflops: { label: "TFLOP/s", spread: "rate" },
  frac_of_peak: { label: "fraction of the measured ceiling", spread: "rate" },
  frac_of_datasheet: { label: "fraction of the datasheet's ceiling", spread: "rate" },
  kv_read_amplification: { label: "achieved bytes over one read of the cache", spread: null },
  host_us: { label: "host time, µs", spread: null },
  rel_err: { label: "relative error", spread: null },
  err_over_tolerance: { label: "error over tolerance", spread: null },
  energy_j: { label: "energy of a call, J", spread: null },
  energy_token_j: { label: "energy a query token, J", spread: null },
  power_w: { label: "power, W", spread: null },
  sm_clock_mhz: { label: "SM clock, MHz", spread: null },
  peak_mem_bytes: { label: "peak memory, bytes", spread: null },
};

// The interval of a row's time in units of the metric; null where there is none. `value` is the row's number: bars of a ratio reach as far
// from it as those of the time from the median.
export function spreadOf(data, metric, row, value) {
  const [median, low, high, own] = ["median_us", "low_us", "high_us", "own_us"].map((name) => data.value(name, row));
  const { spread } = METRICS[metric];
  if (spread === null || low === null || high === null) return null;
  if (metric === "over_best") return data.value("context", row) === "step" ? null // the samples are not of the step
    : [low, high].map((time) => (value * (own + time - median)) / own); // what is left out of the median is left out of both
  return spread === "time" ? [low, high] : [(value * median) / high, (value * median) / low];
}
