// What is known of a point: all backends of its workload from the fastest on, then its own numbers, its provenance folded away.

import { h } from "./dom.js";
import { MISSING, nameOf, short, times, twoDigits } from "./numbers.js";
import { howKnown, isRough, mark, newest, ok, overFastest, timeWords } from "./select.js";

const PROVENANCE = ["device_name", "host", "cluster", "run_id", "attempt", "driver", "cuda", "torch_version", "libraries", "flashinfer_version",
  "orchestrator_version", "timer", "l2", "icache", "pace", "stop_reason", "measured_as", "ci95_rel", "num_samples", "sm_clock_mhz", "temperature_c", "power_w",
  "throttle_reasons", "other_processes", "started_at", "finished_at"];
const ROUGH_NOTE = "~ rough: stopped early, since it cannot be the fastest";
const BRIEF = 6; // backends under a pointer; a click shows all

// Rows of the problem or workload of a row, its newest of each backend: first those that are ok, from the least time on.
export function rivals(data, row, level) {
  const codes = data.codes(level);
  const same = newest(data, data.everyRow().filter((other) => codes[other] === codes[row]));
  const time = data.codes("ranked_us");
  const right = ok(data, same).sort((a, b) => time[a] - time[b]);
  const isRight = new Set(right);
  return { right: [...right], others: [...same].filter((other) => !isRight.has(other)) };
}

export function pointWords(data, row, level = "problem") {
  const axes = level === "problem" ? data.axes : data.axes.filter((name) => !["routine", "dtype"].includes(name)).concat("kv_dtype");
  return axes.filter((name) => data.value(name, row) !== null).map((name) => nameOf(name, data.value(name, row))).join(" · ");
}

const othersWords = (number) => `${number} ${number === 1 ? "other" : "others"} did not run or ${number === 1 ? "is" : "are"} not right`;

// The table of the backends of a problem or workload. `pick` shows another of them.
function ranking(data, row, level, pick) {
  const { right, others } = rivals(data, row, level);
  const creditWords = (other) => (data.value("measured_as", other) === null ? "" : ` (measured as ${data.value("measured_as", other)})`);
  const words = (other) => `${data.value("ran", other)}${data.value("reference", other) ? " (a reference, not ranked)" : ""}${creditWords(other)}`;
  const nameCell = (other) => (pick ? h("button", { class: "link", onclick: () => pick(other) }, words(other)) : words(other));
  const routine = new Set(right.map((other) => data.value("routine", other))).size > 1;
  const dtype = new Set(right.map((other) => data.value("q_dtype", other))).size > 1;
  const shown = pick ? right : right.slice(0, BRIEF);
  const lines = shown.map((other, n) => h("tr", { class: other === row ? "chosen" : null, "aria-current": other === row ? "true" : null },
    h("td", {}, String(n + 1)), h("td", {}, nameCell(other)),
    routine ? h("td", {}, data.value("routine", other)) : null, dtype ? h("td", {}, `q ${data.value("q_dtype", other)}`) : null,
    h("td", { title: howKnown(data, other) }, timeWords(data, other)),
    h("td", { title: howKnown(data, other) }, mark(data, other) + times(overFastest(data, other, level))),
    h("td", {}, data.value("rel_err", other) === null ? "unchecked" : twoDigits(data.value("rel_err", other)))));
  const head = ["", "backend", ...(routine ? ["routine"] : []), ...(dtype ? ["queries"] : []), "µs", "over the fastest", "error"];
  const table = right.length ? h("table", { class: "ranking" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, lines)) : h("p", {}, "No backend is ok at this workload.");
  const rough = shown.some((other) => isRough(data, other)) ? h("p", { class: "note" }, ROUGH_NOTE) : null;
  const more = right.length > shown.length ? h("p", { class: "note" }, `and ${right.length - shown.length} more; click for all`) : null;
  if (!others.length) return [table, rough, more];
  if (!pick) return [table, rough, more, h("p", { class: "note" }, othersWords(others.length))];
  const reasons = others.map((other) => h("li", {}, h("button", { class: "link", onclick: () => pick(other) }, data.value("ran", other)),
    ` ${data.value("status", other)}${data.value("reason", other) ? `: ${data.value("reason", other)}` : ""}`));
  return [table, rough, h("details", { class: "others" }, h("summary", {}, othersWords(others.length)), h("ul", {}, reasons))];
}

// Under a pointer: the workload, its fastest backends, and where the row was measured.
export function brief(data, row, level) {
  const where = ["device_name", "libraries", "finished_at"].map((name) => data.value(name, row)).filter((value) => value !== null);
  return h("div", { class: "card" }, h("strong", {}, pointWords(data, row, level)),
    ranking(data, row, level, null), h("p", { class: "note" }, where.join(" · ").replace(/\.\d+Z/, "Z")));
}

// After a click. A line that shows a column under another name has the column third, for its tooltip.
export function card(data, row, level, pick) {
  const of = (name) => data.value(name, row);
  const lines = [
    ["status", of("reason") ? `${of("status")}: ${of("reason")}` : of("status"), "status"],
    ["median", of("median_us") === null ? null : `${timeWords(data, row, "median_us")} µs (p05 ${short(of("p05_us"))}, p95 ${short(of("p95_us"))})`, "median_us"],
    ["how known", howKnown(data, row), isRough(data, row) ? "stop_reason" : "measured_as"],
    ["in a step", of("in_step_us") === null ? null
      : `${short(of("in_step_us"))} µs (95% interval ${short(of("in_step_low_us"))} to ${short(of("in_step_high_us"))})`, "in_step_us"],
    ["energy", of("energy_j") === null ? of("energy_note") : `${short(of("energy_j") * 1e3)} mJ ± ${twoDigits(of("energy_rel"))}`, "energy_j"],
    ["rate", of("tb_per_sec") === null ? null : `${short(of("tb_per_sec"))} TB/s, ${short(of("tflops"))} TFLOP/s, ${of("bound")}-bound`, "bound"],
    ["of the ceiling", of("frac_of_peak") === null ? null : short(of("frac_of_peak")), "frac_of_peak"],
    ["check", of("rel_err") === null ? of("check") : `${of("check")}, relative error ${short(of("rel_err"))} of ${short(of("tolerance"))}`, "rel_err"],
  ];
  const provenance = PROVENANCE.map((name) => [name, of(name) === null ? null : short(of(name)), name]);
  const command = of("again");
  return h("div", { class: "card" },
    h("strong", { title: data.about("point_id") }, pointWords(data, row, level)),
    ranking(data, row, level, pick),
    h("h3", {}, data.value("ran", row)), list(data, lines),
    h("details", { class: "provenance" }, h("summary", {}, "where and how it was measured"), list(data, provenance)),
    command === null ? null : h("p", { class: "command", title: data.about("again") }, command));
}

function list(data, lines) {
  const found = lines.filter(([, value]) => value !== null);
  return h("dl", {}, found.flatMap(([name, value, column]) => [h("dt", { title: data.about(column) }, name), h("dd", {}, value || MISSING)]));
}
