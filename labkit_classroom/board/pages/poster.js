// How to join: the command, the code large, and the page's own address as a QR code.
import { element, fill } from "/board.js";

let shown = ""; // the code in this page's address, and how many codes the room has had, of what is shown

function show(code, told, ...picture) {
  fill("code", code || "CODE");
  fill("told", told);
  fill("qr", ...picture);
}

/** Ask for the picture with the code from this page's address; other pages in the network do not get the code. */
async function ask(code) {
  try {
    const answer = await fetch("/api/code", { headers: { Authorization: `Bearer ${encodeURIComponent(code)}` } });
    const { error, ...told } = await answer.json();
    if (answer.ok) show(told.code, "", element("img", { src: told.picture, alt: "QR code of this page's address" }));
    else show("", `${error.slice(0, 1).toUpperCase()}${error.slice(1)}.`);
    return answer.ok || answer.status === 403;
  } catch {
    return false;
  }
}

/** Show how to join: large until everybody is in. The code is after # in this page's address. */
export async function showPoster(joining, people) {
  const code = location.hash.slice(1);
  const now = `${code} ${joining.codes}`;
  if (now !== shown) {
    if (!code) show("", "The instructor has the code.");
    if (!code || (await ask(code))) shown = now; // otherwise again with the next state
  }
  const poster = document.getElementById("poster");
  poster.hidden = false;
  poster.className = joining.are_all_in ? "small" : "";
  fill("command", joining.command);
  fill("expected", joining.expected && people !== null && !joining.are_all_in ? `${people} of ${joining.expected} are in.` : "");
}
