// Colours, and the second signs beside them: every backend has a colour, a marker and a dash of its own.

// Paul Tol's bright scheme (https://sronpersonalpages.nl/~pault/), which people with any colour vision tell apart, and a lavender. Fewer than the markers,
// so that the eighth backend shares a colour with the first but no marker.
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#b98eff"];
const DOWN = "path://M0,0H10L5,10Z";
const PLUS = "path://M3,0H7V3H10V7H7V10H3V7H0V3H3Z";
const CROSS = "path://M0,2L2,0L5,3L8,0L10,2L7,5L10,8L8,10L5,7L2,10L0,8L3,5Z";
const HOURGLASS = "path://M0,0H10L5,5L10,10H0L5,5Z";
const HALF = "path://M0,10A5,5,0,0,1,10,10Z";
const MARKERS = ["circle", "rect", "triangle", "diamond", DOWN, PLUS, CROSS, "roundRect", HOURGLASS, HALF, "pin", "arrow"];
const DASHES = ["solid", [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [12, 5], [1, 2], [14, 3, 2, 3, 2, 3], [6, 6], [3, 1], [9, 2, 4, 2], [1, 5]];

export const RAMP = ["#fff7bc", "#fec44f", "#d95f0e", "#7f2704"]; // from even to far ahead; its lightness alone tells the order

// Of the nth backend of a dataset, or the nth line of a plot.
export function sign(n) {
  return {
    color: COLOURS[n % COLOURS.length],
    symbol: MARKERS[n % MARKERS.length],
    dash: DASHES[n % DASHES.length],
  };
}

// Black or white, whichever reads better on a colour (WCAG 2.2's relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance).
export function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const c = parseInt(colour.slice(at, at + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

// A colour of RAMP at a share of its way.
export function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const mix = (from) => {
    const [a, b] = [RAMP[low], RAMP[low + 1]].map((c) => parseInt(c.slice(from, from + 2), 16));
    return Math.round(a + (b - a) * (at - low)).toString(16).padStart(2, "0");
  };
  return `#${mix(1)}${mix(3)}${mix(5)}`;
}

// What style.css says of the page's own colours.
export function ink() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { text: of("--text"), soft: of("--soft"), line: of("--line"), back: of("--back"), none: of("--none") };
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
