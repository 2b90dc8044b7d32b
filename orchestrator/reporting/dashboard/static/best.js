// The fastest backend of each shape, over two axes: coloured by who wins, or by how far the best is ahead of a backend of choice.

import { choice, h } from "./dom.js";
import { percent, short, times } from "./numbers.js";
import { axisOf, everywhere, inFacets, nothing, panel } from "./panels.js";
import { kernelsOnce, noiseFloor, ok, present, ranked, shownBackend, split, tally, timeOf, timeRatio } from "./select.js";
import { ink, inkOn, ramp, RAMP, sign } from "./theme.js";

const NONE = -1; // a cell without a right answer
const GREY = { visualMap: false, itemStyle: { color: "#bdbdbd" } }; // of a cell without a value, as --none in style.css
const FAR = 2; // doublings ahead at which the colours end

export function bestView(context) {
  const { data, state, rows } = context;
  const right = ok(data, rows);
  if (!right.length) return [nothing(data, rows, "No point in view is ok, so no backend is the fastest of any.")];
  const x = state.x || "s_kv";
  const y = state.y || "batch_size";
  const rest = data.axes.filter((name) => name !== x && name !== y);
  const told = state.over ? `how many times as long ${state.over} takes.` : "its median in µs, and how far it is ahead of the next; ≈ no more than noise.";
  const key = h("p", { class: "note" }, `In a cell: the fastest backend, ${told}`);
  return [controls(context, right, x, y), key, ...inFacets(context, rows, rest, (part, title) => heatMap(context, part, title, x, y))];
}

function controls({ data, state, go }, right, x, y) {
  const axes = data.axes.map((name) => [name, name]);
  const backends = present(data, right, "backend").map((code) => data.values("backend")[code]);
  const colours = [["", "the fastest backend"], ...backends.map((name) => [name, `speed-up of the best over ${name}`])];
  return h("div", { class: "controls" },
    choice("over", "colour by", colours, state.over, (over) => go({ over })),
    choice("x", "across", axes, x, (value) => go({ x: value })),
    choice("y", "down", axes, y, (value) => go({ y: value })));
}

// The winner of each shape among the rows, with the next and how far ahead of it; `chosen` is the row of the backend compared with.
export function winners(data, rows, over) {
  const right = ok(data, rows);
  const first = (list) => list[0];
  const chosen = new Map();
  for (const same of ranked(data, right.filter((row) => data.value("backend", row) === over), data.axes)) {
    chosen.set(shapeOf(data, first(same)), first(same));
  }
  return ranked(data, kernelsOnce(data, right), data.axes).map(([row, next]) => ({
    row,
    next: next ?? null,
    margin: next === undefined ? null : timeRatio(data, next, row) - 1,
    chosen: chosen.get(shapeOf(data, row)) ?? null,
  }));
}

function shapeOf(data, row) {
  return data.axes.map((name) => data.codes(name)[row]).join();
}

function heatMap(context, rows, title, x, y) {
  const { data, state } = context;
  const [xs, ys] = [x, y].map((name) => present(data, rows, name));
  const won = winners(data, rows, state.over).map((cell) => cellOf(data, state, cell, x, y, xs, ys));
  const taken = new Set(won.map(({ value }) => `${value[0]},${value[1]}`));
  const lost = split(data, rows, x === y ? [x] : [x, y]).map((same) => lostCell(data, same, x, y, xs, ys))
    .filter(({ value }) => !taken.has(`${value[0]},${value[1]}`));
  const names = (name, codes) => codes.map((code) => short(data.values(name)[code] ?? "none"));
  const option = {
    xAxis: { ...axisOf(x, names(x, xs), false), splitLine: { show: false } },
    yAxis: { ...axisOf(y, names(y, ys), false), splitLine: { show: false }, inverse: true, nameGap: 44 },
    grid: { left: 64, right: 12, top: 40, bottom: 46 },
    visualMap: state.over ? aheadOf(state.over) : whoWins(data, won),
    series: [{ type: "heatmap", data: [...won, ...lost], itemStyle: { borderColor: ink().back, borderWidth: 2 },
      label: { show: true, fontSize: 11, lineHeight: 14, formatter: ({ data: cell }) => cell.label_ }, labelLayout: { hideOverlap: true } }],
  };
  const numbers = () => won.map(({ row, next, margin, speedup }) => [row, data.value(x, row), data.value(y, row), shownBackend(data, row),
    data.value("ranked_us", row), next === null ? "none" : shownBackend(data, next), margin === null ? null : ahead(data, row, next, margin),
    ...(state.over ? [speedup === null ? null : times(speedup)] : [])]);
  const header = [x, y, "fastest", timeOf(data, rows), "next", "ahead by", ...(state.over ? [`over ${state.over}`] : [])];
  return panel(context, { title: title || everywhere(data, rows), option, header, numbers, wide: xs.length > 6,
    height: 110 + 52 * Math.max(ys.length, 2) });
}

function cellOf(data, state, { row, next, margin, chosen }, x, y, xs, ys) {
  const at = (name, codes) => codes.indexOf(data.codes(name)[row]);
  const backend = shownBackend(data, row);
  const speedup = chosen === null ? null : timeRatio(data, chosen, row);
  const code = data.codes("backend")[row];
  const colour = state.over ? ramp(Math.log2(speedup ?? 1) / FAR) : sign(code).color;
  const second = state.over
    ? (speedup === null ? `no ${state.over}` : times(speedup))
    : `${short(data.value("ranked_us", row))}${margin === null ? "" : ` ${ahead(data, row, next, margin)}`}`;
  const shade = state.over ? (speedup === null ? NONE : Math.log2(speedup)) : code;
  const ground = shade === NONE ? ink().none : colour;
  return { value: [at(x, xs), at(y, ys), shade], row, next, margin, speedup, label_: `${backend}\n${second}`, label: { color: inkOn(ground) },
    ...(shade === NONE ? GREY : {}) };
}

// Ahead of the next by: ≈ where that is no more than noise, whose floor is one of medians.
function ahead(data, row, next, margin) {
  const measured = data.value("ranked_us", next) / data.value("ranked_us", row) - 1;
  return `${measured > noiseFloor(data, row) ? "+" : "≈"}${percent(margin)}`;
}

// A cell whose points have no right answer: what became of them, most often.
function lostCell(data, same, x, y, xs, ys) {
  const [count, row] = tally(data, same, ["status", "reason"])[0];
  const [status, reason] = [data.value("status", row), data.value("reason", row)];
  const words = `none ok of ${same.length}; ${count} ${status}${reason ? `: ${reason}` : ""}`;
  const value = [xs.indexOf(data.codes(x)[row]), ys.indexOf(data.codes(y)[row]), NONE];
  return { value, words, label_: status, label: { color: inkOn(ink().none) }, ...GREY };
}

const LEGEND = { orient: "horizontal", top: 0, left: "center" };

function whoWins(data, won) {
  const codes = [...new Set(won.map(({ value }) => value[2]))].sort((a, b) => a - b);
  const pieces = codes.map((code) => ({ value: code, label: data.values("backend")[code], color: sign(code).color }));
  return { ...LEGEND, type: "piecewise", dimension: 2, pieces, textStyle: { color: ink().text } };
}

function aheadOf(over) {
  return { ...LEGEND, type: "continuous", dimension: 2, min: 0, max: FAR, inRange: { color: RAMP }, itemHeight: 160, itemWidth: 12,
    text: [`${2 ** FAR}× ${over} or more`, "1×"], textStyle: { color: ink().text }, calculable: false };
}
