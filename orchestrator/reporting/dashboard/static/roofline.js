// Achieved FLOP/s over the FLOPs of a byte, under the ceilings that were measured on the GPU.

import { short } from "./numbers.js";
import { axisOf, inFacets, nothing, panel, valueAxis } from "./panels.js";
import { numberOf, ok, shownOf, split } from "./select.js";
import { ink, signOf } from "./theme.js";

const LARGE = 3000; // points of a plot from which each backend's are drawn in one go
const NEAR = 1.1; // ceilings this close share the words of the higher one
const APART = 5; // pixels between backends, whose points at one intensity would hide one another
const DOT = 3; // pixels of such a point: below 4 the chart fills squares, else it traces one path of all markers, for minutes

export function rooflineView(context) {
  const { data, rows } = context;
  const right = ok(data, rows).filter((row) => data.value("tflops", row) > 0 && data.value("bytes", row) > 0);
  if (!right.length) return [nothing(data, rows, "No point in view is ok and has its FLOPs and bytes, so there is nothing under the roof.")];
  return inFacets(context, right, ["device_name", "dtype"].filter((name) => data.axes.includes(name)), (part, title) => roof(context, part, title));
}

export function intensity(data, row) {
  return data.value("flops", row) / data.value("bytes", row);
}

// The distinct measured ceilings: TB/s of memory, TFLOP/s of matrix products. Rows from before they were kept have none.
export function ceilings(data, rows) {
  const of = (name) => [...new Set([...rows].map((row) => data.value(name, row)).filter((value) => value > 0))].sort((a, b) => a - b);
  return { memory: of("peak_tb_per_sec"), compute: of("peak_tflops") };
}

function roof(context, rows, title) {
  const { data } = context;
  const { memory, compute } = ceilings(data, rows);
  let [from, to] = [Infinity, 0];
  for (const row of rows) {
    const x = intensity(data, row);
    [from, to] = [Math.min(from, x), Math.max(to, x)];
  }
  const corner = memory.length && compute.length ? compute.at(-1) / memory[0] : 0;
  const ends = [nice(from / 1.5, Math.floor), nice(Math.max(to, corner) * 1.5, Math.ceil)];
  const series = split(data, rows, ["backend"]).sort((a, b) => data.codes("backend")[a[0]] - data.codes("backend")[b[0]])
    .map((points, n, { length }) => ({ ...cloud(data, points, rows.length > LARGE), symbolOffset: [(n - (length - 1) / 2) * APART, 0] }));
  const lines = [...memory.map((peak) => slope(peak, ends, compute.at(-1))), ...compute.map((peak, n) => flat(peak, ends, memory.at(-1), compute[n + 1] < peak * NEAR))];
  const option = {
    xAxis: { ...axisOf("FLOP for each byte", [1], true), logBase: 10, min: ends[0], max: ends[1], axisTick: {},
      axisLabel: { color: ink().text, formatter: short } },
    yAxis: valueAxis("TFLOP/s", true),
    series: [...series, ...lines],
    legend: { data: series.map(({ name }) => name) },
  };
  const missing = lines.length ? "" : " · this dataset holds no measured ceilings (columns peak_tb_per_sec and peak_tflops)";
  const numbers = () => [...rows].map((row) => [row, data.value("ran", row), intensity(data, row), numberOf(data, row, "tflops"),
    numberOf(data, row, "frac_of_peak")]);
  return panel(context, { title: title + missing, question: "Achieved TFLOP/s by FLOP for each byte, under the measured ceilings; backends stand side by side", option, numbers,
    header: ["backend", "FLOP for each byte", "TFLOP/s", "fraction of the ceiling"] });
}

function cloud(data, points, large) {
  const { color, symbol } = signOf(data.value("backend", points[0]));
  return { type: "scatter", name: shownOf(data, points), color, symbol, symbolSize: large ? DOT : 8, itemStyle: { opacity: 0.75 },
    large, largeThreshold: 1, progressive: 0,
    data: points.map((row) => [intensity(data, row), data.value("tflops", row), row]), encode: { x: 0, y: 1 } };
}

// TB/s times FLOP for each byte is TFLOP/s: the ceiling of what reads memory, up to that of the products.
function slope(peak, [from, to], top = Infinity) {
  const end = Math.min(to, top / peak);
  const middle = Math.sqrt(from * end);
  return ceiling(`memory ${short(peak)} TB/s`, [[from, peak * from], [middle, peak * middle], [end, peak * end]], "solid", { 1: "left" });
}

function flat(peak, [from, to], memory, nameless) {
  return ceiling(`products ${short(peak)} TFLOP/s`, [[memory ? peak / memory : from, peak], [to, peak]], [6, 4], nameless ? {} : { 1: "left" });
}

// A line that has its name on it, and is in no legend. `at` says beside which of its points.
function ceiling(name, points, type, at) {
  const words = (n) => ({ show: n in at, position: type === "solid" ? "left" : "top", align: "right", formatter: name, color: ink().text });
  return { type: "line", name, symbol: "circle", symbolSize: 0.1, color: ink().text, lineStyle: { width: 2, type }, tooltip: { show: false }, z: 1,
    data: points.map((value, n) => ({ value, label: words(n) })) };
}

// The next of 1, 2, 5, 10, ... above or below a number.
function nice(x, round) {
  const power = 10 ** Math.floor(Math.log10(x));
  const steps = [1, 2, 5, 10].map((step) => step * power);
  return round === Math.floor ? steps.filter((step) => step <= x).at(-1) : steps.find((step) => step >= x);
}
