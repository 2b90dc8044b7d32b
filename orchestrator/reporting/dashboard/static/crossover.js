// Verify a draft by the decode kernel or by the prefill kernel: the time of the fastest of one over that of the fastest of the other.

import { choice, h } from "./dom.js";
import { nameOf, times } from "./numbers.js";
import { axisOf, evenLine, inFacets, nothing, panel, ratioAxis } from "./panels.js";
import { mark, numberOf, ok, present, split, timeRatio, varying, leadersOf } from "./select.js";
import { sign } from "./theme.js";
import { defaultAxis } from "./lines.js";

const QUESTION = "The fastest prefill backend's time over the fastest decode backend's: above 1 the decode kernel is faster.";
const ROUTINES = ["paged_decode", "paged_prefill"];

export function crossoverView(context) {
  const { data, rows, state } = context;
  const prefillOf = both(data, rows);
  if (!prefillOf.size) return [nothing(data, rows, lacking(data, rows))];
  const decodes = Uint32Array.from(prefillOf.keys());
  const x = state.x || defaultAxis(data, decodes);
  const line = state.y && state.y !== x ? state.y : (varying(data, decodes, ["batch_size", "s_qo", ...data.axes]).find((name) => name !== x) ?? "");
  const rest = data.axes.filter((name) => ![x, line, "routine"].includes(name));
  const key = h("p", { class: "note" }, QUESTION);
  return [controls(context, x, line), key, ...inFacets(context, decodes, rest, (part, title) => plot(context, part, prefillOf, title, x, line))];
}

// The fastest of either routine where both were right: of prefill by that of decode.
export function both(data, rows) {
  const won = leadersOf(data, rows, "problem").map(({ row }) => row);
  return new Map(split(data, won, data.axes.filter((name) => name !== "routine"))
    .map((same) => ROUTINES.map((routine) => same.find((row) => data.value("routine", row) === routine)))
    .filter((pair) => !pair.includes(undefined)));
}

function lacking(data, rows) {
  const found = present(data, ok(data, rows), "routine").map((code) => data.values("routine")[code]);
  const absent = ROUTINES.filter((routine) => !found.includes(routine));
  const what = absent.length ? `${absent.join(" and ")} has no ok point in view` : "no workload in view was served by both";
  return `A crossover needs paged_decode and paged_prefill at the same workloads; ${what}. The sweep target_verify measures both.`;
}

function controls({ data, state, go }, x, line) {
  const axes = data.axes.filter((name) => name !== "routine").map((name) => [name, name]);
  return h("div", { class: "controls" },
    choice("x", "over", axes, x, (value) => go({ x: value })),
    choice("y", "a line for each", axes, line, (value) => go({ y: value })),
    choice("scale", "scales", [["", "logarithmic"], ["linear", "linear"]], state.scale, (scale) => go({ scale })));
}

function plot(context, decodes, prefillOf, title, x, line) {
  const { data, state } = context;
  const log = state.scale !== "linear";
  const codes = present(data, decodes, x);
  const xAxis = axisOf(x, codes.map((code) => data.values(x)[code] ?? "none"), log);
  const at = (row) => (xAxis.type === "category" ? codes.indexOf(data.codes(x)[row]) : data.value(x, row));
  const ratio = (row) => timeRatio(data, prefillOf.get(row), row);
  const who = (row) => `${mark(data, row, prefillOf.get(row))}${times(ratio(row))}: decode ${data.value("ran", row)}, prefill ${data.value("ran", prefillOf.get(row))}`;
  const series = split(data, decodes, line ? [line] : []).sort((a, b) => data.codes(line)[a[0]] - data.codes(line)[b[0]])
    .map((rows, n) => {
      const { color, symbol, dash } = sign(n);
      const points = rows.sort((a, b) => at(a) - at(b)).map((row) => ({ value: [at(row), ratio(row)], row }));
      return { type: "line", name: line ? nameOf(line, data.value(line, rows[0])) : "decode", color, symbol, symbolSize: 8,
        lineStyle: { type: dash, width: 2 }, data: points };
    });
  series[0].markLine = evenLine("even");
  const numbers = () => [...decodes].map((row) => [row, data.value(x, row), line ? data.value(line, row) : null, numberOf(data, row),
    numberOf(data, prefillOf.get(row)), who(row)]);
  const option = { xAxis, yAxis: ratioAxis("time of prefill over decode", log, [...decodes].map(ratio)), series };
  return panel(context, { title, question: QUESTION, option, numbers, header: [x, line || "line", "decode µs", "prefill µs", "prefill over decode"] });
}
