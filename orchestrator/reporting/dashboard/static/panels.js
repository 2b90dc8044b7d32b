// What every view is made of: panels with a chart, the same numbers as a table, and the row behind what is pointed at.

import { brief } from "./card.js";
import { h, table } from "./dom.js";
import { MISSING, nameOf, short } from "./numbers.js";
import { ok, split, tally, varying } from "./select.js";
import { takeAlong } from "./share.js";
import { ink, isDark } from "./theme.js";

const MOST_PANELS = 8;
const MOST_REASONS = 12;
const MOST_ROWS = 400; // of a panel's table; the view "table" has them all
const NEVER_RAN = ["unsupported", "skipped"];

const ALWAYS_SAID = ["device_name", "model", "routine", "dtype", "phase", "s_qo", "batch_size", "s_kv"];

// The rows of each combination of the axes that vary, the usual ones first. A name leaves out what is as in most of them, such as
// graph_batch none. Only rows that ran make one; a row that did not joins the one that it fits, and `apart` are those that fit none.
export function facets(data, rows, axes) {
  const idle = NEVER_RAN.map((status) => data.values("status").indexOf(status));
  const ran = rows.filter((row) => !idle.includes(data.codes("status")[row]));
  const differing = varying(data, ran, axes);
  const combinations = split(data, ran, differing);
  const usual = differing.map((name) => (ALWAYS_SAID.includes(name) ? null : commonest(combinations.map(([row]) => data.codes(name)[row]))));
  const parts = combinations.map((part) => {
    const codes = differing.map((name) => data.codes(name)[part[0]]);
    const said = differing.filter((_, i) => codes[i] !== usual[i]);
    return { rows: part, codes, unusual: said.filter((name) => !ALWAYS_SAID.includes(name)).length,
      title: said.map((name) => nameOf(name, data.value(name, part[0]))).join(" · ") };
  });
  parts.sort((a, b) => a.unusual - b.unusual || (a.codes.map((code, i) => code - b.codes[i]).find((d) => d) ?? 0));
  const apart = join(data, rows.filter((row) => idle.includes(data.codes("status")[row])), varying(data, rows, axes), parts);
  return { differing, apart, parts: parts.map((part) => ({ ...part, rows: Uint32Array.from(part.rows) })) };
}

function commonest(codes) {
  const counts = new Map();
  for (const code of codes) counts.set(code, (counts.get(code) ?? 0) + 1);
  return [...counts].reduce((best, one) => (one[1] > best[1] ? one : best), [null, 0])[0];
}

// Adds rows that never ran to the part that they agree with in all these columns, and returns the others.
function join(data, idle, names, parts) {
  const key = (row) => names.map((name) => data.codes(name)[row]).join();
  const byKey = new Map(parts.map((part) => [key(part.rows[0]), part]));
  const apart = [];
  for (const same of split(data, idle, names)) {
    const part = byKey.get(key(same[0]));
    if (part) part.rows = part.rows.concat(same);
    else apart.push(...same);
  }
  return Uint32Array.from(apart);
}

// One panel for each facet, and words on those that are not drawn.
export function inFacets(context, rows, axes, draw) {
  const { data } = context;
  const { differing, parts, apart } = facets(data, rows, axes);
  const most = MOST_PANELS * context.more;
  const panels = parts.slice(0, most).map((part) => draw(part.rows, part.title || everywhere(data, part.rows)));
  const found = [h("div", { class: "panels" }, panels)];
  if (parts.length > most) {
    const words = `${most} of ${parts.length} plots are drawn; they differ by ${differing.join(", ")}. Choose values among the filters, or `;
    found.push(h("p", { class: "note" }, words, h("button", { id: "more", onclick: context.drawMore }, "draw more")));
  }
  if (apart.length) {
    const words = apart.length === 1 ? "1 more point is of a workload that no backend served"
      : `${apart.length.toLocaleString("en-US")} more points are of workloads that no backend served`;
    found.push(h("details", { class: "apart" }, h("summary", {}, words), nothing(data, apart, "")));
  }
  return found;
}

// What all the rows have in common.
export function everywhere(data, rows) {
  const names = ["device_name", "model", "routine", "dtype"];
  if (!rows.length) return "";
  const differing = new Set(varying(data, rows, names));
  return names.filter((name) => !differing.has(name)).map((name) => data.value(name, rows[0])).filter((value) => value).join(" · ");
}

// A chart, and `numbers`: a function that lists cells, of which the first is the row behind them. `level` is `problem` or `workload`.
// `question` is what a saved picture says that the plot answers, with its unit.
export function panel(context, { title, question, option, height = 340, wide = false, header, numbers, note = null, level = "problem" }) {
  const { data } = context;
  const place = h("div", { class: "chart", role: "img", "aria-label": `${title}; its numbers are in the table below`, style: `height:${height}px` });
  const details = h("details", {}, h("summary", {}, "the numbers"));
  details.addEventListener("toggle", () => details.children.length < 2 && details.append(numbersTable(context, title, header, numbers, level)));
  const usual = common(data, option, level, wide);
  const whole = { ...usual, ...option, legend: { ...usual.legend, ...option.legend } };
  const legend = (whole.grid.top ?? 0) - 36; // what a legend of several lines adds
  place.style.height = `${height + (option.grid ? 0 : legend)}px`;
  const draw = () => ({ option: whole, title, words: [question, context.about, note], width: place.clientWidth, height: place.clientHeight });
  const tools = takeAlong(`${data.header.title} ${title}`, draw, () => ({ caption: title, header, rows: numbers().map(([, ...cells]) => cells) }));
  context.toMount.push(() => mount(context, place, whole, level));
  return h("figure", { class: wide ? "panel wide" : "panel" }, h("figcaption", {}, h("span", { class: "title" }, title), tools), place,
    note ? h("p", { class: "note" }, note) : null, details);
}

function numbersTable(context, title, header, all, level) {
  const numbers = all();
  const rows = numbers.slice(0, MOST_ROWS).map(([row, ...cells]) => [
    ...cells.map((cell) => short(cell)),
    h("button", { onclick: () => context.showRow(row, level) }, "show"),
  ]);
  const caption = numbers.length > MOST_ROWS ? `${title}: the first ${MOST_ROWS} of ${numbers.length}` : title;
  const names = header.map((name) => h("th", { scope: "col", title: context.data.about(name) }, name));
  return table(caption, [...names, "point"], rows);
}

function mount(context, place, option, level) {
  // A browser prints the topmost of the canvases of a plot alone, and paper wants vectors anyhow.
  const chart = echarts.init(place, isDark() ? "dark" : null, { renderer: context.printing ? "svg" : "canvas" });
  const drawn = new Promise((resolve) => chart.on("finished", resolve)); // before the option, which may draw at once
  chart.setOption(option);
  chart.on("click", (params) => {
    const row = rowOf(params);
    if (row >= 0) context.showRow(row, level);
    chart.dispatchAction({ type: "hideTip" });
  });
  return { chart, drawn };
}

// The row behind a point: its third number where points are many and so plain arrays, which the chart reads faster than objects.
function rowOf({ data }) {
  return Array.isArray(data) ? data[2] : data?.row;
}

// About how wide a plot will be, as style.css lays panels out.
export function panelWidth(wide) {
  const whole = document.getElementById("view").clientWidth - 32;
  const columns = wide ? 1 : Math.max(1, Math.floor((whole + 12) / 472));
  return (whole - 12 * (columns - 1)) / columns;
}

const LEGEND_LINE = 20;
const MOST_LEGEND_LINES = 5;

// How many lines the legend of a plot takes, about.
function legendLines(names, marker, width) {
  let [lines, x] = [1, 0];
  for (const name of names) {
    const item = marker + 16 + 6.7 * name.length;
    if (x > 0 && x + item > width - 20) [lines, x] = [lines + 1, 0];
    x += item;
  }
  return lines;
}

function common(data, { series }, level, wide) {
  const marker = series.every(({ type }) => type !== "scatter") ? 36 : 14; // room for a line's dashes; a marker would be stretched
  const lines = legendLines(new Set(series.map(({ name }) => name).filter((name) => name)), marker, panelWidth(wide));
  const formatter = (params) => {
    const row = rowOf(params);
    return row >= 0 ? brief(data, row, level) : h("div", {}, params.data?.words ?? params.name);
  };
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { color: ink().text, fontFamily: "system-ui, sans-serif" },
    tooltip: { trigger: "item", confine: true, formatter, className: "tip" },
    legend: { type: lines > MOST_LEGEND_LINES ? "scroll" : "plain", top: 0, itemGap: 8, textStyle: { color: ink().text }, itemWidth: marker },
    grid: { left: 64, right: 20, top: 36 + LEGEND_LINE * (lines > MOST_LEGEND_LINES ? 0 : lines - 1), bottom: 46 },
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

const CLOSE = 2; // ratios within this of 1 are drawn on a linear scale, which shows them apart

// Ratios about 1, where both sides are even: in octaves, unless all are close.
export function ratioAxis(name, log, ratios) {
  const close = ratios.every((ratio) => ratio < CLOSE && ratio > 1 / CLOSE);
  return { ...valueAxis(name, log && !close), logBase: 2 };
}

export function evenLine(words) {
  return { silent: true, symbol: "none", label: { formatter: words, color: ink().text, position: "insideEndTop" }, data: [{ yAxis: 1 }],
    lineStyle: { color: ink().text, type: "solid" } };
}

// Why there is nothing to draw: a sentence, and what became of the rows.
export function nothing(data, rows, sentence) {
  const right = new Set(ok(data, rows)); // whatever a row notes, such as a clock that fell
  const counts = tally(data, rows.filter((row) => !right.has(row)), ["status", "reason"]);
  const cells = right.size ? [["ok", String(right.size), MISSING]] : [];
  cells.push(...counts.slice(0, MOST_REASONS).map(([count, row]) => [data.value("status", row), String(count), data.value("reason", row) || MISSING]));
  if (counts.length > MOST_REASONS) {
    const rest = counts.slice(MOST_REASONS).reduce((sum, [count]) => sum + count, 0);
    cells.push(["others", String(rest), `${counts.length - MOST_REASONS} other reasons; the view "Table" has them all`]);
  }
  const found = cells.length ? table("what became of the points in view", ["status", "points", "reason"], cells) : null;
  return h("div", { class: "nothing" }, sentence ? h("p", {}, sentence) : null, found);
}
