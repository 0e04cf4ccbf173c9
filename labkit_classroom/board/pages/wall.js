// The projector's page: how to join, and counts only.
import { element, fill, follow } from "/board.js";
import { showPoster } from "/poster.js";
import { showResults } from "/results.js";

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
      element("label", { for: id }, `${index + 1} · ${one.exercises[index]}`),
      element("progress", { id, max: people, value: count }),
      element("span", {}, `${count} of ${people}`),
    );
  });
  return element("section", {}, element("h2", {}, `${one.title}: passed`), ...bars);
}

/** Show the guesses for the room's current question and, once the board sends them, the results. */
function showGuess(guess) {
  document.getElementById("guess").hidden = !guess;
  if (!guess) return;
  fill("question", `Lab ${guess.lab}, your guess: ${guess.question}`);
  const most = Math.max(...guess.bars.map((bar) => bar.count), 1);
  fill("guesses", ...guess.bars.map((bar, index) => {
    const id = `guess-${index}`;
    return element(
      "div",
      { class: bar.measured ? "bar measured" : "bar" },
      element("label", { for: id }, bar.label),
      element("progress", { id, max: most, value: bar.count }),
      element("span", {}, bar.measured ? `${bar.count} ◀ measured` : bar.count),
    );
  }));
  const given = guess.given ? `${guess.given} guesses. Not measured yet.` : "Guesses are shown once five people have guessed.";
  fill("measured", guess.summary ? `Measured: ${guess.summary}.` : given);
}

follow("/view/wall", (state) => {
  const facts = [fact(state.now, "now")];
  if (state.people !== null) facts.push(fact(state.people, "people"), ...late(state.drift));
  if (state.planned) facts.push(fact(state.planned.title, state.planned.when));
  fill("facts", ...facts);
  showPoster(state.joining, state.people);
  showGuess(state.guess);
  fill("few", state.people === null ? `Counts are shown once ${state.few} people are in.` : "");
  document.getElementById("today").hidden = !state.today.length;
  fill("parts", ...state.today.map(({ begin, title }) => element("tr", {}, element("td", {}, begin), element("td", {}, title))));
  fill("labs", ...state.labs.map((one) => lab(one, state.people)).reverse()); // the latest is at the top
  showResults(state.results.filter((result) => result.groups.length), state.held);
});
