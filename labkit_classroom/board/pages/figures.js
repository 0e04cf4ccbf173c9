// The room's figures: one picture of all machines, for the figure that is chosen, and the same as a table.
import { element, fill, typed } from "/board.js";

const SPACE = "http://www.w3.org/2000/svg";
// Told apart by shape as well as by colour: of which machine, its name here, its outline around 0, 0.
const SETS = [
  { kind: "amx", label: "AMX", has: (isa) => isa.includes("AMX"), outline: "M0,-1.1 L1.05,0.8 L-1.05,0.8 Z" },
  { kind: "avx512", label: "AVX-512", has: (isa) => isa.includes("AVX-512"), outline: "M-0.9,0 A0.9,0.9 0 1,0 0.9,0 A0.9,0.9 0 1,0 -0.9,0 Z" },
  { kind: "avx2", label: "no AVX-512", has: () => true, outline: "M-0.8,-0.8 H0.8 V0.8 H-0.8 Z" },
];
const UNITS = { "×": "times (×)", "%": "per cent (%)", "": "value" }; // what stands at the axis, where it is not the unit itself
const LEVEL = { "×": 1, "%": 100 }; // where nothing is gained or lost
const FAR = 9; // times what nine of ten machines span: one of 64 cores among laptops is drawn, a joke is not
const NAME_LETTERS = 90; // of a figure's name in the list

let [choices, chosen, sent] = [new Map(), "", ""];

function svg(name, properties, text = "") {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function written(value) {
  const size = Math.abs(value);
  if (size && (size < 0.01 || size >= 1e6)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 4 : 3 });
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.floor(sorted.length / 2)]) / 2;
}

/** Return the figures of all labs by their keys, each with a point for each machine. */
function grouped(figures) {
  const found = new Map();
  for (const [lab, machines] of Object.entries(figures))
    for (const { cores, isa, figures: list } of machines)
      for (const { name, value, unit } of list) {
        const key = JSON.stringify([lab, name, unit]);
        if (!found.has(key)) found.set(key, { lab, name, unit, points: [] });
        found.get(key).points.push({ cores, value, set: SETS.find((one) => one.has(isa)) });
      }
  return found;
}

/** Return the figure to begin with: of the newest lab, a ratio before others, and the one that most have sent. */
function first() {
  const rank = (one) => [Number(one.lab), one.unit === "×" ? 1 : 0, one.points.length];
  const [best] = [...choices].sort(([, a], [, b]) => {
    const [left, right] = [rank(a), rank(b)];
    const place = left.findIndex((value, index) => value !== right[index]);
    return place < 0 ? 0 : right[place] - left[place];
  });
  return best[0];
}

/** Return values at which an axis is marked: some five round ones from the least to the most. */
function marks(least, most) {
  const rough = (most - least) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const count = Math.floor(most / step + 1e-9) - Math.ceil(least / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, index) => (Math.ceil(least / step - 1e-9) + index) * step);
}

/** Return the least and the most that is drawn: a value far beyond nearly all others must not press them together. */
function range(values, level) {
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor(0.9 * (sorted.length - 1))];
  const low = sorted[Math.ceil(0.1 * (sorted.length - 1))];
  const spread = Math.max(high - Math.min(low, 0), Number.MIN_VALUE);
  const most = Math.max(Math.min(sorted.at(-1), high + FAR * spread), level ?? 0, 0);
  const least = Math.min(Math.max(sorted[0], low - FAR * spread), 0);
  return most - least > 1e-300 && most - least < 1e300 ? [least, least + 1.08 * (most - least)] : [0, 1];
}

function draw() {
  const { name, unit, points, lab } = choices.get(chosen);
  const box = document.getElementById("picture");
  const em = parseFloat(getComputedStyle(box).fontSize);
  const width = Math.max(box.clientWidth, 15 * em);
  const height = Math.min(22 * em, Math.max(15 * em, width / 2));
  const [left, right, top, bottom] = [4.6 * em, width - em, 0.8 * em, height - 3.6 * em];
  const values = points.map((point) => point.value);
  const [least, most] = range(values, LEVEL[unit]);
  const inside = points.filter(({ value }) => value >= least && value <= most);

  const cores = points.map((point) => point.cores);
  const lowest = Math.floor(Math.log2(Math.min(...cores))) - 0.6;
  const highest = Math.ceil(Math.log2(Math.max(...cores))) + 0.6;
  const x = (count) => left + ((right - left) * (Math.log2(count) - lowest)) / (highest - lowest);
  const y = (value) => bottom - ((bottom - top) * (value - least)) / (most - least);

  const told =
    `${name}, lab ${lab}: ${points.length} machines with ${Math.min(...cores)} to ${Math.max(...cores)} cores; ` +
    `from ${written(Math.min(...values))} to ${written(Math.max(...values))} ${unit}, median ${written(median(values))} ${unit}.`;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told });
  const text = (properties, content) => picture.append(svg("text", properties, content));
  const line = (kind, x1, y1, x2, y2) => picture.append(svg("line", { class: kind, x1, y1, x2, y2 }));

  for (const value of marks(least, most)) {
    line("grid", left, y(value), right, y(value));
    text({ x: left - 0.5 * em, y: y(value) + 0.35 * em, "text-anchor": "end" }, written(value));
  }
  const powers = Array.from({ length: Math.floor(highest) - Math.ceil(lowest) + 1 }, (_, index) => Math.ceil(lowest) + index);
  const every = Math.ceil((powers.length * 3.5 * em) / (right - left)); // as many as there is room for
  for (const power of powers.filter((_, index) => index % every === 0)) {
    line("axis", x(2 ** power), bottom, x(2 ** power), bottom + 0.3 * em);
    text({ x: x(2 ** power), y: bottom + 1.4 * em, "text-anchor": "middle" }, 2 ** power);
  }
  line("axis", left, bottom, right, bottom);
  line("axis", left, top, left, bottom);
  text({ x: (left + right) / 2, y: height - 0.6 * em, "text-anchor": "middle" }, "cores of a machine");
  const middle = (top + bottom) / 2;
  text({ x: em, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${em} ${middle})` }, UNITS[unit] ?? unit);
  if (unit in LEVEL) line("level", left, y(LEVEL[unit]), right, y(LEVEL[unit]));

  const step = Math.min(em, ((right - left) / (highest - lowest)) * 0.25); // four of them from one power to the next
  const placed = new Map(); // how many points have the same cores and kind: beside one another they can all be seen
  for (const { cores: count, value, set } of inside.sort((a, b) => a.value - b.value)) {
    const key = `${count} ${set.kind}`;
    const order = placed.get(key) ?? 0;
    placed.set(key, order + 1);
    const aside = ((SETS.indexOf(set) - 1) * 1.1 + ((order % 3) - 1) * 0.3) * step;
    const place = `translate(${x(count) + aside} ${y(value)}) scale(${0.38 * em})`;
    picture.append(svg("path", { class: `point ${set.kind}`, d: set.outline, transform: place }));
  }
  box.replaceChildren(picture);

  const used = SETS.map((set) => [set, points.filter((point) => point.set === set).length]).filter(([, count]) => count);
  fill("legend", ...used.map(([set, count]) => {
    const mark = svg("svg", { class: "mark", viewBox: "-1.3 -1.3 2.6 2.6", "aria-hidden": "true" });
    mark.append(svg("path", { class: `point ${set.kind}`, d: set.outline }));
    return element("li", {}, mark, ` ${set.label}: ${count}`);
  }));
  const outside = points.length - inside.length;
  const lineMeans = unit in LEVEL ? ` The dashed line is ${LEVEL[unit]}${unit}.` : "";
  fill("caption", `Lab ${lab}: `, typed(name), `. Each mark is a machine.${lineMeans}`, outside ? ` Too far away to be drawn: ${outside}.` : "");
  const sorted = [...points].sort((a, b) => a.cores - b.cores || a.value - b.value);
  fill("values", ...sorted.map((point) =>
    element("tr", {}, element("td", {}, point.cores), element("td", {}, point.set.label), element("td", {}, `${written(point.value)} ${unit}`)),
  ));
}

/** Show the room's figures; whoever looks at the page chooses which. */
export function showFigures(figures) {
  const now = JSON.stringify(figures);
  if (now === sent) return;
  sent = now;
  choices = grouped(figures);
  document.getElementById("figures").hidden = !choices.size;
  if (!choices.size) return;
  const list = document.getElementById("choice");
  const before = list.options.length;
  if (!choices.has(chosen) || !before) chosen = first();
  fill("choice", ...[...choices].map(([key, { lab, name, unit, points }]) => {
    const short = name.length > NAME_LETTERS ? `${name.slice(0, NAME_LETTERS)} …` : name;
    return element("option", { value: key, dir: "auto" }, `${lab} · ${short} (${unit ? `${unit}, ` : ""}${points.length} machines)`);
  }));
  list.value = chosen;
  draw();
}

document.getElementById("choice").addEventListener("change", (event) => {
  chosen = event.target.value;
  draw();
});
new ResizeObserver(() => choices.size && draw()).observe(document.getElementById("figures"));
