// The page: reads the dataset, draws the view that the address names, and turns what a person does into another address.

import { unpack } from "./columns.js";
import { choice, h } from "./dom.js";
import { card } from "./panels.js";
import { filtered, newest } from "./select.js";
import { format, parse, toggled } from "./state.js";
import { isDark } from "./theme.js";
import { bestView } from "./best.js";
import { compareView } from "./compare.js";
import { crossoverView } from "./crossover.js";
import { linesView } from "./lines.js";
import { rooflineView } from "./roofline.js";
import { tableView } from "./table.js";

const VIEWS = { best: ["Best backend", bestView], lines: ["Lines", linesView], roofline: ["Roofline", rooflineView],
  crossover: ["Decode or prefill", crossoverView], compare: ["Compare", compareView], table: ["Table", tableView] };
const MOST_CHIPS = 60;
const $ = (id) => document.getElementById(id);

const page = { data: null, charts: [], page: 0, more: 1, drawings: 0 };

const state = () => parse(location.hash);

function go(changes) {
  page.page = 0;
  page.more = 1;
  location.hash = format({ ...state(), ...changes });
}

function draw() {
  const now = state();
  if (!Object.hasOwn(VIEWS, now.view)) now.view = "best";
  const focused = document.activeElement?.id;
  if (now.theme) document.documentElement.dataset.theme = now.theme;
  else delete document.documentElement.dataset.theme;
  const unmerged = filtered(page.data, now.filters);
  const context = { ...page, state: now, unmerged, rows: newest(page.data, unmerged), go, showRow, toMount: [],
    drawMore: () => redraw({ more: page.more * 2 }), turn: (by) => redraw({ page: page.page + by }) };
  page.charts.forEach((chart) => chart.dispose());
  drawHead(context);
  drawTabs(now);
  drawFilters(now);
  $("view").setAttribute("aria-labelledby", `tab-${now.view}`);
  $("view").replaceChildren(...VIEWS[now.view][1](context));
  const mounted = context.toMount.map((mount) => mount());
  page.charts = mounted.map(({ chart }) => chart);
  if (focused) $(focused)?.focus();
  tellWhenDrawn(mounted.map(({ drawn }) => drawn));
}

function redraw(changes) {
  Object.assign(page, changes);
  draw();
}

// Tests and measurements wait for this: the number of drawings that are on the screen.
function tellWhenDrawn(finished) {
  const number = (page.drawings += 1);
  Promise.all(finished).then(() => requestAnimationFrame(() => {
    performance.mark(`drawn-${number}`);
    document.body.dataset.drawn = number;
  }));
}

function drawHead({ data, rows, unmerged }) {
  const { title, path, notes } = data.header;
  const statuses = data.values("status").map((status, code) => [status, unmerged.filter((row) => data.codes("status")[row] === code).length]);
  const counts = statuses.filter(([, count]) => count).map(([status, count]) => `${count.toLocaleString("en-US")} ${status}`).join(" · ");
  const older = unmerged.length - rows.length;
  const words = `${rows.length.toLocaleString("en-US")} points in view: ${counts || "none"}`
    + (older ? ` (${older.toLocaleString("en-US")} older rows of the same points are left to Compare and Table)` : "");
  const dark = isDark();
  $("head").replaceChildren(h("h1", { title: path }, title), h("p", { id: "counts" }, words), ...notes.map((note) => h("p", { class: "note" }, note)),
    h("button", { id: "theme", onclick: () => go({ theme: dark ? "light" : "dark" }) }, dark ? "light" : "dark"));
}

function drawTabs(now) {
  const names = Object.keys(VIEWS);
  const step = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = names[(names.indexOf(now.view) + by + names.length) % names.length];
    $(`tab-${next}`).focus();
    go(away(next));
  };
  $("tabs").replaceChildren(...names.map((name) => h("button", { id: `tab-${name}`, role: "tab", "aria-selected": String(name === now.view),
    "aria-controls": "view", tabindex: name === now.view ? "0" : "-1", onclick: () => go(away(name)), onkeydown: step }, VIEWS[name][0])));
}

// Another view begins with axes of its own; the filters go along.
function away(view) {
  return { view, x: "", y: "" };
}

function drawFilters(now) {
  const { data } = page;
  const names = [...new Set([...data.axes.filter((name) => data.values(name).length > 1), ...data.header.filters])];
  const any = Object.values(now.filters).some((values) => values.length);
  const clear = h("button", { id: "clear", disabled: !any, onclick: () => go({ filters: {} }) }, "clear all filters");
  const words = names.length ? "Nothing chosen means everything." : "No axis of this dataset varies.";
  $("filters").replaceChildren(h("p", { class: "note" }, words), clear, ...names.map((name) => filterOf(now, name)));
}

function filterOf(now, name) {
  const words = page.data.values(name).map((value) => String(value));
  const chosen = now.filters[name] ?? [];
  const toggle = (word) => go({ filters: toggled(now.filters, name, word) });
  const shown = words.length <= MOST_CHIPS ? words : chosen;
  const chips = shown.map((word) => h("button", { id: `f-${name}-${word}`, class: "chip", "aria-pressed": String(chosen.includes(word)),
    onclick: () => toggle(word) }, word === "null" ? "none" : word));
  const rest = words.length <= MOST_CHIPS ? null
    : choice(`f-${name}`, `${words.length} values:`, [["", "add one"], ...words.filter((w) => !chosen.includes(w)).map((w) => [w, w])], "", toggle);
  return h("fieldset", {}, h("legend", { title: page.data.about(name) }, name), chips, rest);
}

function showRow(row) {
  const command = page.data.value("command", row);
  const close = () => ($("row").hidden = true);
  const copy = h("button", { id: "copy", onclick: () => navigator.clipboard.writeText(command) }, "copy the command");
  $("row").replaceChildren(h("button", { id: "close", onclick: close }, "close"), command ? copy : "", card(page.data, row));
  $("row").onkeydown = (event) => event.key === "Escape" && close();
  $("row").hidden = false;
  $("close").focus();
}

page.data = await unpack($("data").textContent);
addEventListener("hashchange", draw);
addEventListener("resize", () => page.charts.forEach((chart) => chart.resize()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
