// One backend for a whole server, and what the engines' defaults cost: adds up the answers that the page carries, of the shapes chosen.
// The same sums and words as the reports' (questions/choices.py, one_backend.py, engine_default.py).

import { short } from "./numbers.js";
import { ok } from "./select.js";

export const PLACE = ["device_name", "cluster", "model", "tp", "num_qo_heads", "kv_dtype", "timer", "l2", "icache", "context"]; // each combination is a server
const KINDS = ["decode", "drafts", "tree drafts", "chunked prefill", "prefill"];
export const HERE = "backend"; // `who` of the choices that are backends of this project
const AS_LONG = 0.005; // a mean within half a percent of the best's is shown as the best

export function inOrder(kinds) {
  const at = (kind) => (KINDS.includes(kind) ? KINDS.indexOf(kind) : KINDS.length);
  return [...kinds].sort((a, b) => at(a) - at(b) || (a < b ? -1 : 1));
}

// The shapes of the rows that have an answer: a row that is ok of each, by the shape's number in the answers.
export function shapesOf(data, rows) {
  data.asked ??= new Set(data.answers.get("one_backend").codes("shape"));
  const { asked } = data;
  const found = new Map();
  const codes = data.codes("shape");
  for (const row of ok(data, rows)) if (codes[row] > 0 && asked.has(codes[row] - 1) && !found.has(codes[row] - 1)) found.set(codes[row] - 1, row);
  return found;
}

// How many shapes of these rows count in no answer for a server, since their KV cache is larger than the GPU's memory.
export function tooBig(data, rows) {
  const never = new Set(data.header.too_big);
  const codes = data.codes("shape");
  return new Set(rows.map((row) => codes[row] - 1).filter((number) => never.has(number))).size;
}

// The costs of every choice over these shapes, the best first; those that serve every shape before the others.
export function serverOf(data, shapes) {
  const answer = data.answers.get("one_backend");
  const kinds = countKinds(data, shapes);
  const choices = new Map();
  const asked = new Set();
  const shapeOf = answer.codes("shape");
  let major = null;
  for (let i = 0; i < answer.size; i++) {
    const row = shapes.get(shapeOf[i]);
    if (row === undefined) continue;
    const [who, name] = [answer.value("who", i), answer.value("choice", i)];
    const key = `${who} ${name}`;
    asked.add(key);
    major ??= answer.value("major", i);
    const isDefault = answer.value("is_default", i) === 1;
    if (!choices.has(key)) choices.set(key, { who, name, isDefault, kinds: new Map(), ran: new Set(), at: new Map() });
    count(data, answer, i, row, choices.get(key));
  }
  const found = [...choices.values()].filter((choice) => [...choice.kinds.values()].some(({ served }) => served));
  for (const choice of found) Object.assign(choice, added(choice, kinds));
  for (const choice of found) choice.margin = marginOf(choice, found.find((one) => one.who === choice.who && one.isDefault));
  found.sort((a, b) => Number(a.missing.length > 0) - Number(b.missing.length > 0) || a.mean - b.mean || (a.name < b.name ? -1 : 1));
  return { kinds, shapes: shapes.size, choices: found, offered: notMeasured(data, major, kinds, asked) };
}

function countKinds(data, shapes) {
  const kinds = new Map();
  for (const row of shapes.values()) kinds.set(data.value("kind", row), (kinds.get(data.value("kind", row)) ?? 0) + 1);
  return kinds;
}

function count(data, answer, i, row, choice) {
  const kind = data.value("kind", row);
  if (!choice.kinds.has(kind)) choice.kinds.set(kind, { served: 0, weight: 0, log: 0, worst: 0, worstAt: "", relErr: null, refused: 0, statuses: new Set(), rough: 0, worstRough: false });
  const cost = choice.kinds.get(kind);
  const regret = answer.value("regret", i);
  if (regret === null) {
    cost.refused += 1;
    cost.statuses.add(answer.value("statuses", i));
    return;
  }
  const [weight, relErr] = ["weight", "rel_err"].map((name) => answer.value(name, i));
  cost.served += 1;
  cost.weight += weight;
  cost.log += weight * Math.log(regret);
  const own = answer.value("rough", i);
  const isRough = own === 1 || answer.value("best_rough", i) === 1; // either time is only roughly known
  cost.rough += isRough;
  if (regret > cost.worst) [cost.worst, cost.worstAt, cost.worstRough] = [regret, `${kind}, ${shapeWords(data, row)}`, isRough];
  if (relErr !== null) cost.relErr = Math.max(cost.relErr ?? 0, relErr);
  choice.ran.add(answer.value("ran", i));
  choice.at.set(row, { regret, weight, us: answer.value("us", i), floor: answer.value("noise_floor", i), rough: own * data.header.rough });
}

// How much less time a choice takes than the engine's default, where both have one: analysis/margin.py.
function marginOf(choice, base) {
  if (!base || base === choice) return null;
  const both = [...choice.at].filter(([row]) => base.at.has(row)).map(([row, own]) => [own, base.at.get(row)]);
  if (!both.length) return null;
  const weight = both.reduce((sum, [{ weight: one }]) => sum + one, 0);
  const mean = (of) => both.reduce((sum, [own, its]) => sum + own.weight * of(own, its), 0) / weight;
  const floorOf = (own, its) => its.floor + own.rough + its.rough;
  const isAhead = (own, its) => its.us / own.us - 1 > floorOf(own, its);
  const saving = 1 - Math.exp(mean((own, its) => Math.log(own.regret / its.regret)));
  const floor = mean(floorOf);
  return { saving, floor, ahead: both.filter(([own, its]) => isAhead(own, its)).length, shapes: both.length,
    isClear: saving > floor && mean((own, its) => Number(isAhead(own, its))) > 0.5, isTie: Math.abs(saving) <= floor };
}

// The best choice of an engine, or its default if that is not clearly slower.
export function answerOf(server, who) {
  const best = server.choices.find((one) => one.who === who);
  const base = server.choices.find((one) => one.who === who && one.isDefault && !one.missing.length);
  return base && best.margin && !best.margin.isClear ? base : best;
}

// Behind the name of an answer that is the engine's default: why it stays.
export function keptWords(server, who) {
  const [answer, best] = [answerOf(server, who), server.choices.find((one) => one.who === who)];
  if (!answer.isDefault) return "";
  if (best === answer || !best.margin) return " (the default)";
  const { saving, floor, ahead, shapes, isTie } = best.margin;
  const percent = (share) => `${(share * 100).toFixed(1)}%`;
  if (isTie) return ` (the default; equal within noise (${percent(floor)}) to ${best.name}: keep the default)`;
  const why = saving <= 0 ? `the next best, ${best.name}, takes ${percent(-saving)} more time`
    : `${best.name} takes ${percent(saving)} less time by the mean, and is ahead by more than noise at only ${ahead} of ${shapes} shapes`;
  return ` (the default; ${why}: keep the default)`;
}

export function shapeWords(data, row) {
  return `batch ${data.value("batch_size", row)}, s_kv ${short(data.value("s_kv", row))}, s_qo ${data.value("s_qo", row)}`;
}

// Over all kinds of shapes, and in words what was not served.
function added(choice, kinds) {
  const names = inOrder(kinds.keys());
  const costs = names.map((kind) => choice.kinds.get(kind)).filter((cost) => cost);
  const [weight, log, served] = ["weight", "log", "served"].map((name) => costs.reduce((sum, cost) => sum + cost[name], 0));
  const worst = costs.reduce((most, cost) => (cost.worst > most.worst ? cost : most));
  const errors = costs.map(({ relErr }) => relErr).filter((relErr) => relErr !== null);
  const rough = costs.reduce((sum, cost) => sum + cost.rough, 0);
  return { served, rough, worstRough: worst.worstRough, mean: weight ? Math.exp(log / weight) : Infinity, worst: worst.worst, worstAt: worst.worstAt,
    relErr: errors.length ? Math.max(...errors) : null, missing: names.flatMap((kind) => missing(kind, choice.kinds.get(kind), kinds.get(kind))) };
}

function missing(kind, cost, shapes) {
  if (!cost) return [`${kind}: ${short(shapes)} not measured`];
  const parts = [[cost.refused, [...cost.statuses].sort().join(", ")], [shapes - cost.served - cost.refused, "not measured"]];
  return parts.filter(([number]) => number).map(([number, why]) => `${kind}: ${short(number)} ${why}`);
}

// What each engine offers for these shapes, and no row tells of.
function notMeasured(data, major, kinds, asked) {
  const found = new Map();
  for (const { engine, major: of, kind, choices } of data.header.offered ?? []) {
    if (of !== major || !kinds.has(kind)) continue;
    if (!found.has(engine)) found.set(engine, new Set());
    choices.filter((name) => !asked.has(`${engine} ${name}`)).forEach((name) => found.get(engine).add(name));
  }
  return found;
}

export function meanWords(cost) {
  return cost.served ? `${meanOf(cost)} (${worstOf(cost)})${cost.missing.length ? "*" : ""}` : "–";
}

// A mean and a worst ratio; with ~ if one of their times is only roughly known.
export const meanOf = ({ mean, rough }) => `${rough ? "~" : ""}${mean.toFixed(2)}`;
export const worstOf = ({ worst, worstRough }) => `${worstRough ? "~" : ""}${worst.toFixed(2)}`;

// At worst where; nothing if a choice is as fast as the best everywhere.
export function worstWords({ worst, worstAt }) {
  return worst < 1 + AS_LONG ? "–" : worstAt;
}

// What the engines take by default, over the points of these shapes: how often it is among the best, and its worst point.
export function defaultsOf(data, shapes) {
  const answer = data.answers.get("engine_default");
  const codes = data.codes("shape");
  const engines = new Map();
  for (let i = 0; i < answer.size; i++) {
    const row = answer.value("row", i);
    if (!shapes.has(codes[row] - 1)) continue;
    const engine = answer.value("engine", i);
    if (!engines.has(engine)) engines.set(engine, { engine, names: new Set(), taken: new Set(), regrets: [], worst: i });
    const found = engines.get(engine);
    found.names.add(answer.value("name", i));
    found.taken.add(answer.value("taken", i));
    found.regrets.push(answer.value("regret", i));
    if (answer.value("regret", i) > answer.value("regret", found.worst)) found.worst = i;
  }
  return [...engines.values()].sort((a, b) => (a.engine < b.engine ? 1 : -1)).map((found) => summed(data, answer, found));
}

function summed(data, answer, { engine, names, taken, regrets, worst }) {
  const sorted = regrets.slice().sort((a, b) => a - b);
  const middle = (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;
  const within = regrets.filter((regret) => regret <= 1 + data.header.same).length / regrets.length;
  const of = (name) => answer.value(name, worst);
  return { engine, names: [...names].sort(), taken: [...taken].sort(), points: regrets.length, within, middle, worst: sorted.at(-1), worstRough: of("rough") === 1,
    worstRow: of("row"), worstAt: shapeWords(data, of("row")), best: of("best"), bestErr: of("best_rel_err"),
    takenErr: of("taken_rel_err") };
}
