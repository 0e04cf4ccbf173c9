// What both pages need: elements from text, never from HTML, and a view that stays up to date.

/** Return an element with properties and children; texts become text nodes, so that nothing in them is markup. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Put other children in place of an element's own. */
export function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

const POLL_MS = 3000;
const LATE_MS = 45000; // the stream says "still here" every 15 s

/** Call `show` with each new state: by server-sent events and, where those fail, by asking again and again. */
export function follow(address, show) {
  const heard = document.getElementById("heard");
  let last = Date.now();
  let polling = null;

  const received = (state) => {
    last = Date.now();
    heard.textContent = "";
    heard.className = "quiet";
    show(state);
  };

  const poll = async () => {
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" } });
      if (answer.ok) received(await answer.json());
    } catch {
      // The network is down: the line below says since when.
    }
  };

  const stream = () => {
    const source = new EventSource(address);
    source.onmessage = (event) => {
      clearInterval(polling);
      polling = null;
      received(JSON.parse(event.data));
    };
    source.onerror = () => {
      polling ??= setInterval(poll, POLL_MS);
      if (source.readyState === EventSource.CLOSED) setTimeout(stream, 10 * POLL_MS);
    };
  };

  setInterval(() => {
    const minutes = Math.floor((Date.now() - last) / 60000);
    if (Date.now() - last > LATE_MS && polling) {
      heard.textContent = minutes ? `Last heard ${minutes} min ago: the network or the board is down.` : "The board does not answer.";
      heard.className = "warn";
    }
  }, 1000);
  poll();
  stream();
}
