// Shared by all pages: elements built from text, never from HTML, and polling.

/** Return an element with attributes and children; strings become text nodes, never markup. */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

/** Return user input, isolated so that right-to-left text does not affect its surroundings. */
export function userText(text) {
  return element("bdi", {}, text);
}

/** Replace an element's children. */
export function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

const POLL_MS = 2000; // between requests
const TIMEOUT_MS = 5000; // for a response

function ago(milliseconds) {
  const seconds = Math.floor(milliseconds / 1000);
  return seconds < 60 ? `${seconds} s ago` : `${Math.floor(seconds / 60)} min ago`;
}

/**
 * Poll a page's state every two seconds and call `show` with it.
 *
 * The page shows whether it is live and, if not, since when. If the board refuses access, the page shows the reason,
 * calls `onRefused`, and stops polling. `headers` are sent with each request.
 */
export async function follow(address, show, onRefused = () => {}, headers = {}) {
  const status = document.getElementById("heard");
  const age = document.getElementById("age");
  for (let lastUpdate = 0; ; ) {
    let [text, isLive] = ["Live", false];
    try {
      const answer = await fetch(address, { headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
      const state = await answer.json();
      [text, isLive] = answer.ok ? ["Live", true] : [`Not live: ${state.error}.`, false];
      if (answer.ok) {
        lastUpdate = Date.now();
        show(state);
      } else if (answer.status === 403) {
        status.textContent = state.error;
        status.className = "warn";
        onRefused();
        return;
      }
    } catch (error) {
      if (isLive) throw error; // from `show`
      text = "Not live: the board does not answer.";
    }
    if (status.textContent !== text) status.textContent = text; // screen readers announce changes
    status.className = isLive ? "quiet" : "warn";
    age.textContent = !isLive && lastUpdate ? `Last update ${ago(Date.now() - lastUpdate)}.` : "";
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
