// How to join: the command, the code large, and the page's own address as a QR code.
import { element, fill } from "/board.js";

const SPACE = "http://www.w3.org/2000/svg";

let shown = ""; // the code in this page's address and how many the room has had, of what is shown
let last = null; // how to join and how many are in, as the board has said it last

function show(code, told, ...picture) {
  document.getElementById("code-line").hidden = !code;
  fill("code", code);
  fill("told", told);
  fill("qr", ...picture);
}

function draw({ size, path }) {
  const picture = document.createElementNS(SPACE, "svg");
  const parts = { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "QR code of this page's address" };
  for (const [name, value] of Object.entries(parts)) picture.setAttribute(name, value);
  const dark = document.createElementNS(SPACE, "path");
  dark.setAttribute("d", path);
  picture.append(dark);
  return picture;
}

/** Ask for the picture by the code; everybody in the network may see this page, so nothing else tells the code. */
async function ask(code) {
  try {
    const answer = await fetch("/api/poster", { headers: { Authorization: `Bearer ${encodeURIComponent(code)}` } });
    const told = await answer.json();
    if (answer.ok) show(told.code, "", draw(told));
    else show("", `${told.error.slice(0, 1).toUpperCase()}${told.error.slice(1)}.`);
    return answer.ok || answer.status === 403;
  } catch {
    return false;
  }
}

/** Show how to join: large until everybody is in. The code stands behind # in this page's address. */
export function showPoster(joining, people) {
  last = [joining, people];
  const code = location.hash.slice(1);
  const poster = document.getElementById("poster");
  poster.hidden = false;
  poster.className = joining.are_all_in ? "small" : "";
  const known = document.getElementById("code").textContent || element("i", {}, "CODE");
  fill("command", joining.command, ...(joining.takes_code ? [" ", known] : []));
  fill("awaited", joining.awaited && people !== null && !joining.are_all_in ? `${people} of ${joining.awaited} are in.` : "");
  const now = `${code} ${joining.codes}`;
  if (now === shown) return;
  shown = now;
  if (!code) show("", joining.takes_code ? "The instructor has the code." : "");
  else ask(code).then((isDone) => {
    if (!isDone) shown = ""; // again, with the next state
    else showPoster(...last);
  });
}

addEventListener("hashchange", () => last && showPoster(...last)); // another code in the same page's address
