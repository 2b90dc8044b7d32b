// The fastest backend of each shape, over two axes: coloured by who wins, or by how far the best is ahead of a backend of choice.

import { choice, h } from "./dom.js";
import { errorWords, percent, short, times, twoDigits } from "./numbers.js";
import { axisOf, everywhere, inFacets, nothing, panel, panelWidth } from "./panels.js";
import { grouped, isBeyondNoise, kernelsOnce, mark, numberOf, ok, present, ranked, shownBackend, split, tally, timeOf, timeRatio, timeWords, untoldKernel, varying } from "./select.js";
import { ink, inkOn, ramp, RAMP, signOf } from "./theme.js";

export const WHAT_A_CELL_SAYS = "the kernel that it ran if the name does not tell it, its median in µs, how far it is ahead of the next "
  + "(≈ is no more than noise, ~ of a time that is only roughly known), and the relative error of its answer.";
const NONE = -1; // a cell without a right answer
const GREY = { visualMap: false, itemStyle: { color: "#bdbdbd" } }; // of a cell without a value, as --none in style.css
const [ROOM_FOR_TIME, ROOM_FOR_ERROR] = [90, 116]; // pixels of a cell from which the parts of a line stand beside each other
const [LETTER, SMALL_LETTER] = [6, 5]; // pixels of a letter in a cell, about
const FAR = 2; // doublings ahead at which the colours end

export function bestView(context) {
  const { data, state, rows } = context;
  const right = ok(data, rows);
  if (!right.length) return [nothing(data, rows, "No point in view is ok, so no backend is the fastest of any.")];
  const x = state.x || "s_kv";
  const y = state.y || "batch_size";
  const rest = data.axes.filter((name) => name !== x && name !== y);
  const told = state.over ? `how many times as long ${state.over} takes.` : WHAT_A_CELL_SAYS;
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
// `names` are the columns that make a shape.
export function winners(data, rows, over, names = data.axes) {
  const right = kernelsOnce(data, ok(data, rows));
  const chosen = new Map();
  if (over) {
    const all = ok(data, rows);
    const { ids } = grouped(data, all, names);
    const time = data.codes("ranked_us");
    const fastest = new Map();
    all.forEach((row, i) => {
      const before = fastest.get(ids[i]);
      if (data.value("backend", row) === over && (before === undefined || time[row] < time[before])) fastest.set(ids[i], row);
    });
    all.forEach((row, i) => chosen.set(row, fastest.get(ids[i])));
  }
  return ranked(data, right, names).map(([row, next]) => ({
    row,
    next: next ?? null,
    margin: next === undefined ? null : timeRatio(data, next, row) - 1,
    chosen: chosen.get(row) ?? null,
  }));
}

export function heatMap(context, rows, title, x, y, names = context.data.axes) {
  const { data, state } = context;
  const over = names === data.axes ? state.over : "";
  const [xs, ys] = [x, y].map((name) => present(data, rows, name));
  const wide = xs.length > 6;
  const width = Math.max((panelWidth(wide) - 76) / xs.length - 4, 20);
  const place = { x, y, xs, ys, over, width,
    queries: names !== data.axes && varying(data, ok(data, rows), ["q_dtype"]).length > 0 };
  const won = winners(data, rows, over, names).map((cell) => cellOf(data, cell, place));
  const taken = new Set(won.map(({ value }) => `${value[0]},${value[1]}`));
  const lost = split(data, rows, x === y ? [x] : [x, y]).map((same) => lostCell(data, same, x, y, xs, ys))
    .filter(({ value }) => !taken.has(`${value[0]},${value[1]}`));
  const named = (name, codes) => codes.map((code) => short(data.values(name)[code] ?? "none"));
  const option = {
    xAxis: { ...axisOf(x, named(x, xs), false), splitLine: { show: false } },
    yAxis: { ...axisOf(y, named(y, ys), false), splitLine: { show: false }, inverse: true, nameGap: 44 },
    grid: { left: 64, right: 12, top: 40, bottom: 46 },
    visualMap: over ? aheadOf(over) : whoWins(data, won),
    series: [{ type: "heatmap", data: [...won, ...lost], itemStyle: { borderColor: ink().back, borderWidth: 2 },
      label: { show: true, fontSize: width < ROOM_FOR_TIME ? 10 : 11, lineHeight: 14, width, overflow: "truncate", formatter: ({ data: cell }) => cell.label_ } }],
  };
  const numbers = () => won.map(({ row, next, margin, speedup, chosen }) => [row, data.value(x, row), data.value(y, row), ...ran(data, row, place.queries),
    numberOf(data, row), error(data, row), next === null ? "none" : shownBackend(data, next), margin === null ? null : ahead(data, row, next, margin),
    next === null ? null : error(data, next), ...(over ? [speedup === null ? null : mark(data, row, chosen) + times(speedup)] : [])]);
  const header = [x, y, "fastest", "kernel", timeOf(data, rows), "error", "next", "ahead by", "error of the next", ...(over ? [`over ${over}`] : [])];
  const lines = Math.max(3, ...won.map(({ label_ }) => label_.split("\n").length));
  return panel(context, { title: title || everywhere(data, rows), option, header, numbers, wide, names, height: 110 + (12 + 14 * lines) * Math.max(ys.length, 2) });
}

// A backend, and the kernel that it ran if its name does not tell it. Where queries differ, those in FP8 are said too.
function ran(data, row, queries) {
  const kernel = untoldKernel(shownBackend(data, row), data.value("resolved_backend", row));
  const fp8 = queries && data.value("q_dtype", row).startsWith("fp8") ? "FP8 queries" : null;
  return [shownBackend(data, row), [kernel, fp8].filter((words) => words).join(", ") || null];
}

function error(data, row) {
  const found = data.value("rel_err", row);
  return found === null ? "unchecked" : twoDigits(found);
}

function cellOf(data, { row, next, margin, chosen }, { x, y, xs, ys, over, queries, width }) {
  const at = (name, codes) => codes.indexOf(data.codes(name)[row]);
  const [backend, kernel] = ran(data, row, queries);
  const speedup = chosen === null ? null : timeRatio(data, chosen, row);
  const code = data.codes("backend")[row];
  const colour = over ? ramp(Math.log2(speedup ?? 1) / FAR) : signOf(data.value("backend", row)).color;
  const time = [timeWords(data, row), ...(margin === null ? [] : [ahead(data, row, next, margin)])];
  const error = errorWords(data.value("rel_err", row), next === null ? null : data.value("rel_err", next));
  const lines = over ? [speedup === null ? `no ${over}` : mark(data, row, chosen) + times(speedup)]
    : [kernel === null ? null : folded(kernel, width), ...(width < ROOM_FOR_TIME ? time : [time.join(" ")]), ...(width < ROOM_FOR_ERROR ? error : [error.join(", ")])];
  const shade = over ? (speedup === null ? NONE : Math.log2(speedup)) : code;
  const ground = shade === NONE ? ink().none : colour;
  return { value: [at(x, xs), at(y, ys), shade], row, next, margin, speedup, chosen, label_: [folded(backend, width), ...lines].filter((line) => line !== null).join("\n"),
    label: { color: inkOn(ground) }, ...(shade === NONE ? GREY : {}) };
}

// A name in as many lines as it needs, broken before an underscore, a hyphen or a space.
function folded(name, width) {
  const most = Math.max(8, Math.floor(width / (width < ROOM_FOR_TIME ? SMALL_LETTER : LETTER)));
  const lines = [""];
  for (const part of name.split(/(?=[_ -])/)) {
    if (lines.at(-1) && lines.at(-1).length + part.length > most) lines.push(part.trim());
    else lines[lines.length - 1] += part;
  }
  return lines.join("\n");
}

// Ahead of the next by: ≈ where that is no more than noise, whose floor is one of medians.
function ahead(data, row, next, margin) {
  const measured = data.value("ranked_us", next) / data.value("ranked_us", row) - 1;
  return `${isBeyondNoise(data, 1 + measured, row, next) ? "+" : "≈"}${mark(data, row, next)}${percent(margin)}`;
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
  const pieces = codes.map((code) => ({ value: code, label: data.values("backend")[code], color: signOf(data.values("backend")[code]).color }));
  return { ...LEGEND, type: "piecewise", dimension: 2, pieces, textStyle: { color: ink().text } };
}

function aheadOf(over) {
  return { ...LEGEND, type: "continuous", dimension: 2, min: 0, max: FAR, inRange: { color: RAMP }, itemHeight: 160, itemWidth: 12,
    text: [`${2 ** FAR}× ${over} or more`, "1×"], textStyle: { color: ink().text }, calculable: false };
}
