// What a person takes along: a plot as PNG or SVG with its title and where it was measured, a table as Markdown.

import { bytesOf } from "./columns.js";
import { h, save } from "./dom.js";
import { short } from "./numbers.js";
import { ink, isDark } from "./theme.js";

const [LINE, LETTER] = [15, 6]; // pixels of a line below the title of a picture, and of a letter in it, about

// The buttons of a figure. `draw` returns its option, size and words; `grid` its table.
export function takeAlong(name, draw, grid) {
  const file = `${name.replace(/[^\w.-]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 80) || "plot"}`;
  const button = (words, title, onclick) => h("button", { class: "take", title, onclick }, words);
  return h("span", { class: "tools" },
    ...(draw ? [button("PNG", "save the plot as PNG", () => save(`${file}.png`, "image/png", png(draw()))),
      button("SVG", "save the plot as SVG", () => save(`${file}.svg`, "image/svg+xml", svg(draw())))] : []),
    button("Markdown", "copy the numbers as a Markdown table", ({ target }) => copy(markdown(grid()), target)));
}

// A table in GitHub's Markdown. Text of a dataset stays text: what could be markup is escaped.
export function markdown({ caption, header, rows }) {
  const cell = (value) => short(value).replace(/[\\|<>`*_[\]]/g, "\\$&").replace(/\s+/g, " ");
  const line = (cells) => `| ${cells.map(cell).join(" | ")} |`;
  return [`**${cell(caption)}**`, "", line(header), `|${header.map(() => "---").join("|")}|`, ...rows.map(line), ""].join("\n");
}

export async function copy(text, button) {
  const words = button.textContent;
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copySelected(text); // over http from another machine there is no clipboard
  button.textContent = "copied";
  setTimeout(() => (button.textContent = words), 1500);
}

function copySelected(text) {
  const area = h("textarea", { "aria-hidden": "true" }, text);
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// How many pixels the title of a picture takes, with the words below it.
function head({ words, width }) {
  const lines = words.filter((line) => line).map((line) => Math.ceil((line.length * LETTER) / (width - 20)));
  return 34 + LINE * lines.reduce((sum, count) => sum + count, 0);
}

// The plot once more, apart from the page: a title and what it answers over it, everything below moved down, a legend that shows all.
function titled(plot) {
  const { option, title, words, width } = plot;
  const down = (part) => (part ? { ...part, top: (part.top ?? 0) + head(plot) } : part);
  return { ...option, animation: false, backgroundColor: ink().back,
    title: { text: title, subtext: words.filter((line) => line).join("\n"), left: 10, top: 8, itemGap: 6,
      textStyle: { color: ink().text, fontSize: 15, lineHeight: 18, width: width - 20, overflow: "truncate" },
      subtextStyle: { color: ink().soft, fontSize: 11, lineHeight: LINE, width: width - 20, overflow: "break" } },
    grid: down(option.grid), legend: { ...down(option.legend), type: "plain" }, visualMap: option.visualMap && down(option.visualMap) };
}

function apart(place, plot, renderer) {
  const { width, height } = plot;
  return echarts.init(place, isDark() ? "dark" : null, { renderer, width, height: height + head(plot), devicePixelRatio: 2, ssr: place === null });
}

function svg(plot) {
  const chart = apart(null, plot, "svg");
  chart.setOption(titled(plot));
  const text = chart.renderToSVGString();
  chart.dispose();
  return text;
}

function png(plot) {
  const chart = apart(document.createElement("div"), plot, "canvas");
  chart.setOption(titled(plot));
  chart.getZr().flush();
  const url = chart.getDataURL({ type: "png", pixelRatio: 2, backgroundColor: ink().back });
  chart.dispose();
  return bytesOf(url.slice(url.indexOf(",") + 1));
}
