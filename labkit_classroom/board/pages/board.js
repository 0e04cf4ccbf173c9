// What both pages need: elements from text, never from HTML, and a view that stays up to date.

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

const TICK_MS = 1000;
const POLL_MS = 3000; // between two questions while there is no stream
const QUIET_MS = 20000; // a stream that is silent for so long may be dead: the state holds the time, and changes with it
const ANSWER_MS = 5000; // for an answer to come
const REOPEN_MS = 10000; // between two tries to open a stream

function ago(milliseconds) {
  const seconds = Math.floor(milliseconds / 1000);
  return seconds < 60 ? `${seconds} s ago` : `${Math.floor(seconds / 60)} min ago`;
}

/** Call `received` with each state of a stream of server-sent events, until it ends; EventSource can send no token. */
async function read(answer, received) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) received(JSON.parse(event.slice(6)));
  }
}

/**
 * Call `show` with each new state: by server-sent events and, while those fail, by asking again and again.
 *
 * The page says all the time whether it is live and, when it is not, since when. When the board refuses it the page
 * says why, and `refused` is called: it does not ask again. `headers` go with each question.
 */
export function follow(address, show, refused = () => {}, headers = {}) {
  const heard = document.getElementById("heard");
  const age = document.getElementById("age");
  let source = null; // what ends the stream that is open, or being opened
  let streaming = false; // whether it has brought something
  let [trouble, refusal] = ["", ""]; // why the page is not live, and why it never will be
  let [last, asked, opened] = [0, 0, 0]; // when something was heard, asked for, and a stream opened
  let asking = false;

  const tell = () => {
    const text = refusal || (trouble ? `Not live: ${trouble}.` : last ? "Live" : "");
    if (heard.textContent !== text) heard.textContent = text; // a screen reader reads out what changes
    heard.className = trouble || refusal ? "warn" : "quiet";
    age.textContent = trouble && last ? `Last heard ${ago(Date.now() - last)}.` : "";
  };

  const received = (state) => {
    [last, trouble] = [Date.now(), ""];
    show(state);
    tell();
  };

  const close = () => {
    source?.abort();
    [source, streaming] = [null, false];
  };

  const ask = async () => {
    [asking, asked] = [true, Date.now()];
    try {
      const answer = await fetch(address, { headers, signal: AbortSignal.timeout(ANSWER_MS) });
      const state = await answer.json();
      if (answer.ok) received(state);
      else if (answer.status === 403) {
        refusal = state.error;
        clearInterval(ticking);
        close();
        refused();
      } else trouble = state.error;
    } catch {
      trouble = "the board does not answer";
      close();
    }
    asking = false;
    tell();
  };

  const open = async () => {
    close();
    opened = Date.now();
    const own = new AbortController();
    source = own;
    try {
      const answer = await fetch(address, { headers: { ...headers, Accept: "text/event-stream" }, signal: own.signal });
      if (answer.ok)
        await read(answer, (state) => {
          streaming = true;
          received(state);
        });
    } catch {
      // it has failed, or was closed
    }
    if (source !== own) return; // another one is open
    close();
    if (!asking) ask();
  };

  const tick = () => {
    const now = Date.now();
    if (!asking && now - Math.max(last, asked) >= (streaming ? QUIET_MS : POLL_MS)) ask();
    if (!streaming && !trouble && now - opened >= REOPEN_MS) open();
    tell();
  };

  const ticking = setInterval(tick, TICK_MS);
  ask().then(() => refusal || tick());
}
