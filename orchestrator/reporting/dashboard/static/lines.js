// One number over any axis, a line for each backend, with bars from the 5th to the 95th percentile of a row's samples. What the colours
// tell apart and what has plots of its own are chosen among all columns; several GPUs share a plot.

import { choice, h } from "./dom.js";
import { METRICS, short, spreadOf, times } from "./numbers.js";
import { axisOf, inFacets, nothing, panel, valueAxis } from "./panels.js";
import { grouped, isRough, mark, numberOf, ok, overFastest, present, shownOf, split, varying } from "./select.js";
import { sign, signOf } from "./theme.js";

const MOST_COLOURS = 40;
const WIDE_RANGE = 8; // from this ratio of its ends on, an axis of numbers is logarithmic
const NO_FACETS = "none";
const DASHES = ["solid", "dashed", "dotted"]; // the first of theme.js in words

export function linesView(context) {
  const { data, state, rows } = context;
  const right = ok(data, rows);
  if (!right.length) return [nothing(data, rows, "No point in view is ok, so there is no time to draw.")];
  const how = choices(data, state, right);
  how.valueOf = (row) => (how.metric === "over_best" ? overFastest(data, row, "problem") : data.value(how.metric, row));
  return [controls(context, right, how), ...inFacets(context, right, how.facets, (part, title) => linePlot(context, part, title, how))];
}

// What is drawn: `facets` are the columns whose values have plots of their own, `lines` those that tell a plot's lines apart.
function choices(data, state, right) {
  const metric = METRICS[state.metric] && (state.metric === "over_best" || data.has(state.metric)) ? state.metric : "over_best";
  const x = state.x || defaultAxis(data, right);
  const colour = data.has(state.colour) ? state.colour : "backend";
  const each = data.axes.filter((name) => name !== x && name !== colour && name !== "device_name" && !tells(data, right, name, colour));
  const facets = state.facet === NO_FACETS ? [] : data.has(state.facet) ? [state.facet] : each;
  const lines = [...new Set([colour, "backend", ...data.axes])].filter((name) => name !== x && !facets.includes(name));
  const log = state.scale ? state.scale === "log" : !METRICS[metric].linear;
  const top = metric === "over_best" && Number(state.top) > 1 ? Number(state.top) : Infinity;
  return { metric, x, colour, facets, lines, log, top };
}

// Whether a column tells the colour, so that a plot for each of its values would have a single one.
function tells(data, right, name, colour) {
  if (colour === "backend") return false;
  return grouped(data, right, [name]).count === grouped(data, right, [name, colour]).count && varying(data, right, [name, colour]).length === 2;
}

export function defaultAxis(data, rows) {
  return varying(data, rows, ["s_kv", "batch_size", "s_qo", ...data.axes])[0] ?? "s_kv";
}

function controls({ data, state, go }, right, how) {
  const metrics = Object.entries(METRICS).filter(([name]) => name === "over_best" || data.has(name)).map(([name, { label }]) => [name, label]);
  const axes = data.axes.map((name) => [name, name]);
  const words = [...data.columns].filter(([, { kind, values }]) => kind === "words" && values.length <= data.size / 2).map(([name]) => name);
  const columns = varying(data, right, words).filter((name) => present(data, right, name).length <= MOST_COLOURS).map((name) => [name, name]);
  const others = columns.filter(([name]) => name !== how.x && name !== how.colour);
  const top = choice("top", "up to", [["1.25", "1.25×"], ["2", "2×"], ["5", "5×"], ["all", "all"]], state.top, (value) => go({ top: value }));
  return h("div", { class: "controls" },
    choice("metric", "draw", metrics, how.metric, (value) => go({ metric: value })),
    how.metric === "over_best" ? top : null,
    choice("x", "over", axes, how.x, (value) => go({ x: value })),
    choice("colour", "colour by", columns, how.colour, (value) => go({ colour: value })),
    choice("facet", "a plot for each", [["", "workload, but all GPUs together"], [NO_FACETS, "nothing: one plot"], ...others], state.facet, (value) => go({ facet: value })),
    choice("scale", "scale", [["linear", "linear"], ["log", "logarithmic"]], how.log ? "log" : "linear", (scale) => go({ scale })));
}

function linePlot(context, rows, title, how) {
  const { data } = context;
  const { x, metric, valueOf } = how;
  const codes = present(data, rows, x);
  const values = codes.map((code) => data.values(x)[code]);
  const numeric = values.every((value) => typeof value === "number");
  const xAxis = axisOf(x, values.map((value) => value ?? "none"), numeric && Math.min(...values) > 0 && Math.max(...values) >= WIDE_RANGE * Math.min(...values));
  const at = (row) => (xAxis.type === "category" ? codes.indexOf(data.codes(x)[row]) : data.value(x, row));
  const lines = linesOf(data, rows, at, how);
  const hidden = referencesOf(data, lines, how);
  const option = { xAxis, yAxis: yAxis(lines.filter(({ legend }) => !hidden.has(legend)), how), legend: { selected: Object.fromEntries([...hidden].map((name) => [name, false])) }, series: lines.flatMap((line) => [
    { name: line.legend, symbol: line.symbol, color: line.color, type: "line", data: line.rows.map((row, i) => ({ value: [at(row), line.values[i]], row })), symbolSize: 9, lineStyle: { type: line.dash, width: 2 }, clip: true },
    barsOf(data, line, at, how)]) };
  const numbers = () => lines.flatMap(({ rows: line }) => line).map((row) => [row, data.value(x, row), data.value("ran", row),
    ...(metric === "over_best" ? [mark(data, row) + times(valueOf(row)), numberOf(data, row)] : [METRICS[metric].spread === null ? valueOf(row) : numberOf(data, row, metric)]),
    ...(spreadOf(data, metric, row, valueOf(row)) ?? [null, null])]);
  const header = [x, "backend", METRICS[metric].label, ...(metric === "over_best" ? ["µs"] : []), "p05", "p95"];
  const shown = lines.filter(({ legend }) => !hidden.has(legend));
  const notes = [dashNote(lines), hiddenNote(hidden), beyond(shown, how), roughNote(data, lines)].filter((words) => words);
  return panel(context, { title, question: `${METRICS[metric].label}, by ${x}`, option, numbers, header, note: notes.join(" ") || null });
}

// The lines of a plot, each with its name and its signs: the colour is of its column, the marker of the backend, and where GPUs or
// others share a plot, the dash tells them apart.
function linesOf(data, rows, at, { lines, colour, valueOf }) {
  const ofColour = grouped(data, rows, [colour]).count;
  const differing = varying(data, rows, lines.filter((name) => name !== "backend" && name !== colour))
    .filter((name) => colour === "backend" || grouped(data, rows, [colour, name]).count > ofColour);
  const parts = split(data, rows, lines).map((line) => line.filter((row) => valueOf(row) !== null).sort((a, b) => at(a) - at(b))).filter((line) => line.length);
  const order = (line) => lines.map((name) => data.codes(name)[line[0]]);
  parts.sort((a, b) => order(a).map((code, i) => code - order(b)[i]).find((d) => d) ?? 0);
  const others = [...new Set(parts.map((line) => differing.map((name) => data.codes(name)[line[0]]).join()))];
  return parts.map((line) => {
    const [row] = line;
    const [backend, value] = [data.value("backend", row), data.value(colour, row)];
    const own = signOf(backend);
    const other = others.indexOf(differing.map((name) => data.codes(name)[row]).join());
    const name = [...(colour === "backend" ? [] : [String(value ?? "none")]), shownOf(data, line), ...differing.map((one) => String(data.value(one, row) ?? "none"))];
    const few = others.length > 1 && others.length <= DASHES.length && colour === "backend"; // the legend then leaves out what the dashes tell
    const dashed = few ? [DASHES[other], name.slice(1).join(" · ")] : null;
    return { rows: line, name: name.join(" · "), legend: few ? backend : name.join(" · "), dashed, symbol: own.symbol, color: colour === "backend" ? own.color : sign(data.codes(colour)[row]).color,
      dash: others.length > 1 ? sign(other).dash : own.dash, values: line.map(valueOf) };
  });
}

// Times of references, which no engine has, would only squeeze the others: they are drawn after a click, or if there is nothing else.
function referencesOf(data, lines, { metric }) {
  const names = new Set(lines.filter(({ rows: [row] }) => data.value("reference", row)).map(({ legend }) => legend));
  return metric === "over_best" && lines.some(({ legend }) => !names.has(legend)) ? names : new Set();
}

const hiddenNote = (names) => (names.size ? `Not drawn, but behind its name in the legend: ${[...names].join(", ")}, a reference.` : null);

// What the dashes tell apart, once for all lines.
function dashNote(lines) {
  const told = new Map(lines.filter(({ dashed }) => dashed).map(({ dashed }) => dashed));
  return told.size ? `${[...told].map(([dash, words]) => `${dash}: ${words}`).join(", ")}.` : null;
}

function yAxis(lines, { metric, log, top }) {
  const axis = valueAxis(METRICS[metric].label, log);
  if (metric !== "over_best") return axis;
  const all = lines.flatMap(({ values }) => values);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const ends = log ? {} : { min: Math.min(1, Math.floor(least * 10) / 10), max: Math.min(top, Math.ceil(Math.max(most, 1.05) * 10) / 10) };
  return { ...axis, ...ends, axisLabel: { ...axis.axisLabel, formatter: (value) => `${short(value)}×` } };
}

// How many points rest on a rough time, in words.
function roughNote(data, lines) {
  const count = lines.flatMap(({ rows }) => rows).filter((row) => isRough(data, row)).length;
  return count ? `~ ${count} points are rough: stopped early, since they cannot be the fastest; their bars are the whole interval.` : null;
}

// Lines that leave the plot, in words.
function beyond(lines, { top }) {
  const over = lines.map(({ name, values }) => [name, values.filter((value) => value > top)]).filter(([, values]) => values.length);
  if (!over.length) return null;
  const range = (values) => [...new Set([Math.min(...values), Math.max(...values)].map(times))].join(" to ");
  return `Above ${short(top)}×: ${over.map(([name, values]) => `${name} ${range(values)}`).join(", ")}.`;
}

// Bars are a series of their own under the line's name, so that the legend takes both away.
function barsOf(data, { rows, legend: name, color, values }, at, { metric }) {
  const bars = rows.map((row, i) => ({ row, spread: spreadOf(data, metric, row, values[i]) })).filter(({ spread }) => spread)
    .map(({ row, spread }) => ({ value: [at(row), ...spread], row }));
  const renderItem = (params, api) => {
    const [low, high] = [1, 2].map((n) => api.coord([api.value(0), api.value(n)]));
    const tick = (y) => ({ type: "line", shape: { x1: low[0] - 4, x2: low[0] + 4, y1: y, y2: y }, style: { stroke: color, lineWidth: 1.5 } });
    const bar = { type: "line", shape: { x1: low[0], x2: low[0], y1: low[1], y2: high[1] }, style: { stroke: color, lineWidth: 1.5 } };
    return { type: "group", children: [bar, tick(low[1]), tick(high[1])] };
  };
  return { type: "custom", name, color, data: bars, renderItem, encode: { x: 0, y: [1, 2] }, z: 3, clip: true };
}
