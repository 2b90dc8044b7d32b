// One number over any axis, a line a backend, with bars from the 5th to the 95th percentile of a row's samples.

import { choice, h } from "./dom.js";
import { METRICS, spreadOf } from "./numbers.js";
import { axisOf, inFacets, nothing, panel, valueAxis } from "./panels.js";
import { ok, present, shownBackend, shownOf, split, varying } from "./select.js";
import { sign } from "./theme.js";

export function linesView(context) {
  const { data, state, rows } = context;
  const right = ok(data, rows);
  if (!right.length) return [nothing(data, rows, "No point in view is ok, so there is no time to draw.")];
  const metric = data.has(state.metric) && METRICS[state.metric] ? state.metric : "median_us";
  const x = state.x || defaultAxis(data, right);
  const rest = data.axes.filter((name) => name !== x);
  return [controls(context, x, metric), ...inFacets(context, right, rest, (part, title) => linePlot(context, part, title, x, metric))];
}

export function defaultAxis(data, rows) {
  return varying(data, rows, ["s_kv", "batch_size", "s_qo", ...data.axes])[0] ?? "s_kv";
}

function controls({ data, state, go }, x, metric) {
  const metrics = Object.entries(METRICS).filter(([name]) => data.has(name)).map(([name, { label }]) => [name, label]);
  return h("div", { class: "controls" },
    choice("metric", "draw", metrics, metric, (value) => go({ metric: value })),
    choice("x", "over", data.axes.map((name) => [name, name]), x, (value) => go({ x: value })),
    choice("scale", "scales", [["log", "logarithmic"], ["linear", "linear"]], state.scale, (scale) => go({ scale })));
}

function linePlot(context, rows, title, x, metric) {
  const { data, state } = context;
  const log = state.scale === "log";
  const codes = present(data, rows, x);
  const values = codes.map((code) => data.values(x)[code]);
  const xAxis = axisOf(x, values.map((value) => value ?? "none"), log);
  const at = (row) => (xAxis.type === "category" ? codes.indexOf(data.codes(x)[row]) : data.value(x, row));
  const lines = split(data, rows, ["backend"])
    .map((line) => line.filter((row) => data.value(metric, row) !== null).sort((a, b) => at(a) - at(b)))
    .filter((line) => line.length)
    .sort((a, b) => data.codes("backend")[a[0]] - data.codes("backend")[b[0]]);
  const option = {
    xAxis,
    yAxis: valueAxis(METRICS[metric].label, log),
    series: lines.flatMap((line) => [lineOf(data, line, at, metric), barsOf(data, line, at, metric)]),
  };
  const numbers = () => lines.flat().map((row) => [row, data.value(x, row), shownBackend(data, row), data.value(metric, row),
    ...(spreadOf(data, metric, row) ?? [null, null])]);
  return panel(context, { title, option, numbers, header: [x, "backend", METRICS[metric].label, "p05", "p95"] });
}

function lineOf(data, line, at, metric) {
  const { color, symbol, dash } = sign(data.codes("backend")[line[0]]);
  const points = line.map((row) => ({ value: [at(row), data.value(metric, row)], row }));
  return { type: "line", name: shownOf(data, line), data: points, symbol, symbolSize: 8, color, lineStyle: { type: dash, width: 2 } };
}

// Bars are a series of their own under the line's name, so that the legend takes both away.
function barsOf(data, line, at, metric) {
  const { color } = sign(data.codes("backend")[line[0]]);
  const bars = line.map((row) => ({ row, spread: spreadOf(data, metric, row) })).filter(({ spread }) => spread)
    .map(({ row, spread }) => ({ value: [at(row), ...spread], row }));
  const renderItem = (params, api) => {
    const [low, high] = [1, 2].map((n) => api.coord([api.value(0), api.value(n)]));
    const tick = (y) => ({ type: "line", shape: { x1: low[0] - 4, x2: low[0] + 4, y1: y, y2: y }, style: { stroke: color, lineWidth: 1.5 } });
    const bar = { type: "line", shape: { x1: low[0], x2: low[0], y1: low[1], y2: high[1] }, style: { stroke: color, lineWidth: 1.5 } };
    return { type: "group", children: [bar, tick(low[1]), tick(high[1])] };
  };
  return { type: "custom", name: shownOf(data, line), color, data: bars, renderItem, encode: { x: 0, y: [1, 2] }, z: 3, clip: true };
}
