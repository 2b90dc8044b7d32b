// Two runs, devices, versions or backends: the time of the candidate over that of the baseline, point by point.

import { choice, h } from "./dom.js";
import { short, times } from "./numbers.js";
import { axisOf, evenLine, nameOf, nothing, panel, ratioAxis } from "./panels.js";
import { grouped, newest, noiseFloor, ok, present, shownBackend, shownOf, timeOf } from "./select.js";
import { ink, sign } from "./theme.js";

const BY = ["run_id", "device_name", "cluster", "libraries", "flashinfer_version", "torch_version", "orchestrator_version", "driver", "twin", "dtype",
  "backend", "routine"];
const WHERE = ["cluster", "device_name"]; // what differs when the machine does

export function compareView(context) {
  const { data, state, unmerged } = context;
  const right = ok(data, unmerged);
  const usable = BY.filter((name) => present(data, right, name).length > 1);
  if (!usable.length) {
    return [nothing(data, unmerged, "There is nothing to compare: in view are one run, one device, one version and one backend, or no ok point.")];
  }
  const by = usable.includes(state.by) ? state.by : usable[0];
  const values = present(data, right, by).map((code) => String(data.values(by)[code]));
  const base = values.includes(state.base) ? state.base : values[0];
  const cand = values.includes(state.cand) ? state.cand : values.find((value) => value !== base);
  const pairs = paired(data, right, by, base, cand);
  const head = controls(context, usable, by, values, base, cand);
  if (!pairs.length) return [head, nothing(data, unmerged, `${base} and ${cand} have no ok point in common; they differ by more than ${by}.`)];
  return [head, summary(data, pairs), scatter(context, pairs, by, base, cand)];
}

function controls({ go }, usable, by, values, base, cand) {
  const options = (names) => names.map((name) => [name, name]);
  return h("div", { class: "controls" },
    choice("by", "compare by", options(usable), by, (value) => go({ by: value, base: "", cand: "" })),
    choice("base", "baseline", options(values), base, (value) => go({ base: value })),
    choice("cand", "candidate", options(values), cand, (value) => go({ cand: value })));
}

// Rows of both sides that agree in every axis but the one compared by, the newest of each point: ratio is candidate over baseline.
export function paired(data, right, by, base, cand) {
  const of = (value) => newest(data, right.filter((row) => String(data.value(by, row)) === value));
  const [before, after] = [of(base), of(cand)];
  const machine = WHERE.includes(by) ? WHERE : [];
  const same = [...data.axes, "twin", "backend"].filter((name) => name !== by && !machine.includes(name));
  const { ids } = grouped(data, [...before, ...after], same);
  const first = new Map(Array.from(before, (row, i) => [ids[i], row]));
  return Array.from(after, (row, i) => ({ row, from: first.get(ids[before.length + i]) }))
    .filter(({ from }) => from !== undefined)
    .map(({ row, from }) => ({ row, from, ratio: data.value("ranked_us", row) / data.value("ranked_us", from) }))
    .sort((a, b) => b.ratio - a.ratio);
}

function summary(data, pairs) {
  const middle = pairs[Math.floor((pairs.length - 1) / 2)].ratio;
  const beyond = (ratio, from) => ratio > 1 + noiseFloor(data, from);
  const slower = pairs.filter(({ ratio, from }) => beyond(ratio, from)).length;
  const faster = pairs.filter(({ ratio, from }) => beyond(1 / ratio, from)).length;
  return h("p", { id: "summary" }, `${pairs.length.toLocaleString("en-US")} points on both sides; candidate over baseline: median ${times(middle)}, `
    + `from ${times(pairs.at(-1).ratio)} to ${times(pairs[0].ratio)}; beyond the noise floor ${slower} slower, ${faster} faster. `
    + "mode=compare gives a verdict on each point from its samples.");
}

function scatter(context, pairs, by, base, cand) {
  const { data } = context;
  const codes = [...new Set(pairs.map(({ row }) => data.codes("backend")[row]))].sort((a, b) => a - b);
  const series = codes.map((code) => {
    const { color, symbol } = sign(code);
    const points = pairs.filter(({ row }) => data.codes("backend")[row] === code)
      .map(({ row, from, ratio }) => ({ value: [data.value("ranked_us", from), ratio], row }));
    return { type: "scatter", name: shownOf(data, points.map(({ row }) => row)), color, symbol, symbolSize: 9, itemStyle: { opacity: 0.8 }, data: points };
  });
  series[0].markLine = evenLine("same");
  const option = {
    xAxis: { ...axisOf(`${timeOf(data, pairs.map(({ from }) => from))} of ${base}`, [1], true), logBase: 10, axisTick: {}, axisLabel: { color: ink().text, formatter: short } },
    yAxis: ratioAxis("time of the candidate over the baseline", true),
    series,
  };
  const point = (row) => data.axes.filter((name) => name !== by && data.values(name).length > 1).map((name) => nameOf(name, data.value(name, row)));
  const numbers = () => pairs.map(({ row, from, ratio }) => [row, shownBackend(data, row), point(row).join(" · "), data.value("ranked_us", from),
    data.value("ranked_us", row), times(ratio)]);
  return panel(context, { title: `${cand} over ${base}`, option, numbers, wide: true, height: 480,
    header: ["backend", "shape", `${base} µs`, `${cand} µs`, "ratio"] });
}
