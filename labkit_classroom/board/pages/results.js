// The room's results for the chosen question: a plot of all machines, and a list.
import { element, fill } from "/board.js";

const SPACE = "http://www.w3.org/2000/svg";
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
function drawPairs(picture, { pairs, least, most, left, right, bottom, em, y, text, mark }) {
  const x = (value) => left + ((right - left) * (value - least)) / (most - least);
  for (const value of ticks(least, most)) text({ x: x(value), y: bottom + 1.4 * em, "text-anchor": "middle" }, format(value));
  picture.append(svg("line", { class: "level", x1: x(least), y1: y(least), x2: x(most), y2: y(most) }));
  for (const [guess, here] of pairs) mark(x(guess), y(here));
}

function draw() {
  const { lab, question, unit, summary, values, pairs } = choices.get(chosen);
  const box = document.getElementById("picture");
  const em = parseFloat(getComputedStyle(box).fontSize);
  const width = Math.max(box.clientWidth, 15 * em);
  const height = Math.min(22 * em, Math.max(15 * em, width / 2));
  const [left, right, top, bottom] = [(pairs.length ? 6 : 4.6) * em, width - em, 0.8 * em, height - 3.6 * em];
  const [least, most] = pairs.length ? rangeOfPairs(pairs.flat()) : range(values, LEVEL[unit]);
  const y = (value) => bottom - ((bottom - top) * (value - least)) / (most - least);
  const label = `${question}, lab ${lab}: ${summary}.`;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const text = (properties, content) => picture.append(svg("text", properties, content));
  const line = (kind, x1, y1, x2, y2) => picture.append(svg("line", { class: kind, x1, y1, x2, y2 }));
  const mark = (x, y) => picture.append(svg("circle", { class: "point", cx: x, cy: y, r: 0.35 * em }));

  for (const value of ticks(least, most)) {
    line("grid", left, y(value), right, y(value));
    text({ x: left - 0.5 * em, y: y(value) + 0.35 * em, "text-anchor": "end" }, format(value));
  }
  line("axis", left, bottom, right, bottom);
  line("axis", left, top, left, bottom);
  const below = pairs.length ? `guessed or promised, ${unit}` : "machines, by their result";
  text({ x: (left + right) / 2, y: height - 0.6 * em, "text-anchor": "middle" }, below);
  const middle = (top + bottom) / 2;
  const aside = pairs.length ? `measured, ${unit}` : UNITS[unit] ?? unit;
  text({ x: em, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${em} ${middle})` }, aside);
  if (pairs.length) drawPairs(picture, { pairs, least, most, left, right, bottom, em, y, text, mark });
  else if (unit in LEVEL) line("level", left, y(LEVEL[unit]), right, y(LEVEL[unit]));

  const isInside = (value) => value >= least && value <= most;
  const wide = (right - left) / values.length;
  if (!pairs.length) values.forEach((value, order) => isInside(value) && mark(left + (order + 0.5) * wide, y(value)));
  box.replaceChildren(picture);

  const outside = pairs.length ? 0 : values.filter((value) => !isInside(value)).length;
  const levelLabel = unit in LEVEL ? ` The dashed line is ${LEVEL[unit]}${unit}.` : "";
  const lineLabel = pairs.length ? " On the dashed line, both are equal." : levelLabel;
  const whose = pairs.length ? "person" : "machine";
  fill("caption", `Lab ${lab}: ${question}. Each mark is a ${whose}.${lineLabel}`, outside ? ` Off the chart: ${outside}.` : "");
  fill("values", `${values.map(format).join(", ")} ${unit}`);
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
