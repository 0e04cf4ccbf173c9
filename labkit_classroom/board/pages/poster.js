// How to join: the command, the code in large type, and this page's address as a QR code.
import { element, fill } from "/board.js";

let shown = ""; // the code in this page's address and the number of codes so far, as currently shown

function show(code, message, ...picture) {
  fill("code", code || "CODE");
  fill("told", message);
  fill("qr", ...picture);
}

/** Request the QR code with the code from this page's address; pages without it do not get the code. */
async function ask(code) {
  try {
    const answer = await fetch("/api/code", { headers: { Authorization: `Bearer ${encodeURIComponent(code)}` } });
    const { error, ...content } = await answer.json();
    if (answer.ok) show(content.code, "", element("img", { src: content.picture, alt: "QR code of this page's address" }));
    else show("", `${error.slice(0, 1).toUpperCase()}${error.slice(1)}.`);
    return answer.ok || answer.status === 403;
  } catch {
    return false;
  }
}

/** Show how to join, in large type until everyone has joined. The code is after # in this page's address. */
export async function showPoster(joining, people) {
  const code = location.hash.slice(1);
  const current = `${code} ${joining.codes}`;
  if (current !== shown) {
    if (!code) show("", "Ask your instructor for the code.");
    if (!code || (await ask(code))) shown = current; // otherwise, try again with the next state
  }
  const poster = document.getElementById("poster");
  poster.hidden = false;
  poster.className = joining.are_all_in ? "small" : "";
  fill("command", joining.command);
  fill("expected", joining.expected && people !== null && !joining.are_all_in ? `${people} of ${joining.expected} have joined.` : "");
}
