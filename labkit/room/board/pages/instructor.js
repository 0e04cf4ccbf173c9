// The instructor's page: seats, raised hands first.
import { element, fill, follow } from "/board.js";

function cell(name, value) {
  return element("td", { "data-name": name }, value);
}

function row(seat) {
  const at = seat.hand ? seat.hand_at : seat.at;
  return element(
    "tr",
    seat.hand ? { class: "hand" } : {},
    element("th", { scope: "row" }, seat.seat),
    cell("at", at),
    cell("verdict", seat.verdict),
    cell("hint", seat.hint || ""),
    cell("passed", seat.passed),
    cell("unchanged", `${seat.unchanged} min`),
    cell("heard", seat.silent === null ? "now" : `${seat.silent} min ago`),
  );
}

function machines(doctor) {
  if (!doctor.machines) return [element("li", { class: "quiet" }, "No machine has sent its doctor's verdict: ./lab join --check")];
  return doctor.labs.map((lab) => {
    const cannot = lab.cannot.map((one) => `${one.seat} (${one.because.join(", ")})`).join("; ");
    return element("li", {}, `${lab.lab}: ${lab.can} of ${lab.can + lab.cannot.length} can run it. ${cannot && `Not: ${cannot}.`}`);
  });
}

function show(state) {
  const wall = state.wall;
  const hands = state.seats.filter((seat) => seat.hand).length;
  const facts = [["now", wall.now], ["people", state.people], ["hands", hands]];
  if (wall.planned) facts.push(["planned", wall.planned]);
  if (wall.drift !== null) facts.push([wall.drift < 0 ? "minutes ahead" : "minutes behind", Math.abs(wall.drift)]);
  fill("facts", ...facts.map(([name, value]) => element("li", {}, element("b", {}, value), name)));
  fill("seats", ...state.seats.map(row));
  fill(
    "stuck",
    ...(state.stuck.length
      ? state.stuck.map((one) => element("li", {}, `${one.at}: ${one.seats} not yet, half of them have seen ${one.hint} hint${one.hint === 1 ? "" : "s"} or more`))
      : [element("li", { class: "quiet" }, "Nowhere.")]),
  );
  fill("doctor", ...machines(state.doctor));
}

// The token stands after #, which browsers never send; a cookie takes its place, and the address is cleared of it.
const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (token)
  await fetch("/api/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(token),
  });
const allowed = await fetch("/view/instructor");
if (allowed.ok) follow("/view/instructor", show);
else fill("refused", (await allowed.json()).error);
