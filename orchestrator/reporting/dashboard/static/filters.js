// The filters beside every view. Each value tells how many points it would leave, given all the other filters.

import { choice, h } from "./dom.js";
import { filtered, newest } from "./select.js";

const MOST_CHIPS = 60;

// The columns to filter by: what varies, and whatever is chosen. A pair of dtypes is chosen by its parts.
export function filterNames(data, filters) {
  const axes = data.axes.flatMap((name) => (name === "dtype" ? ["kv_dtype", "q_dtype"] : [name]));
  const varying = axes.filter((name) => data.values(name).length > 1);
  const chosen = Object.keys(filters).filter((name) => filters[name].length && data.has(name));
  return [...new Set([...varying, ...data.header.filters, ...chosen])];
}

export function filterList({ data, state, go }) {
  const { filters } = state;
  const names = filterNames(data, filters);
  const chosen = Object.values(filters).reduce((sum, words) => sum + words.length, 0);
  const clear = h("button", { id: "clear", disabled: !chosen, onclick: () => go({ filters: {} }) }, "clear all filters");
  const words = names.length ? "No filter shows everything. Numbers count points." : "No axis of this dataset varies.";
  const fold = h("details", { id: "fold", open: matchMedia("(min-width: 761px)").matches },
    h("summary", {}, chosen ? `Filters: ${chosen} chosen` : "Filters"), h("p", { class: "note" }, words), clear,
    ...names.map((name) => filterOf(data, filters, name, go)));
  return fold;
}

function filterOf(data, filters, name, go) {
  const words = data.values(name).map((value) => String(value));
  const chosen = filters[name] ?? [];
  const counts = countsOf(data, { ...filters, [name]: [] }, name);
  const toggle = (word) => go({ filters: { ...filters, [name]: chosen.includes(word) ? chosen.filter((one) => one !== word) : [...chosen, word] } });
  const few = words.length <= MOST_CHIPS;
  const shown = words.map((word, code) => [word, code]).filter(([word, code]) => (few ? counts[code] || chosen.includes(word) : chosen.includes(word)));
  const chips = shown.map(([word, code]) => h("button", { id: `f-${name}-${word}`, class: "chip", "aria-pressed": String(chosen.includes(word)),
    onclick: () => toggle(word) }, word === "null" ? "none" : word, h("span", { class: "count" }, ` ${counts[code].toLocaleString("en-US")}`)));
  const rest = few ? null : choice(`f-${name}`, `${words.length} values:`,
    [["", "add one"], ...words.map((w, code) => [w, `${w} (${counts[code]})`]).filter(([w]) => !chosen.includes(w))], "", toggle);
  return h("fieldset", {}, h("legend", { title: data.about(name) }, name), chips, rest);
}

// How many points have each value of a column.
function countsOf(data, filters, name) {
  const counts = new Uint32Array(data.values(name).length);
  const codes = data.codes(name);
  const rows = filtered(data, filters);
  data.hasOlder ??= newest(data, data.everyRow()).length < data.size;
  for (const row of data.hasOlder ? newest(data, rows) : rows) counts[codes[row]] += 1;
  return counts;
}
