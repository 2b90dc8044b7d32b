// Elements. Text enters the document as text nodes and attributes only, never as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A labelled choice. `options` are [value, text] pairs.
export function choice(id, label, options, chosen, onpick) {
  const items = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  const select = h("select", { id, onchange: (event) => onpick(event.target.value) }, items);
  return h("label", { class: "choice" }, `${label} `, select);
}

// A table; a cell may be text or an element.
export function table(caption, header, rows, attributes = {}) {
  const head = h("tr", {}, header.map((name) => (name instanceof Node ? name : h("th", { scope: "col" }, name))));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell ?? ""))));
  return h("table", attributes, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body));
}

// Saves bytes or text as a file.
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
