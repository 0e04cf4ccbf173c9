// The instructor's page: seats, raised hands first.
import { element, fill, follow, typed } from "/board.js";

const KEY = "instructor's token"; // in this tab's storage, which no other site or port can read
const marked = new Set(); // numbers of seats
const rows = new Map(); // of each seat by number: what is shown, and its row

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
    name.append(" ", element("span", { class: "hand" }, `hand up ${seat.hand_up} min: ${seat.hand_at}`), " ", helped);
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

function place(one) {
  return `Lab ${one.lab}, exercise ${one.exercise}${one.title ? ` (${one.title})` : ""}`;
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
  document.getElementById("remove").disabled = !marked.size;
  fill("code", state.code);
  fill("wall", state.wall_address);
  document.getElementById("wall").href = state.wall_address;
  fill(
    "stuck",
    ...(state.stuck.length
      ? state.stuck.map((one) => element("li", {}, `${place(one)}: ${one.seats} not yet, after ${one.hint} hint${one.hint === 1 ? "" : "s"} (median)`))
      : [element("li", { class: "quiet" }, "Nowhere.")]),
  );
  document.getElementById("room").hidden = false;
}

function hide() {
  document.getElementById("room").remove();
}

/** Have the board do something, and say whether it has. */
async function order(method, address) {
  let told = "the board does not answer";
  try {
    const answer = await fetch(address, { method, headers });
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
const headers = { Authorization: `Bearer ${encodeURIComponent(sessionStorage.getItem(KEY) ?? "")}` };

document.getElementById("remove").addEventListener("click", async () => {
  for (const number of [...marked]) await order("DELETE", `/api/seats/${number}`);
});
document.getElementById("change").addEventListener("click", () => order("POST", "/api/code"));
follow("/view/instructor", show, hide, headers);
