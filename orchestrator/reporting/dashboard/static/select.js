// Which rows a view is about, and which of them win. Pure functions of a Dataset; the same rules as the terminal report's.

import { percent, short } from "./numbers.js";

export const WHERE = ["cluster", "device_name"]; // what differs when the machine does

// Rows whose values are among those chosen; a column with nothing chosen lets every row through.
export function filtered(data, chosen) {
  const tests = Object.entries(chosen)
    .filter(([name, words]) => data.has(name) && words.length)
    .map(([name, words]) => {
      const wanted = new Set(words);
      const allowed = data.values(name).map((value) => wanted.has(String(value)));
      return { codes: data.codes(name), allowed };
    });
  return data.everyRow().filter((row) => tests.every(({ codes, allowed }) => allowed[codes[row]]));
}

// A dense number for each of the rows: equal where the rows agree in all the columns named.
export function grouped(data, rows, names) {
  let ids = new Uint32Array(rows.length);
  let count = rows.length ? 1 : 0;
  for (const name of names) {
    const values = data.values(name).length;
    if (values === 1) continue;
    const codes = data.codes(name);
    const seen = new Map();
    ids = ids.map((id, i) => {
      const key = id * values + codes[rows[i]];
      let dense = seen.get(key);
      if (dense === undefined) seen.set(key, (dense = seen.size));
      return dense;
    });
    count = seen.size;
  }
  return { ids, count };
}

// The same as lists of rows, one a group.
export function split(data, rows, names) {
  const { ids, count } = grouped(data, rows, names);
  const lists = Array.from({ length: count }, () => []);
  ids.forEach((id, i) => lists[id].push(rows[i]));
  return lists;
}

// The newest row of each point on a cluster's kind of device, where several versions or runs lie in one dataset.
export function newest(data, rows) {
  const { ids, count } = grouped(data, rows, ["point_id", "cluster", "device_name"]);
  if (count === rows.length) return rows;
  const finished = data.codes("finished_at");
  const last = new Int32Array(count).fill(-1);
  ids.forEach((id, i) => {
    if (last[id] < 0 || finished[rows[i]] >= finished[rows[last[id]]]) last[id] = i;
  });
  return rows.filter((_, i) => last[ids[i]] === i);
}

export function ok(data, rows) {
  const code = data.values("status").indexOf("ok");
  const codes = data.codes("status");
  return rows.filter((row) => codes[row] === code);
}

// A kernel competes once, spoken for by the backend of its own name: `auto` beside its choice would win and lose by noise.
// A backend that reads a copy of the cache, which no engine has, competes only where nothing else ran.
export function kernelsOnce(data, rows) {
  const kept = [];
  const isReference = referenceTest(data);
  for (const same of split(data, rows, data.axes)) {
    const speakers = new Map();
    const others = same.filter((row) => !isReference(row));
    for (const row of others.length ? others : same) {
      const [kernel, backend] = [kernelOf(data, row), data.value("backend", row)];
      if (!speakers.has(kernel) || backend === kernel) speakers.set(kernel, row);
    }
    kept.push(...speakers.values());
  }
  return Uint32Array.from(kept);
}

// Tells whether a row's backend is a reference and no choice: it reads a copy of the cache, which no engine has.
export function referenceTest(data) {
  const pattern = new RegExp(data.header.references);
  const found = data.values("backend").map((name) => pattern.test(String(name)));
  const codes = data.codes("backend");
  return (row) => found[codes[row]];
}

export function kernelOf(data, row) {
  return data.value("resolved_backend", row) ?? data.value("backend", row);
}

// A backend's name for people: of `auto` also what it chose, as auto(fa3).
export function shownBackend(data, row) {
  const [backend, kernel] = [data.value("backend", row), kernelOf(data, row)];
  return backend === "auto" && kernel !== backend ? `auto(${bare(kernel)})` : backend;
}

// A name without the library beside it.
function bare(name) {
  return name.replace(/ \(.*\)$/, "");
}

// The kernel that a row ran, if the backend's name does not tell it: xqa_hopper_fp8 of trtllm-native. `flash_attn_3_32_splits` tells.
export function untoldKernel(backend, kernel) {
  if (kernel === null || backend.startsWith("auto(")) return null;
  const [own, ran] = [bare(backend), bare(kernel)];
  return own.startsWith(ran) || ran.startsWith(own) ? null : kernel;
}

// The same of several rows of one backend; its bare name where it chose several kernels.
export function shownOf(data, rows) {
  const names = new Set([...rows].map((row) => shownBackend(data, row)));
  return names.size === 1 ? [...names][0] : data.value("backend", rows[0]);
}

// How far two medians of one kernel lie apart at a row's device and time, as a share: measured where a noise dataset lay beside.
export function noiseFloor(data, row) {
  const [device, time] = [data.value("device_name", row), data.value("ranked_us", row)];
  const found = data.header.noise.find((range) => range.device_name === device && time > range.from_us && time <= range.to_us);
  return found?.noise_floor ?? data.header.noise_floor;
}

// Whether a row's time is rough: it was only measured until its backend was certainly not the best.
export function isRough(data, row) {
  return data.value("stop_reason", row) === "decided";
}

// `~` before a figure if the time of one of these rows is rough.
export function mark(data, ...rows) {
  return rows.some((row) => row !== null && row !== undefined && isRough(data, row)) ? "~" : "";
}

// A row's time as text, with the mark.
export function timeWords(data, row, name = "ranked_us") {
  const value = data.value(name, row);
  return `${value === null ? "" : mark(data, row)}${short(value)}`;
}

// A time for the table of numbers: a number, or text with the mark of a rough one.
export function numberOf(data, row) {
  return mark(data, row) ? timeWords(data, row) : data.value("ranked_us", row);
}

// How a row came to its time, if not by measuring it in full: for a tooltip.
export function howKnown(data, row) {
  const [us, rel, source] = ["median_us", "ci95_rel", "measured_as"].map((name) => data.value(name, row));
  const between = rel === null ? `within ${percent(data.header.rough)}` : `${short(us * (1 - rel))} to ${short(us * (1 + rel))} µs`;
  return [isRough(data, row) ? `~ rough: ${between}; stopped early, since it is certainly not the best` : null,
    source === null ? null : `measured as ${source}, which makes the same call`].filter((words) => words).join("; ") || null;
}

// Whether the costs in a step of two rows have intervals that overlap.
function overlapInStep(data, row, other) {
  const [low, high] = ["in_step_low_us", "in_step_high_us"].map((name) => [row, other].map((one) => data.value(name, one)));
  return !low.includes(null) && !high.includes(null) && low[0] <= high[1] && low[1] <= high[0];
}

// Whether one time is longer than another by more than noise, and by more than what is rough of them.
export function isBeyondNoise(data, ratio, row, other) {
  return !overlapInStep(data, row, other) && ratio > 1 + noiseFloor(data, row) + data.header.rough * (isRough(data, row) + isRough(data, other));
}

// The time of one row over that of another, both without the launch of the graph.
export function timeRatio(data, row, over) {
  return data.value("own_us", row) / data.value("own_us", over);
}

// What the times are that these rows are ranked by, for a heading.
export function timeOf(data, rows) {
  const contexts = new Set([...rows].map((row) => data.value("context", row) === "step"));
  return contexts.size > 1 ? "µs" : contexts.has(true) ? "µs in a step" : "median µs";
}

// The least time of the rows of each group without the launch of the graph, as a function of a row. A reference counts only alone.
export function fastestOf(data, rows, names) {
  const own = data.codes("own_us");
  const isReference = referenceTest(data);
  const { ids, count } = grouped(data, rows, names);
  const [least, ofAny] = [new Float64Array(count).fill(Infinity), new Float64Array(count).fill(Infinity)];
  const groupOf = new Map();
  ids.forEach((id, i) => {
    const row = rows[i];
    groupOf.set(row, id);
    ofAny[id] = Math.min(ofAny[id], own[row]);
    if (!isReference(row)) least[id] = Math.min(least[id], own[row]);
  });
  return (row) => (least[groupOf.get(row)] < Infinity ? least[groupOf.get(row)] : ofAny[groupOf.get(row)]);
}

// For each shape its rows from the fastest to the slowest.
export function ranked(data, rows, names) {
  const time = data.codes("ranked_us");
  return split(data, rows, names).map((same) => same.sort((a, b) => time[a] - time[b]));
}

// Of the columns named, those that take more than one value among the rows.
export function varying(data, rows, names) {
  return names.filter((name) => {
    const codes = data.codes(name);
    return rows.length && rows.some((row) => codes[row] !== codes[rows[0]]);
  });
}

// The codes that a column takes among the rows, in the order of its values.
export function present(data, rows, name) {
  const codes = data.codes(name);
  const seen = new Uint8Array(data.values(name).length);
  for (const row of rows) seen[codes[row]] = 1;
  return [...seen.keys()].filter((code) => seen[code]);
}

// How often each combination of values of the columns occurs, the most frequent first: [count, a row of it].
export function tally(data, rows, names) {
  return split(data, rows, names).map((same) => [same.length, same[0]]).sort((a, b) => b[0] - a[0]);
}
