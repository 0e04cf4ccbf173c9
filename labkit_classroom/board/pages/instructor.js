// The instructor's page: seats, raised hands first.
import { element, fill, follow, typed } from "/board.js";

const KEY = "instructor's token"; // in this tab's storage, which no other site or port can read
const marked = new Set(); // numbers of seats
const rows = new Map(); // of each seat by number: what is shown, and its row
let [exercises, questions] = ["", ""]; // as they are in the lists to choose from

// With the roles, since on a phone the rows are laid out as boxes, and browsers then take them for no table.
function cell(name, value) {
  return element("td", { role: "cell", "data-name": name }, value);
}

/** Return a box by which a seat is marked; its number is the board's, which no name can imitate. */
function mark(seat) {
  const box = element("input", { type: "checkbox", id: `seat-${seat.number}`, "aria-label": `mark seat ${seat.number}` });
  box.checked = marked.has(seat.number);
  box.addEventListener("change", () => {
    if (box.checked) marked.add(seat.number);
    else marked.delete(seat.number);
    document.getElementById("remove").disabled = !marked.size;
  });
  return element("label", {}, box, ` ${seat.number}`);
}

function row(seat) {
  const name = element("th", { role: "rowheader", scope: "row" }, typed(seat.seat));
  if (seat.hand_at) {
    const helped = element("button", { id: `helped-${seat.number}`, "aria-label": `helped seat ${seat.number}` }, "helped");
    helped.addEventListener("click", () => order("DELETE", `/api/seats/${seat.number}/hand`));
    const place = seat.at.startsWith(`${seat.hand_at} `) ? "" : `: ${seat.hand_at}`;
    name.append(" ", element("span", { class: "hand" }, `hand up ${seat.hand_up} min${place}`), " ", helped);
  }
  if (seat.lacks) name.append(" ", element("span", { class: "warn" }, "cannot run ", typed(seat.lacks)));
  return element(
    "tr",
    seat.hand_at ? { role: "row", class: "hand" } : { role: "row" },
    cell("no.", mark(seat)),
    name,
    cell("at", seat.at || "nothing yet"),
    cell("verdict", seat.verdict),
    cell("hints", seat.hint || ""),
    cell("passed", seat.passed),
    cell("unchanged", seat.at ? `${seat.unchanged} min` : ""),
    cell("last heard", seat.silent === null ? "" : `${seat.silent} min ago`),
  );
}

/** Show all seats, or those that have not passed the exercise that is chosen. */
function choose(seats) {
  const chosen = document.getElementById("exercise").value;
  const missing = seats.filter((seat) => !seat.done.includes(chosen));
  for (const seat of seats) rows.get(seat.number).made.hidden = chosen && !missing.includes(seat);
  fill("missing", chosen ? `${missing.length} of ${seats.length} have not passed it.` : "");
}

/** Return a button that shows the seats which have not passed an exercise. */
function chooser(at) {
  const button = element("button", { id: `stuck ${at}` }, at);
  button.addEventListener("click", () => {
    const list = document.getElementById("exercise");
    list.value = at;
    list.onchange();
    list.scrollIntoView({ block: "nearest" });
  });
  return button;
}

/** Put other options into a list to choose from, if they are others than before; keep what is chosen. */
function offer(id, before, first, options) {
  const now = JSON.stringify(options);
  if (now === before) return before;
  const list = document.getElementById(id);
  const chosen = list.value;
  fill(id, element("option", { value: "" }, first), ...options.map(([value, text]) => element("option", { value }, text)));
  list.value = chosen;
  if (list.selectedIndex < 0) list.value = "";
  return now;
}

/** Show the seats in their order; a row that stays as it was is not touched, so that a click on it is not lost. */
function showSeats(seats) {
  const there = new Set(seats.map((seat) => seat.number));
  for (const number of marked) if (!there.has(number)) marked.delete(number);
  for (const [number, { made }] of rows)
    if (!there.has(number)) {
      made.remove();
      rows.delete(number);
    }
  const focused = document.activeElement?.id;
  const table = document.getElementById("seats");
  seats.forEach((seat, place) => {
    const text = JSON.stringify(seat);
    const before = rows.get(seat.number);
    const made = before?.text === text ? before.made : row(seat);
    if (made !== before?.made) {
      before?.made.replaceWith(made);
      rows.set(seat.number, { text, made });
    }
    if (table.children[place] !== made) table.insertBefore(made, table.children[place] ?? null);
  });
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

function show(state) {
  const hands = state.seats.filter((seat) => seat.hand_at).length;
  const facts = [["now", state.now], ["people", state.people], [hands === 1 ? "hand" : "hands", hands]];
  if (state.planned) facts.push([state.planned.when, state.planned.title]);
  if (state.drift !== null) facts.push([state.drift < 0 ? "minutes ahead" : "minutes behind", Math.abs(state.drift)]);
  document.title = hands ? `(${hands}) Instructor` : "Instructor";
  fill("facts", ...facts.map(([name, value]) => element("li", {}, element("b", {}, value), name)));
  fill("make-up", state.make_up ? `${state.make_up}.` : "");
  showSeats(state.seats);
  exercises = offer("exercise", exercises, "all seats", state.exercises.map((at) => [at, `not passed: ${at}`]));
  document.getElementById("exercise").onchange = () => choose(state.seats);
  choose(state.seats);
  const asked = state.questions.map(({ question, ...place }) => [JSON.stringify(place), `${place.lab} · ${question}`]);
  questions = offer("held", questions, "the latest that five have guessed", asked);
  if (document.activeElement?.id !== "held") document.getElementById("held").value = state.held ? JSON.stringify(state.held) : "";
  document.getElementById("remove").disabled = !marked.size;
  fill("code", state.code);
  fill("wall", state.wall_address);
  document.getElementById("wall").href = state.wall_address;
  fill(
    "stuck",
    ...(state.stuck.length
      ? state.stuck.map((one) => element("li", {}, chooser(one.at), element("br"), `${one.seats} not yet, after ${one.hint} hint${one.hint === 1 ? "" : "s"} (median)`))
      : [element("li", { class: "quiet" }, "Nowhere.")]),
  );
  document.getElementById("room").hidden = false;
}

function hide() {
  document.getElementById("room").remove();
}

/** Have the board do something, and say whether it has. */
async function order(method, address, message) {
  let told = "the board does not answer";
  try {
    const body = message === undefined ? {} : { body: JSON.stringify(message) };
    const answer = await fetch(address, { method, headers, ...body });
    told = answer.ok ? "" : (await answer.json()).error;
  } catch {
    // as told
  }
  fill("done", told ? `Not done: ${told}.` : "Done.");
}

// The token stands after #, which browsers never send. It goes into a header, and not into a cookie, which browsers
// would send to whatever listens at another port of this host; the address is cleared of it.
const given = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (given) sessionStorage.setItem(KEY, given);
const token = encodeURIComponent(sessionStorage.getItem(KEY) ?? "");
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };

document.getElementById("remove").addEventListener("click", async () => {
  for (const number of [...marked]) await order("DELETE", `/api/seats/${number}`);
});
document.getElementById("change").addEventListener("click", () => order("POST", "/api/code"));
document.getElementById("held").addEventListener("change", ({ target }) => {
  target.blur(); // from now on it shows what the board says
  order("PUT", "/api/held", target.value ? JSON.parse(target.value) : null);
});
follow("/view/instructor", show, hide, headers);
