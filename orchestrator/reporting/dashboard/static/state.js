// The view as the part of the address behind #: whoever opens the address sees the same.

const FILTER = "f.";
const DEFAULTS = { view: "answer", x: "", y: "", metric: "over_best", top: "1.25", colour: "", facet: "", over: "", by: "", base: "", cand: "",
  scale: "", sort: "", q: "", columns: "", theme: "" };

export function parse(hash) {
  const state = { ...DEFAULTS, filters: {} };
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (name.startsWith(FILTER)) (state.filters[name.slice(FILTER.length)] ??= []).push(value);
    else if (Object.hasOwn(DEFAULTS, name)) state[name] = value;
  }
  return state;
}

export function format(state) {
  const params = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) if (state[name] !== usual) params.append(name, state[name]);
  for (const [name, values] of Object.entries(state.filters)) for (const value of values) params.append(FILTER + name, value);
  return `#${params}`;
}
