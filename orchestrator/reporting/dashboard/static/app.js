// The page: reads the dataset, draws the view that the address names, and turns what a person does into another address.

import { unpack } from "./columns.js";
import { h } from "./dom.js";
import { filtered, newest } from "./select.js";
import { format, parse } from "./state.js";
import { card } from "./card.js";
import { copy } from "./share.js";
import { aboutLine, head } from "./head.js";
import { filterList } from "./filters.js";
import { answerView } from "./answer.js";
import { bestView } from "./best.js";
import { compareView, usable } from "./compare.js";
import { both, crossoverView } from "./crossover.js";
import { linesView } from "./lines.js";
import { rooflineView } from "./roofline.js";
import { tableView } from "./table.js";

const VIEWS = { answer: ["What to type", answerView], best: ["Map", bestView], lines: ["Lines", linesView], roofline: ["Roofline", rooflineView],
  crossover: ["Decode or prefill", crossoverView], compare: ["Compare", compareView], table: ["Table", tableView] };
const $ = (id) => document.getElementById(id);

const page = { data: null, charts: [], page: 0, more: 1, drawings: 0 };

const state = () => parse(location.hash);

function go(changes) {
  location.hash = format({ ...state(), ...changes });
}

function draw() {
  const now = state();
  if (!Object.hasOwn(VIEWS, now.view)) now.view = "answer";
  const focused = document.activeElement?.id;
  const theme = page.printing ? "light" : now.theme;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const unmerged = filtered(page.data, now.filters);
  const rows = newest(page.data, unmerged);
  const context = { ...page, state: now, unmerged, rows, about: aboutLine(page.data, rows), go, showRow, toMount: [],
    drawMore: () => redraw({ more: page.more * 2 }), turn: (by) => redraw({ page: page.page + by }) };
  page.charts.forEach((chart) => chart.dispose());
  $("head").replaceChildren(...head(context));
  drawTabs(context);
  drawFilters(context);
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

// Views that have nothing to draw are dimmed.
function drawTabs({ data, rows, unmerged, state: now }) {
  const empty = { crossover: !both(data, rows).size, compare: !usable(data, unmerged).length };
  const names = Object.keys(VIEWS);
  const step = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = names[(names.indexOf(now.view) + by + names.length) % names.length];
    $(`tab-${next}`).focus();
    go(away(next));
  };
  $("tabs").replaceChildren(...names.map((name) => h("button", { id: `tab-${name}`, role: "tab", class: empty[name] ? "empty" : null, "aria-selected": String(name === now.view),
    "aria-controls": "view", tabindex: name === now.view ? "0" : "-1", onclick: () => go(away(name)), onkeydown: step }, VIEWS[name][0])));
}

// Another view begins with axes of its own; the filters go along.
function away(view) {
  return { view, x: "", y: "" };
}

function drawFilters(context) {
  const before = $("fold");
  const list = filterList(context);
  if (before) list.open = before.open;
  const top = $("filters").scrollTop;
  $("filters").replaceChildren(list);
  $("filters").scrollTop = top;
}

// The row behind a point beside the view; `level` is `problem` or `workload`.
function showRow(row, level = "problem") {
  const command = page.data.value("again", row);
  const close = () => ($("row").hidden = true);
  const again = h("button", { id: "copy", onclick: ({ target }) => copy(command, target) }, "copy the command");
  $("row").replaceChildren(h("button", { id: "close", onclick: close }, "close"), command ? again : "",
    card(page.data, row, level, (other) => showRow(other, level)));
  $("row").onkeydown = (event) => event.key === "Escape" && close();
  $("row").hidden = false;
  $("close").focus();
}

// Paper is light and narrower than the window: plots are drawn anew for it, and again for the screen.
function print(printing) {
  page.printing = printing;
  draw();
  page.charts.forEach((chart) => {
    chart.resize();
    chart.getZr().flush();
  });
}

page.data = await unpack($("data").textContent);
addEventListener("hashchange", () => redraw({ page: 0, more: 1 }));
addEventListener("resize", () => page.charts.forEach((chart) => chart.resize()));
matchMedia("(min-width: 761px)").addEventListener("change", ({ matches }) => ($("fold").open = matches)); // as in style.css
matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
