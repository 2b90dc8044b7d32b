// Two runs, GPUs, versions or backends: the time of the candidate over that of the baseline, point by point.

import { choice, h, table } from "./dom.js";
import { nameOf, short, times } from "./numbers.js";
import { axisOf, evenLine, nothing, panel, ratioAxis } from "./panels.js";
import { grouped, isRough, mark, newest, numberOf, ok, present, shownOf, split, timeOf } from "./select.js";
import { ink, sign, signOf } from "./theme.js";

const VERSIONS = ["run_id", "libraries", "flashinfer_version", "torch_version", "orchestrator_version"];
const BY = ["run_id", "device_name", "cluster", "libraries", "flashinfer_version", "torch_version", "orchestrator_version", "driver", "twin", "dtype",
  "backend", "routine"];

export function compareView(context) {
  const { data, state, unmerged } = context;
  const right = ok(data, unmerged);
  const able = usable(data, unmerged);
  if (!able.length) {
    return [nothing(data, unmerged, "There is nothing to compare: in view are one run, one GPU, one version and one backend, or no ok point.")];
  }
  let [by, counts] = [];
  for (by of able.includes(state.by) ? [state.by] : able) {
    counts = common(data, right, by);
    if (counts.any) break;
  }
  const values = present(data, right, by).map((code) => String(data.values(by)[code]));
  const [base, cand] = pairOf(values, counts, state);
  const pairs = paired(data, right, by, base, cand);
  const head = controls(context, able, by, values, counts, base, cand);
  if (!pairs.length) return [head, nothing(data, unmerged, `${base} and ${cand} have no ok point in common; they differ by more than ${by}.`)];
  return [head, ...bestAgainstBest(data, base, cand), summary(data, pairs), scatter(context, pairs, by, base, cand)];
}

// The columns of which several values are in view, with times to compare.
export function usable(data, rows) {
  const right = ok(data, rows);
  return BY.filter((name) => present(data, right, name).length > 1);
}

// The first table of mode=compare, for two GPUs.
function bestAgainstBest(data, base, cand) {
  const found = data.header.compared[`${base} ${cand}`];
  return found ? [h("div", { class: "scroll", id: "best-of" }, table(found.title, found.header, found.rows))] : [];
}

// How many points each two values of a column have in common, as a function of two words.
function common(data, right, by) {
  const found = new Map();
  for (const same of split(data, right, sameNames(data, by))) {
    const values = [...new Set(same.map((row) => String(data.value(by, row))))].sort();
    const pairs = values.flatMap((a, i) => values.slice(i + 1).map((b) => `${a}\n${b}`));
    for (const pair of pairs) found.set(pair, (found.get(pair) ?? 0) + 1);
  }
  return { any: found.size > 0, between: (a, b) => found.get([a, b].sort().join("\n")) ?? 0 };
}

// The sides that are chosen; one that is not is the one with the most points in common with the other.
function pairOf(values, { between }, { base, cand }) {
  const bases = values.includes(base) ? [base] : values;
  const cands = values.includes(cand) ? [cand] : values;
  const pairs = bases.flatMap((a) => cands.filter((b) => b !== a).map((b) => [a, b]));
  return pairs.reduce((best, pair) => (between(...pair) > between(...best) ? pair : best), pairs[0] ?? [bases[0], cands[0]]);
}

function controls({ go }, able, by, values, counts, base, cand) {
  const options = (names) => names.map((name) => [name, name]);
  const beside = (other) => values.map((value) => [value, value === other ? value : `${value} (${counts.between(value, other).toLocaleString("en-US")} in common)`]);
  return h("div", { class: "controls" },
    choice("by", "compare by", options(able), by, (value) => go({ by: value, base: "", cand: "" })),
    choice("base", "baseline", options(values), base, (value) => go({ by, base: value })),
    choice("cand", "candidate", beside(base), cand, (value) => go({ by, cand: value })));
}

// What two points that are compared have in common: everything but the column compared by. A version comes from an environment.
function sameNames(data, by) {
  return [...data.axes, "twin", "backend"].filter((name) => name !== by && !(name === "env" && VERSIONS.includes(by)));
}

// Rows of both sides that agree in every axis but the one compared by, the newest of each point: ratio is candidate over baseline.
export function paired(data, right, by, base, cand) {
  const of = (value) => newest(data, right.filter((row) => String(data.value(by, row)) === value));
  const [before, after] = [of(base), of(cand)];
  const { ids } = grouped(data, [...before, ...after], sameNames(data, by));
  const first = new Map(Array.from(before, (row, i) => [ids[i], row]));
  return Array.from(after, (row, i) => ({ row, from: first.get(ids[before.length + i]) }))
    .filter(({ from }) => from !== undefined)
    .map(({ row, from }) => ({ row, from, ratio: data.value("ranked_us", row) / data.value("ranked_us", from) }))
    .sort((a, b) => b.ratio - a.ratio);
}

const median = (pairs) => pairs[Math.floor((pairs.length - 1) / 2)].ratio;

function summary(data, pairs) {
  const beyond = (of) => pairs.filter((pair) => of(pair) > 1 + data.value("noise", pair.row) + data.value("noise", pair.from)).length;
  const [slower, faster] = [beyond(({ ratio }) => ratio), beyond(({ ratio }) => 1 / ratio)];
  const rough = pairs.filter(({ from, row }) => isRough(data, from) || isRough(data, row)).length;
  return h("p", { id: "summary" }, `${pairs.length.toLocaleString("en-US")} points on both sides; time of the candidate over the baseline's: median ${times(median(pairs))}, `
    + `from ${times(pairs.at(-1).ratio)} to ${times(pairs[0].ratio)}; beyond the noise of both ${slower} slower, ${faster} faster. `
    + (rough ? `~ ${rough} ratios are of a rough time. ` : "")
    + "mode=compare gives a verdict on each point from its samples.");
}

function scatter(context, pairs, by, base, cand) {
  const { data } = context;
  const told = by !== "dtype" && present(data, pairs.map(({ row }) => row), "dtype").length > 1 ? "dtype" : "backend"; // what makes the bands
  const codes = [...new Set(pairs.map(({ row }) => data.codes(told)[row]))].sort((a, b) => a - b);
  const series = codes.map((code, n) => {
    const some = pairs.filter(({ row }) => data.codes(told)[row] === code);
    const own = (row) => signOf(data.value("backend", row));
    const points = some.map(({ row, from, ratio }) => ({ value: [data.value("ranked_us", from), ratio], row, symbol: own(row).symbol }));
    const name = told === "backend" ? shownOf(data, some.map(({ row }) => row)) : `${data.values("dtype")[code]}: median ${times(median(some))}`;
    return { type: "scatter", name, color: told === "backend" ? own(some[0].row).color : sign(n).color, symbol: told === "backend" ? own(some[0].row).symbol : "circle",
      symbolSize: 9, itemStyle: { opacity: 0.6 }, data: points };
  });
  series[0].markLine = evenLine("same");
  const option = {
    xAxis: { ...axisOf(`${timeOf(data, pairs.map(({ from }) => from))} of ${base}`, [1], true), logBase: 10, axisTick: {}, axisLabel: { color: ink().text, formatter: short } },
    yAxis: ratioAxis("time of the candidate over the baseline", true, pairs.map(({ ratio }) => ratio)),
    series,
  };
  const point = (row) => data.axes.filter((name) => name !== by && data.values(name).length > 1).map((name) => nameOf(name, data.value(name, row)));
  const numbers = () => pairs.map(({ row, from, ratio }) => [row, data.value("ran", row), point(row).join(" · "), numberOf(data, from),
    numberOf(data, row), mark(data, row, from) + times(ratio)]);
  return panel(context, { title: `${cand} over ${base}`, question: "Time of the candidate over the baseline; below 1 the candidate is faster", option, numbers, wide: true, height: 480,
    header: ["backend", "workload", `${base} µs`, `${cand} µs`, "ratio"] });
}
