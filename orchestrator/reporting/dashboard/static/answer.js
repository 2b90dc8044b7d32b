// What opens first: for one device, model, cache and draft the one backend to choose, what the engines' defaults cost, and the
// fastest backend of each shape with the error of its answer.

import { answerOf, defaultsOf, HERE, inOrder, keptWords, meanOf, meanWords, PLACE, serverOf, shapesOf, tooBig, worstOf, worstWords } from "./answers.js";
import { heatMap, WHAT_A_CELL_SAYS } from "./best.js";
import { choice, h, table } from "./dom.js";
import { short, twoDigits } from "./numbers.js";
import { aboutLine } from "./head.js";
import { inFacets, nothing } from "./panels.js";
import { filtered, newest, ok, present, varying } from "./select.js";
import { copy, takeAlong } from "./share.js";

const CHOSEN = ["device_name", "model", "kv_dtype"]; // each picked by itself; the rest of PLACE together
const IN_TITLE = ["l2", "tp", "num_qo_heads"]; // said in the title in words of their own
const REST = PLACE.filter((name) => !CHOSEN.includes(name));
const LONGEST_DRAFT = 64;
const OF_A_CHOICE = ["routine", "dtype", "q_dtype", "out_dtype"]; // come with a backend, and say nothing about a shape

export function answerView(context) {
  const { data, state } = context;
  const allowed = new Set([...data.axes, ...PLACE, "kind", "sweep"].filter((name) => !OF_A_CHOICE.includes(name)));
  const of = (filters) => filtered(data, Object.fromEntries(Object.entries(filters).filter(([name]) => allowed.has(name))));
  const rows = newest(data, of(state.filters));
  const found = shapesOf(data, rows);
  const place = serverIn(data, found);
  if (!place) return [nothing(data, context.rows, "No point in view is ok, so no backend is the fastest of any.")];
  const is = at(data, place);
  const here = rows.filter(is);
  const shapes = new Map([...found].filter(([, row]) => is(row)));
  const ignored = Object.entries(state.filters).filter(([name, words]) => words.length && !allowed.has(name)).map(([name]) => name);
  const server = serverOf(data, shapes);
  const big = tooBig(data, here);
  return [pickers(context, of, place, shapes),
    big ? h("p", { class: "note", id: "too-big" }, `${big} of ${big + shapes.size} shapes do not count here: their KV cache over all layers is larger than the GPU's memory.`) : null,
    ignored.length ? h("p", { class: "note", id: "ignored" }, `This answer is about all backends and versions: filters of ${ignored.join(", ")} do not count here.`) : null,
    answerTiles(context, server, defaultsOf(data, shapes), title(data, place), varying(data, ok(data, here), ["q_dtype"]).length > 0),
    ...maps(context, here)].filter((part) => part !== null);
}

const key = (data, row) => PLACE.map((name) => data.codes(name)[row]).join();

// The place with the most of these shapes: its value in each column of PLACE.
function serverIn(data, shapes) {
  const counts = new Map();
  for (const row of shapes.values()) {
    const place = key(data, row);
    if (!counts.has(place)) counts.set(place, { row, shapes: 0 });
    counts.get(place).shapes += 1;
  }
  const codes = (row) => PLACE.map((name) => data.codes(name)[row]);
  const first = (a, b) => codes(a).map((code, i) => code - codes(b)[i]).find((d) => d) ?? 0;
  const [most] = [...counts.values()].sort((a, b) => b.shapes - a.shapes || first(a.row, b.row));
  return most && Object.fromEntries(PLACE.map((name) => [name, data.value(name, most.row)]));
}

// Tells whether a row is of a place.
function at(data, place) {
  const tests = PLACE.map((name) => [data.codes(name), data.values(name).indexOf(place[name])]);
  return (row) => tests.every(([codes, code]) => codes[row] === code);
}

function title(data, place) {
  const rest = REST.filter((name) => !IN_TITLE.includes(name) && data.values(name).length > 1 && place[name] !== null && data.axes.includes(name));
  const heads = place.num_qo_heads === null ? null : `${place.num_qo_heads} query heads (tp ${place.tp || 1})`;
  return [place.model, heads, `kv ${place.kv_dtype}`, ...rest.map((name) => `${name} ${place[name]}`), place.l2 ? `${place.l2} L2` : null, place.device_name]
    .filter((word) => word !== null).join(" · ");
}

function pickers(context, of, place, shapes) {
  const { data, state, go } = context;
  const everything = (data.allShapes ??= shapesOf(data, newest(data, of({}))));
  const all = Uint32Array.from(everything.values());
  const pick = (changes) => go({ filters: fitting(data, of, { ...state.filters, ...changes }, Object.keys(changes)) });
  const options = (name, rows) => present(data, rows, name).map((code) => [String(data.values(name)[code]), String(data.values(name)[code])]);
  const one = (name, label) => choice(`pick-${name}`, label, options(name, all), String(place[name]), (value) => pick({ [name]: [value] }));
  const found = CHOSEN.map((name, i) => one(name, ["device", "model", "KV cache"][i]));
  const same = all.filter((row) => CHOSEN.every((name) => data.value(name, row) === place[name]));
  const ways = new Map([...same].map((row) => [REST.map((name) => String(data.value(name, row))).join("\n"), row]));
  if (ways.size > 1) {
    const differing = REST.filter((name, i) => new Set([...ways.keys()].map((way) => way.split("\n")[i])).size > 1);
    const words = (row) => differing.map((name) => `${name} ${data.value(name, row)}`).join(", ");
    const now = REST.map((name) => String(place[name])).join("\n");
    found.push(choice("pick-way", "measured", [...ways].map(([way, row]) => [way, words(row)]), now,
      (way) => pick(Object.fromEntries(way.split("\n").map((value, i) => [REST[i], [value]]).filter(([name]) => differing.includes(name))))));
  }
  const there = Uint32Array.from([...everything.values()].filter(at(data, place)));
  const drafts = present(data, there, "s_qo").map((code) => data.values("s_qo")[code]);
  const draftWords = (n) => (n === 1 ? "none (s_qo 1)" : n <= LONGEST_DRAFT ? `${n - 1} ${n === 2 ? "token" : "tokens"} (s_qo ${n})` : `s_qo ${n}`);
  const now = new Set([...shapes.values()].map((row) => data.value("s_qo", row)));
  found.push(choice("pick-s_qo", "draft", [["", "any"], ...drafts.map((n) => [String(n), draftWords(n)])], now.size === 1 && drafts.length > 1
    ? String([...now][0]) : "", (value) => pick({ s_qo: value ? [value] : [] })));
  return h("div", { class: "controls" }, found);
}

// The filters without those that leave nothing together with what was just picked.
function fitting(data, of, filters, picked) {
  const others = Object.keys(filters).filter((name) => !picked.includes(name));
  let kept = filters;
  for (const name of others) {
    if (shapesOf(data, newest(data, of(kept))).size) break;
    kept = { ...kept, [name]: [] };
  }
  return kept;
}

// Half a percent goes to the even side, as in the report.
function percentOf(share) {
  const nearest = Math.round(share * 100);
  return `${share * 100 === nearest - 0.5 && nearest % 2 ? nearest - 1 : nearest}%`;
}

// `queries` says whether backends differ by the dtype of their queries: a default competes with those of its own alone.
function answerTiles(context, server, defaults, of, queries) {
  const header = ["engine", "type", "mean", "at worst", "worst at", "largest err", "shapes", "its choices without a row"];
  const engines = [...new Set([...server.offered.keys(), HERE])].filter((who) => server.choices.some((one) => one.who === who));
  const lines = engines.map((who) => answerLine(server, who));
  const grid = { caption: `one backend for a server: its time over the best backend's at each shape, geometric mean · ${of}`, header, rows: lines };
  const costs = { caption: `an engine's default: its time over the best backend's · ${of}`, rows: defaults.map(defaultLine),
    header: ["engine", "its name", "here", "points", `within ${percentOf(context.data.header.same)} of the best`, "median", "worst", "worst at", "fastest there"] };
  return h("section", { class: "answer", "aria-label": "One backend for a server" },
    h("h2", {}, "One backend for ", h("span", {}, of)),
    h("div", { class: "tiles" }, lines.map((line, n) => tile(context, line, answerOf(server, engines[n]),
      defaults.find(({ engine }) => engine === line[0]), queries))),
    h("details", { id: "choices" }, h("summary", {}, "as tables: one backend, engines' defaults, every flag, every backend"),
      gridTable(grid, "one-backend"), defaults.length ? gridTable(costs, "engine-default") : null,
      ...[["every flag", (who) => who !== HERE], ["every backend", (who) => who === HERE]].map(([words, fits]) => everyChoice(server, words, fits, of))));
}

function gridTable(grid, id) {
  return h("div", { class: "scroll", id }, takeAlong(grid.caption, null, () => grid), table(grid.caption, grid.header, grid.rows));
}

function answerLine(server, who) {
  const best = answerOf(server, who);
  const engine = who === HERE ? "(of all backends here)" : who;
  const others = [...(server.offered.get(who) ?? [])].sort().map((name) => name.replace(/^--attention-backend /, "")).join(", ");
  if (best.missing.length) {
    return [engine, `none was measured at every shape; nearest: ${best.name}, at ${short(best.served)}`, "–", "–", "–", "–", short(server.shapes), others];
  }
  return [engine, best.name + keptWords(server, who), meanOf(best), worstOf(best), worstWords(best), errorOf(best), short(server.shapes), others];
}

function errorOf({ relErr }) {
  return relErr === null ? "unchecked" : twoDigits(relErr);
}

function defaultLine(one) {
  return [one.engine, one.names.join(", "), one.taken.join(", "), String(one.points), percentOf(one.within), one.middle.toFixed(2), worstOf(one),
    one.worstAt, one.best];
}

function tile(context, [engine, type, mean, worst, worstAt, error], best, cost, queries) {
  const served = !best.missing.length;
  const copied = served && engine === best.who ? h("button", { class: "take", title: "copy the flags", onclick: ({ target }) => copy(best.name, target) }, "copy") : null;
  const says = served ? [h("p", {}, h("strong", {}, `${mean}×`), " the time of the best in the geometric mean, ", h("strong", {}, `${worst}×`), " at worst",
    worstAt === "–" ? "" : ` (${worstAt})`), h("p", { class: "note" }, `largest error of an answer ${error}; runs ${[...best.ran].sort().join(", ")}${roughWords(context, best)}`)]
    : [h("p", {}, `No choice was measured at every shape. ${type.replace(/^none was measured at every shape; n/, "N")}.`),
      h("p", { class: "note" }, "Choose fewer shapes among the filters, such as one sweep, kind or s_qo.")];
  const show = cost && h("button", { class: "link", onclick: () => context.showRow(cost.worstRow, ["shape"]) }, cost.worstAt);
  const byDefault = cost && h("p", { class: "default" }, `Its default ${cost.names.join(", ")}${queries ? ", among backends with queries of the same dtype," : ""} is within ${percentOf(context.data.header.same)} of the best at ${
    percentOf(cost.within)} of ${short(cost.points)} points; at worst ${worstOf(cost)}×`,
    ...(cost.worst > 1 + context.data.header.same ? [h("br"), "(", show, `, where ${cost.best} is fastest)`] : []), ".");
  return h("article", { class: "tile" }, h("h3", {}, engine === best.who ? engine : "of all backends here"),
    served ? h("p", { class: "type" }, h("code", {}, best.name), copied, type.slice(best.name.length)) : null, ...says, byDefault ?? null);
}

// What the mark of rough times means, of a choice that has some.
function roughWords({ data }, { rough, served }) {
  return rough ? `; ~ ${rough} of ${served} ratios are of a time that is only known within ${percentOf(data.header.rough)}` : "";
}

function everyChoice(server, words, fits, of) {
  const kinds = inOrder(server.kinds.keys());
  const found = server.choices.filter(({ who }) => fits(who)).sort((a, b) => (a.who === b.who ? 0 : a.who < b.who ? 1 : -1));
  if (!found.length) return null;
  const none = { served: 0 };
  const cost = (one, kind) => {
    const of = one.kinds.get(kind) ?? none;
    return of.served ? meanWords({ mean: Math.exp(of.log / of.weight), worst: of.worst, rough: of.rough, worstRough: of.worstRough, served: of.served, missing: of.served < server.kinds.get(kind) ? [1] : [] }) : "–";
  };
  const engines = found.some(({ who }) => who !== HERE);
  const rows = found.map((one) => [...(engines ? [one.who] : []), one.name, ...kinds.map((kind) => cost(one, kind)),
    ...(kinds.length > 1 ? [meanWords(one)] : []), errorOf(one), [...one.ran].sort().join(", "), one.missing.join("; ")]);
  const header = [...(engines ? ["engine", "type"] : ["backend"]), ...kinds.map((kind) => `${kind}, ${short(server.kinds.get(kind))}`), ...(kinds.length > 1 ? ["all"] : []), "largest err",
    "runs", "not served"];
  return gridTable({ caption: `${words}: mean over the best (at worst) · ${of}`, header, rows }, words.replace(" ", "-"));
}

function maps(context, rows) {
  const { data } = context;
  const rest = [...data.axes.filter((name) => !["s_kv", "batch_size", ...OF_A_CHOICE, ...PLACE].includes(name)), "kind"];
  const about = aboutLine(data, rows);
  return [h("h2", {}, "The fastest backend of each shape"), h("p", { class: "note" }, `In a cell: the fastest backend, ${WHAT_A_CELL_SAYS} Click one for all backends of its shape.`),
    ...inFacets(context, rows, rest, (part, name) => heatMap({ ...context, about }, part, name, "s_kv", "batch_size", ["shape"]))];
}
