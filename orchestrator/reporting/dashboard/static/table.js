// Every row in view: searched, sorted, page by page, and taken away as CSV or Parquet.

import { bytesOf } from "./columns.js";
import { choice, h, save } from "./dom.js";
import { short } from "./numbers.js";
import { howKnown, ok, timeWords } from "./select.js";

const PAGE = 100;
const FEW = ["median_us", "in_step_us", "p05_us", "p95_us", "tb_per_sec", "tflops", "frac_of_peak", "rel_err", "stop_reason", "measured_as", "reason"];
const OF_TIME = ["median_us", "in_step_us", "tb_per_sec", "tflops", "frac_of_peak"]; // marked if the time is rough

export function tableView(context) {
  const { data, state } = context;
  const rows = sorted(data, found(data, context.unmerged, state.q), state.sort);
  const names = state.columns === "all" ? every(data) : few(data);
  const from = Math.min(context.page * PAGE, Math.max(rows.length - 1, 0));
  const shown = rows.slice(from, from + PAGE);
  return [tools(context, rows, from),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "rows" }, drawn(context, names, shown, rows.length))];
}

function few(data) {
  const axes = data.axes.filter((name) => data.values(name).length > 1);
  return ["status", "backend", ...axes, ...FEW].filter((name) => data.has(name));
}

// All columns but those that are numbers of this page's own.
function every(data) {
  return [...data.columns.keys()].filter((name) => data.columns.get(name).kind !== "codes");
}

// Rows of which every word of the query is part of some text or axis.
export function found(data, rows, query) {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word);
  const columns = [...data.columns.entries()].filter(([name, { kind }]) => kind === "words" && name !== "command");
  const tests = words.map((word) => columns
    .map(([, { values, data: codes }]) => ({ codes, hit: values.map((value) => String(value ?? "").toLowerCase().includes(word)) }))
    .filter(({ hit }) => hit.includes(true)));
  return rows.filter((row) => tests.every((any) => any.some(({ codes, hit }) => hit[codes[row]])));
}

// By the column that `sort` names, backwards after a minus; rows without a value come last either way.
export function sorted(data, rows, sort) {
  const name = sort.replace(/^-/, "");
  const column = data.columns.get(name);
  if (!column) return rightFirst(data, rows);
  const sense = sort.startsWith("-") ? -1 : 1;
  const nulls = column.kind === "words" ? column.values.indexOf(null) : NaN;
  const isNull = (value) => value === nulls || Number.isNaN(value);
  return rows.slice().sort((a, b) => {
    const [left, right] = [column.data[a], column.data[b]];
    return isNull(left) - isNull(right) || sense * (left - right) || a - b;
  });
}

// Rows that are ok before the others, both by their problem's axes and then by the time.
function rightFirst(data, rows) {
  const codes = data.axes.map((name) => data.codes(name));
  const right = new Set(ok(data, rows));
  const time = data.columns.get("ranked_us")?.data ?? [];
  const byTime = (a, b) => (time[a] - time[b]) || 0;
  const byAxes = (a, b) => codes.reduce((found, of) => found || of[a] - of[b], 0);
  return rows.slice().sort((a, b) => right.has(b) - right.has(a) || byAxes(a, b) || byTime(a, b) || a - b);
}

function tools(context, rows, from) {
  const { data, state, go, turn } = context;
  const count = `${rows.length.toLocaleString("en-US")} rows`;
  const parquet = data.header.parquet || data.header.embedded;
  return h("div", { class: "controls" },
    h("label", { class: "choice" }, "search ",
      h("input", { id: "q", type: "search", value: state.q, onchange: (event) => go({ q: event.target.value }) })),
    choice("columns", "columns", [["", "the main ones"], ["all", "all"]], state.columns, (columns) => go({ columns })),
    h("span", { id: "count" }, rows.length ? `${from + 1} to ${Math.min(from + PAGE, rows.length)} of ${count}` : count),
    h("button", { id: "before", disabled: from === 0, onclick: () => turn(-1) }, "before"),
    h("button", { id: "after", disabled: from + PAGE >= rows.length, onclick: () => turn(1) }, "after"),
    h("button", { id: "csv", onclick: () => save(`${data.header.title}.csv`, "text/csv", csv(data, rows)) }, "CSV of these rows"),
    parquet ? h("button", { id: "parquet-file", onclick: () => takeParquet(data) }, "Parquet of the whole dataset")
      : h("span", { class: "note" }, `Parquet: too large to travel in this file; it is ${data.header.path}/rows.parquet where the page was made`));
}

function takeParquet(data) {
  if (data.header.embedded) {
    save(`${data.header.title}.parquet`, "application/vnd.apache.parquet", bytesOf(document.getElementById("parquet").textContent));
  } else {
    h("a", { href: data.header.parquet, download: `${data.header.title}.parquet` }).click();
  }
}

// RFC 4180. A spreadsheet runs text that begins like a formula, so such text gets an apostrophe before it.
export function csv(data, rows) {
  const names = every(data);
  const cell = (value) => {
    if (value === null) return "";
    if (typeof value !== "string") return String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = Array.from(rows, (row) => names.map((name) => cell(data.value(name, row))).join(","));
  return `${[names.join(","), ...lines].join("\r\n")}\r\n`;
}

function drawn({ data, state, go, showRow }, names, rows, total) {
  const head = names.map((name) => {
    const sense = state.sort === name ? "ascending" : state.sort === `-${name}` ? "descending" : "none";
    const next = sense === "ascending" ? `-${name}` : name;
    const arrow = { ascending: " ▲", descending: " ▼", none: "" }[sense];
    return h("th", { scope: "col", "aria-sort": sense, title: data.about(name) },
      h("button", { id: `sort-${name}`, onclick: () => go({ sort: next }) }, name + arrow));
  });
  const body = Array.from(rows, (row) => h("tr", { "data-row": row },
    h("td", {}, h("button", { onclick: () => showRow(row) }, "show")),
    names.map((name) => (OF_TIME.includes(name) ? h("td", { title: howKnown(data, row) }, timeWords(data, row, name)) : h("td", {}, short(data.value(name, row)))))));
  const empty = total ? null : h("tr", {}, h("td", { colspan: names.length + 1 }, "No row fits the filters and the search."));
  return h("table", { id: "rows" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "point"), head)), h("tbody", {}, body, empty));
}
