// The room's results for the chosen question: a plot of all machines, and a table.
import { element, fill } from "/board.js";

const SPACE = "http://www.w3.org/2000/svg";
// Types of machine by instruction set, distinguished by shape as well as colour: CSS class, outline around 0, 0.
const KINDS = {
  AMX: ["amx", "M0,-1.1 L1.05,0.8 L-1.05,0.8 Z"],
  "AVX-512": ["avx512", "M-0.9,0 A0.9,0.9 0 1,0 0.9,0 A0.9,0.9 0 1,0 -0.9,0 Z"],
  NEON: ["neon", "M-1,-0.35 H-0.35 V-1 H0.35 V-0.35 H1 V0.35 H0.35 V1 H-0.35 V0.35 H-1 Z"],
  AVX2: ["avx2", "M-0.8,-0.8 H0.8 V0.8 H-0.8 Z"],
  mixed: ["mixed", "M0,-1.15 L1.15,0 L0,1.15 L-1.15,0 Z"],
};
const UNITS = { "×": "times (×)", "%": "per cent (%)" }; // axis labels, if not the unit itself
const LEVEL = { "×": 1, "%": 100 }; // no gain, no loss
const FAR = 9; // values further out than this multiple of the bulk's spread are not drawn

let [choices, chosen, shown, held] = [new Map(), "", "", ""];

function svg(name, attributes, text = "") {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function format(value) {
  const size = Math.abs(value);
  if (size && (size < 0.01 || size >= 1e6)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 4 : 3 });
}

function kindOf({ isa }) {
  return isa.length === 1 ? isa[0] : "mixed";
}

function coresOf({ cores: [low, high] }) {
  return low === high ? `${low}` : `${low}–${high}`;
}

/** Return an axis's ticks: about five round values between two limits. */
function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const count = Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, index) => (Math.ceil(low / step - 1e-9) + index) * step);
}

/** Return the limits of both axes of a plot of pairs, which need not include 0. */
function rangeOfPairs(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const margin = 0.06 * (most - least) || 0.05 * Math.abs(most) || 1;
  return [least - margin, most + margin];
}

/** Return the axis's limits: far outliers must not squash the other values together. */
function range(values, level) {
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor(0.9 * (sorted.length - 1))];
  const low = sorted[Math.ceil(0.1 * (sorted.length - 1))];
  const spread = high - Math.min(low, 0);
  const most = Math.max(Math.min(sorted.at(-1), high + FAR * spread), level ?? 0, 0);
  const least = Math.min(Math.max(sorted[0], low - FAR * spread), 0);
  return most - least > 1e-300 ? [least, least + 1.08 * (most - least)] : [0, 1];
}

/** Draw a mark for each person, and the line on which the guess and the result are equal. */
function drawPairs(picture, { pairs, least, most, left, right, bottom, em, y, text }) {
  const x = (value) => left + ((right - left) * (value - least)) / (most - least);
  for (const value of ticks(least, most)) text({ x: x(value), y: bottom + 1.4 * em, "text-anchor": "middle" }, format(value));
  picture.append(svg("line", { class: "level", x1: x(least), y1: y(least), x2: x(most), y2: y(most) }));
  for (const [guess, here] of pairs) {
    const place = `translate(${x(guess)} ${y(here)}) scale(${0.38 * em})`;
    picture.append(svg("path", { class: "point avx512", d: KINDS["AVX-512"][1], transform: place }));
  }
}

function draw() {
  const { lab, question, unit, summary, groups, pairs } = choices.get(chosen);
  const box = document.getElementById("picture");
  const em = parseFloat(getComputedStyle(box).fontSize);
  const width = Math.max(box.clientWidth, 15 * em);
  const height = Math.min(22 * em, Math.max(15 * em, width / 2));
  const [left, right, top, bottom] = [(pairs.length ? 6 : 4.6) * em, width - em, 0.8 * em, height - 3.6 * em];
  const values = groups.flatMap((group) => group.values);
  const [least, most] = pairs.length ? rangeOfPairs(pairs.flat()) : range(values, LEVEL[unit]);
  const y = (value) => bottom - ((bottom - top) * (value - least)) / (most - least);
  const label = `${question}, lab ${lab}: ${summary}.`;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const text = (properties, content) => picture.append(svg("text", properties, content));
  const line = (kind, x1, y1, x2, y2) => picture.append(svg("line", { class: kind, x1, y1, x2, y2 }));

  for (const value of ticks(least, most)) {
    line("grid", left, y(value), right, y(value));
    text({ x: left - 0.5 * em, y: y(value) + 0.35 * em, "text-anchor": "end" }, format(value));
  }
  line("axis", left, bottom, right, bottom);
  line("axis", left, top, left, bottom);
  const below = pairs.length ? `guessed or promised, ${unit}` : "cores per machine";
  text({ x: (left + right) / 2, y: height - 0.6 * em, "text-anchor": "middle" }, below);
  const middle = (top + bottom) / 2;
  const aside = pairs.length ? `measured, ${unit}` : UNITS[unit] ?? unit;
  text({ x: em, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${em} ${middle})` }, aside);
  if (pairs.length) drawPairs(picture, { pairs, least, most, left, right, bottom, em, y, text });
  else if (unit in LEVEL) line("level", left, y(LEVEL[unit]), right, y(LEVEL[unit]));

  // A column per type of machine, in order of cores.
  const columns = pairs.length ? [] : groups;
  const wide = (right - left) / groups.length;
  const step = Math.min(1.2 * em, wide / 8);
  columns.forEach((group, index) => {
    const x = left + (index + 0.5) * wide;
    text({ x, y: bottom + 1.4 * em, "text-anchor": "middle" }, coresOf(group));
    const [name, outline] = KINDS[kindOf(group)];
    const inside = group.values.filter((value) => value >= least && value <= most);
    inside.forEach((value, order) => {
      const aside = ((order % 5) - 2) * step; // side by side, so that all are visible
      const place = `translate(${x + aside} ${y(value)}) scale(${0.38 * em})`;
      picture.append(svg("path", { class: `point ${name}`, d: outline, transform: place }));
    });
  });
  box.replaceChildren(picture);

  const counts = Object.keys(KINDS).map((kind) => {
    const matches = groups.filter((group) => kindOf(group) === kind);
    return [kind, matches.reduce((sum, group) => sum + group.values.length, 0)];
  });
  fill("legend", ...counts.filter(([, count]) => count && !pairs.length).map(([kind, count]) => {
    const mark = svg("svg", { class: "mark", viewBox: "-1.3 -1.3 2.6 2.6", "aria-hidden": "true" });
    mark.append(svg("path", { class: `point ${KINDS[kind][0]}`, d: KINDS[kind][1] }));
    return element("li", {}, mark, ` ${kind}: ${count}`);
  }));
  const outside = pairs.length ? 0 : values.filter((value) => value < least || value > most).length;
  const levelLabel = unit in LEVEL ? ` The dashed line is ${LEVEL[unit]}${unit}.` : "";
  const lineLabel = pairs.length ? " On the dashed line, both are equal." : levelLabel;
  const mark = pairs.length ? "person" : "machine";
  fill("caption", `Lab ${lab}: ${question}. Each mark is a ${mark}.${lineLabel}`, outside ? ` Off the chart: ${outside}.` : "");
  fill("values", ...groups.map((group) => {
    const cells = [coresOf(group), group.isa.join(", "), group.values.length, `${group.values.map(format).join(", ")} ${unit}`];
    return element("tr", {}, ...cells.map((content) => element("td", {}, content)));
  }));
}

/** Show results for the question chosen on the page; by default, for the pinned one or the latest. */
export function showResults(results, place) {
  const state = JSON.stringify([results, place]);
  if (state === shown) return;
  const latest = [...choices.keys()].at(-1);
  shown = state;
  choices = new Map(results.map((result) => [`${result.lab} ${result.number}`, result]));
  document.getElementById("results").hidden = !choices.size;
  if (!choices.size) return;
  const before = held;
  held = place ? `${place.lab} ${place.number}` : "";
  if (!choices.has(chosen) || [latest, before].includes(chosen) || held !== before)
    chosen = choices.has(held) ? held : [...choices.keys()].at(-1);
  fill("choice", ...[...choices].map(([key, { lab, question }]) => element("option", { value: key }, `${lab} · ${question}`)));
  document.getElementById("choice").value = chosen;
  draw();
}

document.getElementById("choice").addEventListener("change", (event) => {
  chosen = event.target.value;
  draw();
});
new ResizeObserver(() => choices.size && draw()).observe(document.getElementById("results"));
