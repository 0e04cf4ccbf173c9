// The instructor's page: seats, with raised hands first.
import { element, fill, follow, userText } from "/board.js";

const KEY = "instructor's token"; // in this tab's storage, which other sites and ports cannot read
const selected = new Set(); // seat numbers
const rows = new Map(); // by seat number: the data shown, and the table row
let [exercises, questions] = ["", ""]; // as offered in the drop-down lists

// With explicit roles: on a phone, rows are laid out as boxes, and browsers no longer treat them as a table.
function cell(name, value) {
  return element("td", { role: "cell", "data-name": name }, value);
}

/** Return a checkbox that selects a seat; the number comes from the board, so no name can imitate it. */
function checkbox(seat) {
  const box = element("input", { type: "checkbox", id: `seat-${seat.number}`, "aria-label": `select seat ${seat.number}` });
  box.checked = selected.has(seat.number);
  box.addEventListener("change", () => {
    if (box.checked) selected.add(seat.number);
    else selected.delete(seat.number);
    document.getElementById("remove").disabled = !selected.size;
  });
  return element("label", {}, box, ` ${seat.number}`);
}

function row(seat) {
  const name = element("th", { role: "rowheader", scope: "row" }, userText(seat.seat));
  if (seat.hand_at) {
    const helped = element("button", { id: `helped-${seat.number}`, "aria-label": `helped seat ${seat.number}` }, "helped");
    helped.addEventListener("click", () => order("DELETE", `/api/seats/${seat.number}/hand`));
    const place = seat.at.startsWith(`${seat.hand_at} `) ? "" : `: ${seat.hand_at}`;
    name.append(" ", element("span", { class: "hand" }, `hand up ${seat.hand_up} min${place}`), " ", helped);
  }
  if (seat.lacks) name.append(" ", element("span", { class: "warn" }, "cannot run ", userText(seat.lacks)));
  return element(
    "tr",
    seat.hand_at ? { role: "row", class: "hand" } : { role: "row" },
    cell("no.", checkbox(seat)),
    name,
    cell("at", seat.at || "nothing yet"),
    cell("verdict", seat.verdict),
    cell("hints", seat.hint || ""),
    cell("passed", seat.passed),
    cell("unchanged", seat.at ? `${seat.unchanged} min` : ""),
    cell("last seen", seat.silent === null ? "" : `${seat.silent} min ago`),
  );
}

/** Show all seats, or only those that have not passed the chosen exercise. */
function choose(seats) {
  const chosen = document.getElementById("exercise").value;
  const missing = seats.filter((seat) => !seat.done.includes(chosen));
  for (const seat of seats) rows.get(seat.number).element.hidden = chosen && !missing.includes(seat);
  fill("missing", chosen ? `${missing.length} of ${seats.length} have not passed it.` : "");
}

/** Return a button that shows the seats that have not passed an exercise. */
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

/** Update a drop-down list's options if they have changed; keep the choice. */
function offer(id, before, first, options) {
  const after = JSON.stringify(options);
  if (after === before) return before;
  const list = document.getElementById(id);
  const chosen = list.value;
  fill(id, element("option", { value: "" }, first), ...options.map(([value, text]) => element("option", { value }, text)));
  list.value = chosen;
  if (list.selectedIndex < 0) list.value = "";
  return after;
}

/** Show the seats in order; unchanged rows are not touched, so that clicks on them are not lost. */
function showSeats(seats) {
  const present = new Set(seats.map((seat) => seat.number));
  for (const number of selected) if (!present.has(number)) selected.delete(number);
  for (const [number, { element }] of rows)
    if (!present.has(number)) {
      element.remove();
      rows.delete(number);
    }
  const focused = document.activeElement?.id;
  const table = document.getElementById("seats");
  seats.forEach((seat, place) => {
    const text = JSON.stringify(seat);
    const before = rows.get(seat.number);
    const current = before?.text === text ? before.element : row(seat);
    if (current !== before?.element) {
      before?.element.replaceWith(current);
      rows.set(seat.number, { text, element: current });
    }
    if (table.children[place] !== current) table.insertBefore(current, table.children[place] ?? null);
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
  const options = state.questions.map(({ question, ...place }) => [JSON.stringify(place), `${place.lab} · ${question}`]);
  questions = offer("held", questions, "latest with five guesses", options);
  if (document.activeElement?.id !== "held") document.getElementById("held").value = state.held ? JSON.stringify(state.held) : "";
  document.getElementById("remove").disabled = !selected.size;
  fill("code", state.code);
  fill("wall", state.wall_address);
  document.getElementById("wall").href = state.wall_address;
  fill(
    "stuck",
    ...(state.stuck.length
      ? state.stuck.map(({ at, seats, hint }) => element("li", {}, chooser(at), element("br"), `${seats} not passed, after ${hint} hint${hint === 1 ? "" : "s"} (median)`))
      : [element("li", { class: "quiet" }, "Nowhere.")]),
  );
  document.getElementById("room").hidden = false;
}

function hide() {
  document.getElementById("room").remove();
}

/** Send an order to the board, and show whether it was carried out. */
async function order(method, address, message) {
  let error = "the board does not answer";
  try {
    const body = message === undefined ? {} : { body: JSON.stringify(message) };
    const answer = await fetch(address, { method, headers, ...body });
    error = answer.ok ? "" : (await answer.json()).error;
  } catch {
    // no answer
  }
  fill("done", error ? `Failed: ${error}.` : "Done.");
}

// The token comes after #, which browsers never send. It goes into a header rather than a cookie, which browsers would
// also send to other ports of this host; it is then removed from the address.
const linkToken = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (linkToken) sessionStorage.setItem(KEY, linkToken);
const token = encodeURIComponent(sessionStorage.getItem(KEY) ?? "");
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };

document.getElementById("select").addEventListener("click", () => {
  for (const box of document.querySelectorAll("#seats tr:not([hidden]) input:not(:checked)")) box.click();
});
document.getElementById("remove").addEventListener("click", async () => {
  for (const number of [...selected]) await order("DELETE", `/api/seats/${number}`);
});
document.getElementById("change").addEventListener("click", () => order("POST", "/api/code"));
document.getElementById("held").addEventListener("change", ({ target }) => {
  target.blur(); // so that it follows the board's state again
  order("PUT", "/api/held", target.value ? JSON.parse(target.value) : null);
});
follow("/view/instructor", show, hide, headers);
