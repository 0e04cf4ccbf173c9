// The page for the projector: how to join, counts and results, no seats.
import { element, fill, follow } from "/board.js";
import { showPoster } from "/poster.js";
import { showResults } from "/results.js";

function fact(value, name) {
  return element("li", {}, element("b", {}, value), name);
}

function late(minutes) {
  if (minutes === null) return [];
  if (minutes === 0) return [fact("on time", "so far")];
  return [fact(`${Math.abs(minutes)} min`, minutes < 0 ? "ahead of schedule" : "behind schedule")];
}

function lab({ lab, title, exercises, passed }, people) {
  const bars = passed.map((count, index) => {
    const id = `lab${lab}-${index + 1}`;
    return element(
      "div",
      { class: "bar" },
      element("label", { for: id }, `${index + 1} · ${exercises[index]}`),
      element("progress", { id, max: people, value: count }),
      element("span", {}, `${count} of ${people}`),
    );
  });
  return element("section", {}, element("h2", {}, `${title}: passed`), ...bars);
}

/** Show the guesses for the current question and, once the board sends them, the results. */
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
  const count = guess.given ? `${guess.given} guesses. Not measured yet.` : "Guesses appear once five people have guessed.";
  fill("measured", guess.summary ? `Measured: ${guess.summary}.` : count);
}

follow("/view/wall", (state) => {
  const facts = [fact(state.now, "now")];
  if (state.people !== null) facts.push(fact(state.people, "people"), ...late(state.drift));
  if (state.planned) facts.push(fact(state.planned.title, state.planned.when));
  fill("facts", ...facts);
  showPoster(state.joining, state.people);
  showGuess(state.guess);
  fill("few", state.people === null ? `Counts appear once ${state.few} people have joined.` : "");
  document.getElementById("today").hidden = !state.today.length;
  fill("parts", ...state.today.map(({ begin, title }) => element("tr", {}, element("td", {}, begin), element("td", {}, title))));
  fill("labs", ...state.labs.map((entry) => lab(entry, state.people)).reverse()); // latest first
  showResults(state.results.filter((result) => result.values.length), state.held);
});
