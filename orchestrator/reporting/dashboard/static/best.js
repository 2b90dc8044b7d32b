// The fastest backend of each workload over two axes, as the reports rank them: coloured by who wins, or by how far the fastest is
// ahead of a backend of choice.

import { choice, h } from "./dom.js";
import { short, times } from "./numbers.js";
import { axisOf, everywhere, inFacets, nothing, panel, panelWidth } from "./panels.js";
import { mark, newest, numberOf, ok, present, split, tally, timeOf, timeRatio, timeWords, varying, leadersOf, withWinners } from "./select.js";
import { ink, inkOn, ramp, RAMP, signOf } from "./theme.js";

const IN_PICTURE = "in a cell: backend, median µs, lead over the next (≈ within noise, ~ rough), relative error";
export const WHAT_A_CELL_SAYS = "the fastest of all backends, whatever the filters, its kernel if the name does not tell it, its median in µs, "
  + "its lead over the next (≈ within noise, ~ of a rough time), and the relative error of its answer.";
const NONE = -1; // a cell without a right answer
const GREY = { visualMap: false, itemStyle: { color: "#bdbdbd" } }; // of a cell without a value, as --none in style.css
const [ROOM_FOR_TIME, ROOM_FOR_ERROR] = [90, 116]; // pixels of a cell from which the parts of a line stand beside each other
const [LETTER, SMALL_LETTER] = [6, 5]; // pixels of a letter in a cell, about
const FAR = 2; // doublings ahead at which the colours end
const MOST_CELLS = 24; // along an axis: neighbours of a longer one share a cell

export function bestView(context) {
  const { data, state } = context;
  // What a running engine took is no time of a call, and no backend wins there.
  const calls = context.rows.filter((row) => !data.axes.includes("context") || data.value("context", row) !== "engine");
  const { rows, won } = withWinners(data, calls, "problem");
  if (!won) return [nothing(data, context.rows, "No point in view is ok, so no backend is the fastest of any.")];
  const x = state.x || "s_kv";
  const y = state.y || "batch_size";
  const rest = data.axes.filter((name) => name !== x && name !== y);
  const told = state.over ? `the fastest of all backends, and how many times as long ${state.over} takes.` : WHAT_A_CELL_SAYS;
  return [controls(context, x, y), h("p", { class: "note" }, `In a cell: ${told}`),
    ...inFacets(context, rows, rest, (part, title) => heatMap(context, part, title, x, y))];
}

function controls({ data, state, go }, x, y) {
  const axes = data.axes.map((name) => [name, name]);
  const backends = present(data, ok(data, data.everyRow()), "backend").map((code) => data.values("backend")[code]);
  const colours = [["", "the fastest backend"], ...backends.map((name) => [name, `speed-up of the fastest over ${name}`])];
  return h("div", { class: "controls" },
    choice("over", "colour by", colours, state.over, (over) => go({ over })),
    choice("x", "across", axes, x, (value) => go({ x: value })),
    choice("y", "down", axes, y, (value) => go({ y: value })));
}

// `level` says what a cell stands for: a problem, or a workload, whatever its routine and queries.
export function heatMap(context, rows, title, x, y, level = "problem") {
  const { data, state } = context;
  const over = level === "problem" ? state.over : "";
  const [xs, ys] = [x, y].map((name) => present(data, rows, name));
  const named = (name, codes) => codes.map((code) => short(data.values(name)[code] ?? "none"));
  const [across, down] = [bins(named(x, xs)), bins(named(y, ys))];
  const wide = across.names.length > 6;
  const width = Math.max((panelWidth(wide) - 76) / across.names.length - 4, 20);
  const place = { x, y, xs, ys, over, width, queries: level === "workload" && varying(data, ok(data, rivalsOf(data, rows, level)), ["q_dtype"]).length > 0 };
  const rivals = over ? rowsOf(data, over) : new Map();
  const won = leadersOf(data, rows, level).map((line) => cellOf(data, { ...line, chosen: rivals.get(data.codes(level)[line.row]) ?? null }, place));
  const taken = new Set(won.map(({ value }) => `${value[0]},${value[1]}`));
  const lost = split(data, rows, x === y ? [x] : [x, y]).map((same) => lostCell(data, same, x, y, xs, ys))
    .filter(({ value }) => !taken.has(`${value[0]},${value[1]}`));
  const cells = across.size * down.size === 1 ? [...won, ...lost]
    : shared([...won, ...lost], across.size, down.size, over, (row) => folded(ran(data, row, place.queries), width));
  const several = [[x, xs, across], [y, ys, down]].filter(([, , { size }]) => size > 1);
  const note = several.length === 0 ? null : `${several.map(([name, codes, { names }]) => `${codes.length} values of ${name} share ${names.length} cells`).join(", ")}: `
    + (over ? "the median speed-up of each." : "each names the backend that is the fastest most often in it, and at how many of its problems.");
  const option = {
    xAxis: { ...axisOf(x, across.names, false), splitLine: { show: false } },
    yAxis: { ...axisOf(y, down.names, false), splitLine: { show: false }, inverse: true, nameGap: 44 },
    grid: { left: 64, right: 12, top: 40, bottom: 46 },
    visualMap: over ? aheadOf(over) : whoWins(data, cells.filter(({ value }) => value[2] !== NONE)),
    series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: ink().back, borderWidth: 2 },
      label: { show: true, fontSize: width < ROOM_FOR_TIME ? 10 : 11, lineHeight: 14, width, overflow: "truncate", formatter: ({ data: cell }) => cell.label_ } }],
  };
  const numbers = () => won.map((cell) => [cell.row, data.value(x, cell.row), data.value(y, cell.row), ran(data, cell.row, place.queries), numberOf(data, cell.row),
    cell.error, cell.next ?? "none", cell.ahead, cell.next_error, ...(over ? [cell.speedup === null ? null : speedUp(data, cell)] : [])]);
  const header = [x, y, "fastest", timeOf(data, rows), "error", "next", "ahead by", "error of the next", ...(over ? [`over ${over}`] : [])];
  const lines = Math.max(3, ...cells.map(({ label_ }) => label_.split("\n").length));
  const height = 110 + (12 + 14 * lines) * Math.max(down.names.length, 2);
  return panel(context, { title: title || everywhere(data, rows),
    question: over ? `How many times as long ${over} takes as the fastest backend` : `Fastest backend of each workload; ${IN_PICTURE}`, option, header, numbers, wide, level, height, note });
}

// The names of an axis, or of neighbours together if there are more than a map has room for, and how many each stands for.
function bins(names) {
  const size = Math.ceil(names.length / MOST_CELLS);
  const first = names.filter((_, at) => at % size === 0);
  return { size, names: size <= 1 ? names : first.map((name, bin) => `${name}–${names[Math.min((bin + 1) * size, names.length) - 1]}`) };
}

// One cell for neighbours: that of the backend which wins most of them, with how many, or with `over` the one of the median speed-up.
function shared(cells, across, down, over, nameOf) {
  const places = new Map();
  for (const cell of cells) {
    const at = [Math.floor(cell.value[0] / across), Math.floor(cell.value[1] / down)];
    if (!places.has(at.join())) places.set(at.join(), { at, all: [] });
    places.get(at.join()).all.push(cell);
  }
  return [...places.values()].map(({ at, all }) => {
    const right = all.filter(({ value }) => value[2] !== NONE).sort((a, b) => a.value[2] - b.value[2]);
    const counts = new Map();
    for (const { value } of right) counts.set(value[2], (counts.get(value[2]) ?? 0) + 1);
    const most = over ? null : [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
    const same = over ? right : right.filter(({ value }) => value[2] === most);
    const one = same[Math.floor(same.length / 2)] ?? all[0];
    const label_ = over || right.length === 0 ? one.label_ : `${nameOf(one.row)}\n${same.length} of ${all.length}`;
    return { ...one, value: [...at, one.value[2]], label_ };
  });
}

// All rows of the same problems or workloads, as the winners are of all whatever the filters leave.
function rivalsOf(data, rows, level) {
  const codes = data.codes(level);
  const numbers = new Set(Array.from(rows, (row) => codes[row]));
  return data.everyRow().filter((row) => numbers.has(codes[row]));
}

// The row of a backend at each problem.
function rowsOf(data, backend) {
  const rows = newest(data, ok(data, data.everyRow())).filter((row) => data.value("backend", row) === backend);
  return new Map(Array.from(rows, (row) => [data.codes("problem")[row], row]));
}

// Who won; where queries differ, those in FP8 are said too.
function ran(data, row, queries) {
  return data.value("ran", row) + (queries && data.value("q_dtype", row).startsWith("fp8") ? " with FP8 queries" : "");
}

const speedUp = (data, { row, chosen, speedup }) => mark(data, row, chosen) + times(speedup);

function cellOf(data, line, { x, y, xs, ys, over, queries, width }) {
  const { row, chosen, ahead, error } = line;
  const at = (name, codes) => codes.indexOf(data.codes(name)[row]);
  const speedup = chosen === null ? null : timeRatio(data, chosen, row);
  const shade = !over ? data.codes("backend")[row] : speedup === null ? NONE : Math.log2(speedup);
  const ground = shade === NONE ? ink().none : over ? ramp(shade / FAR) : signOf(data.value("backend", row)).color;
  const time = [timeWords(data, row), ahead].filter((words) => words !== null);
  const lines = over ? [speedup === null ? `no ${over}` : speedUp(data, { row, chosen, speedup })]
    : [...(width < ROOM_FOR_TIME ? time : [time.join(" ")]), ...(width < ROOM_FOR_ERROR ? error.split(", ") : [error])];
  return { ...line, value: [at(x, xs), at(y, ys), shade], speedup, label_: [folded(ran(data, row, queries), width), ...lines].join("\n"),
    label: { color: inkOn(ground) }, ...(shade === NONE ? GREY : {}) };
}

// A name in as many lines as it needs, broken before an underscore, a hyphen, a bracket or a space.
function folded(name, width) {
  const most = Math.max(8, Math.floor(width / (width < ROOM_FOR_TIME ? SMALL_LETTER : LETTER)));
  const lines = [""];
  for (const part of name.split(/(?=[_ (-])/)) {
    if (lines.at(-1) && lines.at(-1).length + part.length > most) lines.push(part.trim());
    else lines[lines.length - 1] += part;
  }
  return lines.join("\n");
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
