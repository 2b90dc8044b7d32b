// Colours, and the second signs beside them. A backend has the same colour, marker and dash on every page.

// Twenty colours that differ from one another by at least 18 in CIEDE2000, and from the light and the dark background by a contrast
// of at least 3:1 (WCAG 2.2, https://www.w3.org/TR/WCAG22/#contrast-minimum); a test computes both.
const COLOURS = ["#0090d8", "#b48400", "#e43060", "#00a878", "#6c9c0c", "#8424ff", "#909084", "#0c60d8", "#9084f0", "#f06c00", "#0c7824", "#6c6c00",
  "#ff30e4", "#546c6c", "#d80000", "#9c5400", "#009ca8", "#a83c90", "#b48478", "#847890"];
// Their places are their signs, so a new name comes last, behind a free place if it would share a sign with one of its dataset.
// Signs of other backends follow from their names.
const BACKENDS = ["flash_attn_3", "fa2_tc", "cudnn", "trtllm-native", "fa2", "fa3 (FlashInfer)", "auto", "flash_attn_3_32_splits",
  "(free too)", "trtllm-fmha-v2", "trtllm-gen", "trtllm-context", "multi_level", "torch_sdpa", "vllm_triton", "flex_attention", "flash_attn_4",
  "cutlass", "cute-dsl", "gdn_decode", "merge_states", "merge_state_chain", "torch_merge", "torch_chunks", "two_calls_fa2", "cutile",
  "tokenspeed_mla", "two_calls_fa3 (FlashInfer)", "gdn_chunk", "fa2_chunks", "two_calls_fa3_fa2 (FlashInfer)", "fa2_chunks_8k", "fa3_chunks (FlashInfer)", "torch_two_calls",
  "gdn_chunk_whole", "fla_recurrent", "batch_attention", "flash_attn_3_vllm_32_splits", "triton_mla"];
// Names that would share a sign with another of their dataset at the end of the list: places behind it that are free.
const PLACES = { batch_pod: 41, flash_mla: 93, flash_attn_2_vllm: 112, flash_mla_vllm: 131, flash_attn_3_vllm: 268, flash_attn_3_sglang: 58, sglang_triton: 79, fla_chunk: 50, flash_attn_3_unplanned: 117, sglang_triton_extend: 70, vllm_write: 200, vllm_triton_write: 201, flashinfer_append: 202, flashinfer_rope_append: 203, flashinfer_rope_then_append: 204 };
const path = (of) => `path://${of}`;
const MARKERS = ["circle", "rect", "triangle", "diamond",
  path("M0,0H10L5,10Z"), // a triangle that points down
  path("M3,0H7V3H10V7H7V10H3V7H0V3H3Z"), // a plus
  path("M0,2L2,0L5,3L8,0L10,2L7,5L10,8L8,10L5,7L2,10L0,8L3,5Z"), // a cross
  path("M5,0L6.2,3.5L9.8,3.5L6.9,5.8L8,9.5L5,7.3L2,9.5L3.1,5.8L0.2,3.5L3.8,3.5Z"), // a star
  path("M0,0H10L5,5L10,10H0L5,5Z"), // an hourglass
  path("M0,10A5,5,0,0,1,10,10Z"), // half a disc
  "pin", "arrow",
  path("M0,5L3,0H7L10,5L7,10H3Z"), // a hexagon
  path("M0,0L10,5L0,10Z"), // triangles that point right and left
  path("M10,0L0,5L10,10Z"),
  path("M5,0A5,5,0,1,1,4.99,0ZM5,3A2,2,0,1,0,5.01,3Z"), // a ring
  path("M0,0H10V10H0ZM3,3V7H7V3Z")]; // a frame
const DASHES = ["solid", [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [12, 5], [1, 2], [14, 3, 2, 3, 2, 3], [6, 6], [3, 1], [9, 2, 4, 2], [1, 5],
  [16, 4], [4, 4], [2, 1, 8, 1], [7, 7, 2, 7]];

export const RAMP = ["#fff7bc", "#fec44f", "#d95f0e", "#7f2704"]; // from even to far ahead; its lightness alone tells the order

// Of the nth line of a plot. Twenty colours and seventeen markers: the first 340 pairs differ.
export function sign(n) {
  return {
    color: COLOURS[n % COLOURS.length],
    symbol: MARKERS[n % MARKERS.length],
    dash: DASHES[n % DASHES.length],
  };
}

// Of a backend: the same whatever else a dataset holds.
export function signOf(backend) {
  const known = PLACES[backend] ?? BACKENDS.indexOf(backend);
  return sign(known >= 0 ? known : hash(backend));
}

function hash(word) {
  let found = BACKENDS.length;
  for (const letter of word) found = (found * 31 + letter.codePointAt(0)) % 340;
  return found;
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
