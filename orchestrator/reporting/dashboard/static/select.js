// Which rows a view is about, and what the rankings that came with them say. Pure functions of a Dataset.

import { short } from "./numbers.js";

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

// The newest row of each point on a kind of device, where several versions or runs lie in one dataset.
export function newest(data, rows) {
  const { ids, count } = grouped(data, rows, ["point_id", "device_name"]);
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

// The lines of a ranking by the number of their problem or workload, which is the code of its winner's row. `level` is either name.
function ranking(data, level) {
  data.rankings ??= {};
  return (data.rankings[level] ??= new Map(Array.from(data.answers.get(level).codes("row"), (row, line) => [data.codes(level)[row], line])));
}

// The fastest of all backends at each problem or workload of these rows, whatever else is filtered: its row, and words of the report.
export function leadersOf(data, rows, level) {
  const [lines, answer, codes] = [ranking(data, level), data.answers.get(level), data.codes(level)];
  const found = [...new Set(Array.from(rows, (row) => codes[row]))].map((number) => lines.get(number)).filter((line) => line !== undefined);
  return found.map((line) => Object.fromEntries([...answer.columns.keys()].map((name) => [name, answer.value(name, line)])));
}

// The same rows and those of the winners.
export function withWinners(data, rows, level) {
  const won = leadersOf(data, rows, level);
  return { won: won.length, rows: Uint32Array.from(new Set([...rows, ...won.map(({ row }) => row)])).sort() };
}

// A row's time over that of the fastest at its problem or workload; null if nothing was right there.
export function overFastest(data, row, level) {
  const line = ranking(data, level).get(data.codes(level)[row]);
  return line === undefined ? null : timeRatio(data, row, data.answers.get(level).value("row", line));
}

// The name of several rows of one backend, with the kernel if all ran the same.
export function shownOf(data, rows) {
  const names = new Set([...rows].map((row) => data.value("ran", row)));
  return names.size === 1 ? [...names][0] : data.value("backend", rows[0]);
}

// Whether a row's time is rough: its backend was stopped once it could not be the fastest.
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

// A time, or a rate that comes from it, for the table of numbers: a number, or text with the mark of a rough one.
export function numberOf(data, row, name = "ranked_us") {
  return mark(data, row) ? timeWords(data, row, name) : data.value(name, row);
}

// How a row came to its time, if not by measuring it in full: for a tooltip.
export function howKnown(data, row) {
  const [low, high, source] = ["low_us", "high_us", "measured_as"].map((name) => data.value(name, row));
  return [isRough(data, row) ? `~ rough: ${low === null ? "" : `${short(low)} to ${short(high)} µs; `}stopped early, since it cannot be the fastest` : null,
    source === null ? null : `measured as ${source}, which makes the same call`].filter((words) => words).join("; ") || null;
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
