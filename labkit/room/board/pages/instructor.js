// The instructor's page: seats, raised hands first.
import { element, fill, follow, typed } from "/board.js";

// With the roles, since on a phone the rows are laid out as boxes, and browsers then take them for no table.
function cell(name, value) {
  return element("td", { role: "cell", "data-name": name }, value);
}

function row(seat) {
  const name = element("th", { role: "rowheader", scope: "row" }, typed(seat.seat));
  if (seat.hand) name.append(" ", element("span", { class: "hand" }, `hand up: ${seat.hand_at}`));
  return element(
    "tr",
    seat.hand ? { role: "row", class: "hand" } : { role: "row" },
    name,
    cell("at", seat.at),
    cell("verdict", seat.verdict),
    cell("hints", seat.hint || ""),
    cell("passed", seat.passed),
    cell("unchanged", `${seat.unchanged} min`),
    cell("last heard", seat.silent === null ? "" : `${seat.silent} min ago`),
  );
}

function machines(doctor) {
  if (!doctor.machines) return [element("li", { class: "quiet" }, "No machine has sent its doctor's verdict: ./lab join --check")];
  return doctor.labs.map((lab) => {
    const item = element("li", {}, typed(lab.lab), `: ${lab.can} of ${lab.can + lab.cannot.length} can run it.`);
    lab.cannot.forEach((one, index) =>
      item.append(index ? "; " : " Not: ", typed(one.seat), " (", typed(one.because.join(", ")), ")"),
    );
    return item;
  });
}

function show(state) {
  const wall = state.wall;
  const hands = state.seats.filter((seat) => seat.hand).length;
  const facts = [["now", wall.now], ["people", state.people], [hands === 1 ? "hand" : "hands", hands]];
  if (wall.planned) facts.push(["planned", wall.planned]);
  if (wall.drift !== null) facts.push([wall.drift < 0 ? "minutes ahead" : "minutes behind", Math.abs(wall.drift)]);
  document.title = hands ? `(${hands}) Instructor` : "Instructor";
  fill("facts", ...facts.map(([name, value]) => element("li", {}, element("b", {}, value), name)));
  fill("seats", ...state.seats.map(row));
  fill(
    "stuck",
    ...(state.stuck.length
      ? state.stuck.map((one) => element("li", {}, `${one.at}: ${one.seats} not yet, after ${one.hint} hint${one.hint === 1 ? "" : "s"} (median)`))
      : [element("li", { class: "quiet" }, "Nowhere.")]),
  );
  fill("doctor", ...machines(state.doctor));
  document.getElementById("room").hidden = false;
}

function hide() {
  document.getElementById("room").remove();
}

/** Have the board set the instructor's cookie; without an answer the page asks for its view all the same. */
async function introduce(token) {
  try {
    await fetch("/api/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(token),
    });
  } catch {
    // `follow` says that the board does not answer.
  }
}

// The token stands after #, which browsers never send; a cookie takes its place, and the address is cleared of it.
const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (token) await introduce(token);
follow("/view/instructor", show, hide);
