// What opens first: what a deployment's user types for each engine, in the words of question=one_backend and engine_default, and the
// fastest backend of each of its workloads.

import { heatMap, WHAT_A_CELL_SAYS } from "./best.js";
import { choice, h, table } from "./dom.js";
import { aboutLine } from "./head.js";
import { inFacets, nothing } from "./panels.js";
import { withWinners } from "./select.js";
import { copy, takeAlong } from "./share.js";

const PICKED = { device_name: "GPU", model: "model", kv_dtype: "KV cache" };
const OF_A_CHOICE = ["routine", "dtype", "q_dtype", "out_dtype"]; // come with a backend, and say nothing about a workload

export function answerView(context) {
  const { data, state } = context;
  const fitting = data.header.deployments.filter(fits(state.filters));
  const pairs = fitting.flatMap((one) => one.phases.filter(isPicked(state.filters)).map((of) => [one, of]));
  if (isOpen(data, state.filters)) return servers(context);
  if (!pairs.length) return [nothing(data, context.rows, "No deployment in view was measured.")];
  const [here, phase] = pairs.find(([{ place }, { name }]) => context.rows.some(isOf(data, place, name))) ?? pairs[0];
  const rows = context.rows.filter(isOf(data, here.place, phase.name));
  const others = Object.keys(state.filters).filter((name) => state.filters[name].length && name !== "phase" && !(name in here.place));
  return [pickers(context, here, phase),
    others.length ? h("p", { class: "note", id: "ignored" }, `The answer is over all workloads of the deployment: filters of ${others.join(", ")} choose only what the map draws.`) : "",
    answer(here, phase), ...maps(context, rows, Object.keys(here.place))];
}

const SERVER = ["device_name", "model", "tp", "num_qo_heads"];
const placed = (place) => Object.fromEntries(Object.keys(place).map((name) => [name, [String(place[name])]]));

// Whether there are several servers, and none is chosen.
function isOpen({ header: { deployments: all } }, filters) {
  const chosen = Object.keys(all[0]?.place ?? {}).some((name) => filters[name]?.length);
  return !chosen && new Set(all.map(({ place }) => SERVER.map((name) => place[name]).join())).size > 1;
}

// What was measured, a line for each deployment with its answers: a click opens it. Those that were timed in another way are folded away.
function servers({ data, go }) {
  const all = data.header.deployments;
  const phases = ["decode", "drafts"];
  const told = ({ phases: own }, name) => own.find((phase) => phase.name === name)?.brief.map((line) => h("div", {}, line)) ?? "–";
  const line = (one) => [h("button", { class: "link", onclick: () => go({ filters: placed(one.place) }) }, one.name), one.place.device_name, one.place.kv_dtype, ...phases.map((name) => told(one, name)),
    one.phases.map(({ name }) => name).filter((name) => !phases.includes(name)).join(", ")];
  const header = ["model", "GPU", "KV cache", ...phases, "other phases"];
  const list = (some) => h("div", { class: "scroll" }, table("", header, some.map(line), { class: "servers" }));
  const [usual, others] = [all.filter((one) => one.usual), all.filter((one) => !one.usual)];
  return [h("h2", {}, "Which server?"),
    h("p", { class: "note" }, "For each engine its best flag, with its time over the fastest backend's in the geometric mean. custom: heads that were typed."), list(usual),
    others.length ? h("details", { id: "others" }, h("summary", {}, `${others.length} more, timed in other ways`), h("ul", {}, others.map((one) =>
      h("li", {}, h("button", { class: "link", onclick: () => go({ filters: placed(one.place) }) }, one.title))))) : ""];
}

// Tells whether a deployment is among those that filters leave, and a phase of it.
function fits(filters) {
  return ({ place, phases }) => phases.some(isPicked(filters))
    && Object.entries(filters).every(([name, words]) => !words.length || !(name in place) || words.includes(String(place[name])));
}

const isPicked = ({ phase }) => ({ name }) => !phase?.length || phase.includes(name);

// Tells whether a row is of a deployment in a phase.
function isOf(data, place, phase) {
  const tests = Object.entries({ ...place, phase }).map(([name, value]) => [data.codes(name), data.values(name).indexOf(value)]);
  return (row) => tests.every(([codes, code]) => codes[row] === code);
}

function pickers({ data, state, go }, here, phase) {
  const all = data.header.deployments;
  const same = all.filter(({ place }) => Object.keys(PICKED).every((name) => place[name] === here.place[name]));
  const pick = (changes) => go({ filters: without(all, { ...state.filters, ...changes }, Object.keys(changes)) });
  const names = (name) => [...new Set(all.map(({ place }) => String(place[name])))].sort().map((value) => [value, value]);
  return h("div", { class: "controls" },
    ...Object.entries(PICKED).map(([name, label]) => choice(`pick-${name}`, label, names(name), String(here.place[name]), (value) => pick({ [name]: [value] }))),
    same.length > 1 ? choice("pick-deployment", "deployment", same.map(({ title }, n) => [String(n), title]), String(same.indexOf(here)), (n) => pick(placed(same[n].place))) : null,
    isOpen(data, {}) ? h("button", { id: "servers", onclick: () => go({ filters: {} }) }, "all servers") : null,
    choice("pick-phase", "phase", here.phases.map(({ name }) => [name, name]), phase.name, (name) => pick({ phase: [name] })));
}

// The filters without those that leave no deployment together with what was just picked.
function without(all, filters, picked) {
  let kept = filters;
  for (const name of Object.keys(filters)) {
    if (all.some(fits(kept))) break;
    if (!picked.includes(name)) kept = { ...kept, [name]: [] };
  }
  return kept;
}

function answer({ title, left_out: tooBig }, { engines, tables }) {
  const of = (grid) => ({ ...grid, caption: `${grid.title} · ${title}` });
  return h("section", { class: "answer", "aria-label": "What to type" },
    h("h2", {}, "What to type for ", h("span", {}, title)), h("div", { class: "tiles" }, engines.map(tile)),
    tooBig ? h("p", { class: "note", id: "too-big" }, `${tooBig}.`) : "",
    h("details", { id: "tables" }, h("summary", {}, "as tables, with every flag and every backend"),
      ...tables.map(of).map((grid) => h("div", { class: "scroll" }, takeAlong(grid.caption, null, () => grid), table(grid.caption, grid.header, grid.rows)))));
}

function tile(of) {
  const copied = of.copy && h("button", { class: "take", title: "copy the flags", onclick: ({ target }) => copy(of.copy, target) }, "copy");
  const cost = of.mean === "–" ? null : h("p", {}, h("strong", {}, `${of.mean}×`), " the time of the fastest in the geometric mean, ",
    h("strong", {}, `${of["at worst"]}×`), ` at worst${of["worst at"] === "–" ? "" : ` (${of["worst at"]})`}; largest error ${of["largest err"]}; runs ${of.runs}`);
  return h("article", { class: "tile" }, h("h3", {}, `${of.engine} · ${of.for} · ${of.workloads} workloads`), h("p", { class: "type" }, of.type, copied || ""), cost);
}

function maps(context, rows, place) {
  const { data } = context;
  const rest = data.axes.filter((name) => !["s_kv", "batch_size", ...OF_A_CHOICE, ...place].includes(name));
  const shown = withWinners(data, rows, "workload");
  if (!shown.won) return [nothing(data, rows, rows.length ? "No point in view is ok, so no backend is the fastest of any." : "The filters leave no point of this phase.")];
  return [h("h2", {}, "The fastest backend of each workload"), h("p", { class: "note" }, `In a cell: ${WHAT_A_CELL_SAYS} Click one for all backends of its workload.`),
    ...inFacets(context, shown.rows, rest, (part, name) => heatMap({ ...context, about: aboutLine(data, part) }, part, name, "s_kv", "batch_size", "workload"))];
}
