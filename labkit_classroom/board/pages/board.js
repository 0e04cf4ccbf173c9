// For all pages: elements from text, never from HTML, and a state that stays up to date.

/** Return an element with properties and children; texts become text nodes, so that nothing in them is markup. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Return what somebody has typed, in a box of its own: a name written from right to left turns nothing else round. */
export function typed(text) {
  return element("bdi", {}, text);
}

/** Put other children in place of an element's own. */
export function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

const POLL_MS = 2000; // between two questions
const ANSWER_MS = 5000; // for an answer to arrive

function ago(milliseconds) {
  const seconds = Math.floor(milliseconds / 1000);
  return seconds < 60 ? `${seconds} s ago` : `${Math.floor(seconds / 60)} min ago`;
}

/**
 * Ask for a page's state every two seconds and call `show` with it.
 *
 * The page says whether it is live and, if it is not, since when. If the board refuses it, the page says why, calls
 * `refused`, and does not ask again. `headers` are sent with each request.
 */
export async function follow(address, show, refused = () => {}, headers = {}) {
  const heard = document.getElementById("heard");
  const age = document.getElementById("age");
  for (let last = 0; ; ) {
    let [text, isLive] = ["Live", false];
    try {
      const answer = await fetch(address, { headers, signal: AbortSignal.timeout(ANSWER_MS) });
      const state = await answer.json();
      [text, isLive] = answer.ok ? ["Live", true] : [`Not live: ${state.error}.`, false];
      if (answer.ok) {
        last = Date.now();
        show(state);
      } else if (answer.status === 403) {
        heard.textContent = state.error;
        heard.className = "warn";
        refused();
        return;
      }
    } catch (error) {
      if (isLive) throw error; // from `show`
      text = "Not live: the board does not answer.";
    }
    if (heard.textContent !== text) heard.textContent = text; // a screen reader reads out what changes
    heard.className = isLive ? "quiet" : "warn";
    age.textContent = !isLive && last ? `Last heard ${ago(Date.now() - last)}.` : "";
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
