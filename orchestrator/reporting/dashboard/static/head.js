// The head of the page: what was measured on what, with which versions, and when.

import { h } from "./dom.js";
import { nameOf } from "./numbers.js";
import { present } from "./select.js";
import { isDark } from "./theme.js";

const NAMES = ["device_name", "model", "routine"];
const COMMON = [...NAMES, "tp", "num_qo_heads", "q_dtype", "kv_dtype", "s_qo", "batch_size", "s_kv"];
const BRIEF = ["GPU", "model", "with", "measured"]; // facts beside the title; the rest is folded away
const MOST = 5; // names of a kind that the head lists

// The facts of the dataset in few words.
function few(words) {
  const brief = words.slice(0, MOST).join(", ");
  return words.length <= MOST ? brief : `${brief} and ${words.length - MOST} more`;
}

// What rows of a picture have in common, with which versions they were measured, and when.
export function aboutLine(data, rows) {
  const common = COMMON.map((name) => [name, present(data, rows, name).map((code) => data.values(name)[code])])
    .filter(([, values]) => values.length === 1 && values[0] !== null).map(([name, [value]]) => (NAMES.includes(name) ? value : nameOf(name, value)));
  return [...common, few(data.header.facts.with), few(data.header.facts.measured)].filter((words) => words).join(" · ");
}

export function head({ data, rows, unmerged, go }) {
  const { title, path, notes, facts } = data.header;
  const statuses = data.values("status").map((status, code) => [status, unmerged.filter((row) => data.codes("status")[row] === code).length]);
  const counts = statuses.filter(([, count]) => count).map(([status, count]) => `${count.toLocaleString("en-US")} ${status}`).join(" · ");
  const older = unmerged.length - rows.length;
  const words = `${rows.length.toLocaleString("en-US")} points in view: ${counts || "none"}`
    + (older ? ` (${older.toLocaleString("en-US")} older rows of the same points are left to Compare and Table)` : "");
  const dark = isDark();
  const known = Object.entries(facts).filter(([, values]) => values.length);
  const line = known.filter(([name]) => BRIEF.includes(name))
    .map(([name, values]) => h("span", { class: name, title: values.join("\n") }, h("b", {}, name), ` ${few(values)}`));
  const whole = [...known.map(([name, values]) => `${name}: ${values.join(", ")}`), ...notes];
  return [h("div", { class: "line" }, h("h1", { title: path }, title), h("p", { id: "facts" }, line),
    h("button", { id: "theme", onclick: () => go({ theme: dark ? "light" : "dark" }) }, dark ? "light" : "dark")),
    h("p", { id: "counts" }, words),
    h("details", { id: "notes" }, h("summary", {}, "versions, and how times were taken"), whole.map((note) => h("p", { class: "note" }, note)))];
}
