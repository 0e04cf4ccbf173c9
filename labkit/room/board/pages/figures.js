// The room's figures: a picture for each figure of a lab, one point for each machine.
import { element } from "/board.js";

const SPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [720, 300, 70, 50, 20];
const SETS = [
  ["amx", "AMX", "▲"],
  ["avx512", "AVX-512", "●"],
  ["avx2", "no AVX-512", "■"],
];

function shape(name, properties, text = "") {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function setOf(isa) {
  if (isa.includes("AMX")) return 0;
  return isa.includes("AVX-512") ? 1 : 2;
}

function picture(name, points) {
  const most = Math.max(...points.map((point) => point.value));
  const cores = Math.max(...points.map((point) => point.cores));
  const x = (value) => LEFT + ((WIDTH - LEFT - 20) * value) / (cores * 1.05);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * Math.max(0, value)) / (most * 1.05 || 1);
  const described = `${name}: ${points.length} machines with up to ${cores} cores, the largest value is ${most.toPrecision(3)}.`;
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": described });
  svg.append(
    shape("line", { class: "axis", x1: LEFT, y1: HEIGHT - BOTTOM, x2: WIDTH - 20, y2: HEIGHT - BOTTOM }),
    shape("line", { class: "axis", x1: LEFT, y1: TOP, x2: LEFT, y2: HEIGHT - BOTTOM }),
    shape("text", { x: WIDTH / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "cores of a machine"),
    shape("text", { x: LEFT - 8, y: y(most) + 5, "text-anchor": "end" }, most.toPrecision(3)),
    shape("text", { x: LEFT - 8, y: HEIGHT - BOTTOM, "text-anchor": "end" }, "0"),
    shape("text", { x: x(cores), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle" }, cores),
  );
  SETS.forEach(([kind, label, mark], index) =>
    svg.append(
      shape("text", { class: kind, x: LEFT + 20 + 150 * index, y: 14 }, mark),
      shape("text", { x: LEFT + 38 + 150 * index, y: 14 }, label),
    ),
  );
  for (const point of points) {
    const [kind, , mark] = SETS[setOf(point.isa)];
    svg.append(shape("text", { class: kind, x: x(point.cores), y: y(point.value) + 5, "text-anchor": "middle" }, mark));
  }
  return element("figure", {}, svg, element("figcaption", {}, name));
}

/** Return the pictures of all labs: of the figures that five machines or more have sent. */
export function pictures(figures) {
  return Object.entries(figures).flatMap(([lab, machines]) => {
    const byName = new Map();
    for (const { cores, isa, figures: sent } of machines)
      for (const { name, value } of sent) byName.set(name, [...(byName.get(name) ?? []), { cores, isa, value }]);
    const shown = [...byName].filter(([, points]) => points.length >= 5);
    if (!shown.length) return [];
    return [element("h2", {}, `Lab ${lab}: the room's figures`), ...shown.map(([name, points]) => picture(name, points))];
  });
}
