// The head of the page: what was measured on what, with which versions, and when.

import { h } from "./dom.js";
import { nameOf } from "./numbers.js";
import { present } from "./select.js";
import { isDark } from "./theme.js";

const COMMON = ["routine", "q_dtype", "kv_dtype", "s_qo", "batch_size", "s_kv"];
const MOST = 5; // names of a kind that the head lists

// GPUs, models, versions and dates of the rows, each a list of words.
export function facts(data, rows) {
  const of = (name) => present(data, rows, name).map((code) => data.values(name)[code]).filter((value) => value !== null);
  const libraries = [...new Set(of("libraries").flatMap((words) => words.split(", ")))].sort();
  const torch = of("torch_version").map((version) => `torch ${version}`).filter((words) => !libraries.includes(words));
  return { gpu: of("device_name"), model: of("model"), versions: [...torch, ...libraries, ...of("driver").map((version) => `driver ${version}`)],
    date: dates(data, rows),
    code: of("orchestrator_version") };
}

function dates(data, rows) {
  let [from, to] = [null, null];
  for (const row of rows) {
    const day = data.value("finished_at", row)?.slice(0, 10);
    if (day && (from === null || day < from)) from = day;
    if (day && (to === null || day > to)) to = day;
  }
  return from === null ? [] : from === to ? [from] : [`${from} to ${to}`];
}

// A version without the end of a long commit, which the tooltip has.
function brief(version) {
  return version.replace(/(\+g[0-9a-f]{7})[0-9a-f]+/, "$1");
}

function few(words) {
  return words.length <= MOST ? words.join(", ") : `${words.slice(0, MOST).join(", ")} and ${words.length - MOST} more`;
}

// The same in one line, for a picture, with what all the rows have in common.
export function aboutLine(data, rows) {
  const { gpu, model, versions, date } = facts(data, rows);
  const common = COMMON.map((name) => [name, present(data, rows, name).map((code) => data.values(name)[code])])
    .filter(([, values]) => values.length === 1 && values[0] !== null).map(([name, [value]]) => nameOf(name, value));
  return [few(gpu), few(model), ...common, ...versions.slice(0, MOST), few(date)].filter((words) => words).join(" · ");
}

export function head({ data, rows, unmerged, go }) {
  const { title, path, notes } = data.header;
  const statuses = data.values("status").map((status, code) => [status, unmerged.filter((row) => data.codes("status")[row] === code).length]);
  const counts = statuses.filter(([, count]) => count).map(([status, count]) => `${count.toLocaleString("en-US")} ${status}`).join(" · ");
  const older = unmerged.length - rows.length;
  const words = `${rows.length.toLocaleString("en-US")} points in view: ${counts || "none"}`
    + (older ? ` (${older.toLocaleString("en-US")} older rows of the same points are left to Compare and Table)` : "");
  const dark = isDark();
  const found = facts(data, rows);
  const line = [["GPU", found.gpu], ["model", found.model], ["with", found.versions], ["measured", found.date], ["code", found.code]]
    .filter(([, values]) => values.length)
    .map(([name, values]) => h("span", { title: values.join("\n") }, h("b", {}, name), ` ${few(values.map(brief))}`));
  return [h("div", { class: "line" }, h("h1", { title: path }, title), h("p", { id: "facts" }, line),
    h("button", { id: "theme", onclick: () => go({ theme: dark ? "light" : "dark" }) }, dark ? "light" : "dark")),
    h("p", { id: "counts" }, words),
    notes.length ? h("details", { id: "notes" }, h("summary", {}, "how times were taken"), notes.map((note) => h("p", { class: "note" }, note))) : null]
    .filter((part) => part !== null);
}
