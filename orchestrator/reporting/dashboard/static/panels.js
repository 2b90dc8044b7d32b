// What every view is made of: panels with a chart, the same numbers as a table, and the row behind what is pointed at.

import { h, table } from "./dom.js";
import { MISSING, percent, short } from "./numbers.js";
import { split, tally, varying } from "./select.js";
import { ink, isDark } from "./theme.js";

const MOST_PANELS = 8;
const MOST_REASONS = 12;
const MOST_ROWS = 400; // of a panel's table; the view "table" has them all
const PROVENANCE = ["device_name", "host", "cluster", "run_id", "attempt", "driver", "cuda", "torch_version", "libraries", "flashinfer_version",
  "orchestrator_version", "timer", "l2", "icache", "stop_reason", "num_samples", "sm_clock_mhz", "temperature_c", "power_w",
  "throttle_reasons", "other_processes", "started_at", "finished_at"];

export function nameOf(name, value) {
  if (name === "dtype") return String(value);
  return `${name} ${value === null ? "none" : short(value)}`;
}

// The rows of each combination of the axes that vary, with its name, in the order of the axes' values.
export function facets(data, rows, axes) {
  const differing = varying(data, rows, axes);
  const parts = split(data, rows, differing).map((part) => ({
    rows: Uint32Array.from(part),
    codes: differing.map((name) => data.codes(name)[part[0]]),
    title: differing.map((name) => nameOf(name, data.value(name, part[0]))).join(" · "),
  }));
  const first = (a, b) => a.codes.map((code, i) => code - b.codes[i]).find((d) => d) ?? 0;
  return { differing, parts: parts.sort(first) };
}

// One panel for each facet, and words on those that are not drawn.
export function inFacets(context, rows, axes, draw) {
  const { differing, parts } = facets(context.data, rows, axes);
  const most = MOST_PANELS * context.more;
  const panels = parts.slice(0, most).map((part) => draw(part.rows, part.title || everywhere(context.data, part.rows)));
  const grid = h("div", { class: "panels" }, panels);
  if (parts.length <= most) return [grid];
  const words = `${most} of ${parts.length} plots are drawn; they differ by ${differing.join(", ")}. Choose values at the side, or `;
  return [grid, h("p", { class: "note" }, words, h("button", { id: "more", onclick: context.drawMore }, "draw more"))];
}

// What all the rows have in common.
export function everywhere(data, rows) {
  const names = ["device_name", "model", "routine", "dtype"];
  if (!rows.length) return "";
  const differing = new Set(varying(data, rows, names));
  return names.filter((name) => !differing.has(name)).map((name) => data.value(name, rows[0])).join(" · ");
}

// A chart, and `numbers`: a function that lists cells, of which the first is the row behind them.
export function panel(context, { title, option, height = 340, wide = false, header, numbers }) {
  const place = h("div", { class: "chart", role: "img", "aria-label": `${title}; its numbers are in the table below`, style: `height:${height}px` });
  const details = h("details", {}, h("summary", {}, "the numbers"));
  details.addEventListener("toggle", () => details.children.length < 2 && details.append(numbersTable(context, title, header, numbers)));
  context.toMount.push(() => mount(context, place, option));
  return h("figure", { class: wide ? "panel wide" : "panel" }, h("figcaption", {}, title), place, details);
}

function numbersTable(context, title, header, all) {
  const numbers = all();
  const rows = numbers.slice(0, MOST_ROWS).map(([row, ...cells]) => [
    ...cells.map((cell) => short(cell)),
    h("button", { onclick: () => context.showRow(row) }, "show"),
  ]);
  const caption = numbers.length > MOST_ROWS ? `${title}: the first ${MOST_ROWS} of ${numbers.length}` : title;
  const names = header.map((name) => h("th", { scope: "col", title: context.data.about(name) }, name));
  return table(caption, [...names, "point"], rows);
}

function mount(context, place, option) {
  const chart = echarts.init(place, isDark() ? "dark" : null);
  const drawn = new Promise((resolve) => chart.on("finished", resolve)); // before the option, which may draw at once
  chart.setOption({ ...common(context.data, option), ...option });
  chart.on("click", (params) => {
    const row = rowOf(params);
    if (row >= 0) context.showRow(row);
  });
  return { chart, drawn };
}

// The row behind a point: its third number where points are many and so plain arrays, which the chart reads faster than objects.
function rowOf({ data }) {
  return Array.isArray(data) ? data[2] : data?.row;
}

function common(data, { series }) {
  const wide = series.every(({ type }) => type !== "scatter"); // room for a line's dashes; a marker would be stretched
  const formatter = (params) => {
    const row = rowOf(params);
    return row >= 0 ? card(data, row) : h("div", {}, params.data?.words ?? params.name);
  };
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { color: ink().text, fontFamily: "system-ui, sans-serif" },
    tooltip: { trigger: "item", confine: true, formatter, className: "tip" },
    legend: { type: "scroll", top: 0, textStyle: { color: ink().text }, itemWidth: wide ? 36 : 14 },
    grid: { left: 64, right: 20, top: 36, bottom: 46 },
  };
}

// One axis of a plot: logarithmic or linear where its values are numbers, else by name.
export function axisOf(name, values, log) {
  const style = { nameLocation: "middle", name, nameTextStyle: { color: ink().text }, axisLabel: { color: ink().text, hideOverlap: true },
    splitLine: { lineStyle: { color: ink().line } } };
  if (!values.every((value) => typeof value === "number")) {
    return { ...style, type: "category", data: values.map(String), nameGap: 28, axisLabel: { color: ink().text } };
  }
  const few = values.length <= 12 ? { customValues: values } : {};
  const axisLabel = { ...style.axisLabel, ...few, formatter: short };
  return { ...style, type: log && Math.min(...values) > 0 ? "log" : "value", logBase: 2, scale: true, nameGap: 28, axisLabel, axisTick: few };
}

export function valueAxis(name, log) {
  return { ...axisOf(name, [1], log), axisLabel: { color: ink().text, hideOverlap: true, formatter: short }, axisTick: {}, logBase: 10, nameGap: 48 };
}

// Ratios, in octaves about 1, where both sides are even.
export function ratioAxis(name, log) {
  return { ...valueAxis(name, log), logBase: 2 };
}

export function evenLine(words) {
  return { silent: true, symbol: "none", label: { formatter: words, color: ink().text, position: "insideEndTop" }, data: [{ yAxis: 1 }],
    lineStyle: { color: ink().text, type: "solid" } };
}

// A row in words: what it is, what it took, whether it is right, where it ran, how to run it again. A line that shows a column under
// another name has the column third, for its tooltip.
export function card(data, row) {
  const of = (name) => data.value(name, row);
  const ran = of("resolved_backend");
  const lines = [
    ["status", of("reason") ? `${of("status")}: ${of("reason")}` : of("status"), "status"],
    ["point", data.axes.filter((name) => of(name) !== null).map((name) => nameOf(name, of(name))).join(" · "), "point_id"],
    ["median", of("median_us") === null ? null : `${short(of("median_us"))} µs (p05 ${short(of("p05_us"))}, p95 ${short(of("p95_us"))})`, "median_us"],
    ["in a step", of("in_step_us") === null ? null
      : `${short(of("in_step_us"))} µs (95% interval ${short(of("in_step_low_us"))} to ${short(of("in_step_high_us"))})`, "in_step_us"],
    ["energy", of("energy_j") === null ? of("energy_note") : `${short(of("energy_j") * 1e3)} mJ ± ${percent(of("energy_rel"))}`, "energy_j"],
    ["rate", of("tb_per_sec") === null ? null : `${short(of("tb_per_sec"))} TB/s, ${short(of("tflops"))} TFLOP/s, ${of("bound")}-bound`, "bound"],
    ["of the ceiling", of("frac_of_peak") === null ? null : short(of("frac_of_peak")), "frac_of_peak"],
    ["check", of("rel_err") === null ? of("check") : `${of("check")}, relative error ${short(of("rel_err"))} of ${short(of("tolerance"))}`, "rel_err"],
    ...PROVENANCE.map((name) => [name, of(name) === null ? null : short(of(name)), name]),
    ["again", of("command"), "command"],
  ].filter(([, value]) => value !== null);
  const items = lines.flatMap(([name, value, column]) => [h("dt", { title: data.about(column) }, name),
    h("dd", { class: name === "again" ? "command" : null }, value)]);
  const title = ran && ran !== of("backend") ? `${of("backend")} (ran ${ran})` : of("backend");
  return h("div", { class: "card" }, h("strong", {}, title ?? "?"), h("dl", {}, items));
}

// Why there is nothing to draw: a sentence, and what became of the rows.
export function nothing(data, rows, sentence) {
  const counts = tally(data, rows, ["status", "reason"]);
  const cells = counts.slice(0, MOST_REASONS).map(([count, row]) => [data.value("status", row), String(count), data.value("reason", row) || MISSING]);
  if (counts.length > MOST_REASONS) {
    const rest = counts.slice(MOST_REASONS).reduce((sum, [count]) => sum + count, 0);
    cells.push(["others", String(rest), `${counts.length - MOST_REASONS} other reasons; the view "Table" has them all`]);
  }
  const found = cells.length ? table("what became of the points in view", ["status", "points", "reason"], cells) : null;
  return h("div", { class: "nothing" }, h("p", {}, sentence), found);
}
