// Asks the router every two seconds how it is doing. A key is kept in memory alone.

import { $ } from "./elements.js";
import { show } from "./view.js";
import { clock } from "./words.js";

const EVERY = 2000;
const PATIENCE = 5000;

let key = "";
let paused = false;
let waiting = null;
let asking = false;
let seen = null;

class Refused extends Error {
  constructor(status, said) {
    super(said);
    this.status = status;
  }
}

async function ask(path) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Refused(response.status, said.error?.message ?? "");
}

async function poll() {
  clearTimeout(waiting);
  if (asking || paused || document.hidden) return;
  asking = true;
  try {
    const metrics = ask("metrics").then((response) => response.text()).catch(() => "");
    const status = await (await ask("status")).json();
    show(status, await metrics);
    seen = Date.now() / 1000;
    tell("");
    $("key-form").hidden = true;
    $("numbers").hidden = false;
  } catch (error) {
    failed(error);
  }
  asking = false;
  $("numbers").classList.toggle("old", !$("notice").hidden);
  if ($("key-form").hidden) waiting = setTimeout(poll, EVERY);
}

function failed(error) {
  if (error.status === 401) {
    tell(key ? "The router does not know this key." : "The router asks for an API key.");
    $("key-form").hidden = false;
    $("key").focus();
    return;
  }
  const old = seen === null ? "" : ` The numbers below are from ${clock(seen)}.`;
  const again = ` It is asked again every ${EVERY / 1000} seconds.`;
  if (error.status) tell(`The router answers with an error: ${error.message || error.status}.${old}${again}`);
  else if (error instanceof SyntaxError) tell(`What answers here is no router.${old}${again}`);
  else tell(`The router does not answer. Is it still running?${old}${again}`);
}

// An alert is read aloud each time it changes, so it is left alone where it says the same.
function tell(words) {
  if ($("notice").textContent !== words) $("notice").textContent = words;
  $("notice").hidden = words === "";
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  $("key").value = "";
  poll();
});

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Continue" : "Pause";
  if (!paused) poll();
});

document.addEventListener("visibilitychange", poll);
poll();
