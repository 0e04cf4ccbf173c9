// The projector's page: counts only.
import { element, fill, follow } from "/board.js";
import { showFigures } from "/figures.js";

function fact(value, name) {
  return element("li", {}, element("b", {}, value), name);
}

function late(minutes) {
  if (minutes === null) return [];
  if (minutes === 0) return [fact("on time", "by the plan")];
  return [fact(`${Math.abs(minutes)} min`, minutes < 0 ? "ahead of the plan" : "behind the plan")];
}

function lab(one, people) {
  const bars = one.passed.map((count, index) => {
    const id = `lab${one.lab}-${index + 1}`;
    return element(
      "div",
      { class: "bar" },
      element("label", { for: id }, `exercise ${index + 1}`),
      element("progress", { id, max: people, value: count }),
      element("span", {}, `${count} of ${people}`),
    );
  });
  return element("section", {}, element("h2", {}, `${one.title}: passed`), ...bars);
}

follow("/view/wall", (state) => {
  const facts = [fact(state.now, "now")];
  if (state.planned) facts.push(fact(state.planned, "planned"));
  if (state.people !== null) facts.push(fact(state.people, "people"), ...late(state.drift));
  fill("facts", ...facts);
  fill("few", state.people === null ? `Counts are shown from ${state.few} people on.` : "");
  fill("labs", ...state.labs.map((one) => lab(one, state.people)).reverse()); // where the room is stands at the top
  if (state.figures) showFigures(state.figures); // a stream brings them when they have changed
});
