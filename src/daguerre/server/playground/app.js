// The page: runs requests, and connects the form, the drafts, the replay and the candidates.

import { Chat } from "./chat.js";
import * as client from "./client.js";
import { showComparison } from "./compare.js";
import { Concepts } from "./concepts.js";
import { button, element } from "./elements.js";
import { Form } from "./form.js";
import { Inspector } from "./inspect.js";
import { messageOf, textOf } from "./instructed.js";
import { Pane } from "./panes.js";
import { Player } from "./player.js";
import { Recording } from "./recording.js";
import { FormError, bodyOf, characters, conceptOptions, fresh } from "./request.js";
import { nameOf } from "./settings.js";
import { decoded, link } from "./share.js";
import { LANGUAGES } from "./snippets.js";
import { Steer } from "./steer.js";

const camel = (id) => id.replace(/[-_](\w)/g, (_, letter) => letter.toUpperCase());
const page = Object.fromEntries([...document.querySelectorAll("[id]")].map((one) => [camel(one.id), one]));
const still = matchMedia("(prefers-reduced-motion: reduce)");
const narrow = matchMedia("(max-width: 900px)"); // the draft is below the form

let panes = [];
let language = Object.keys(LANGUAGES)[0];
let abort = null;
let selection = null; // of a pane: {pane, gap, start, end}
let redraws = 0;

const form = new Form(page.form, page, (state) => {
  showCode();
  steer.show(state);
  page.chatModel.value = state.model;
  chat.setModel(form.facts);
  wake();
});
const chat = new Chat(page);
const steer = new Steer(page, form);
const inspector = new Inspector(page, useCandidate);
const player = new Player(page, (seconds) => {
  for (const pane of panes) pane.show(seconds);
  if (page.tableCard.open) showTable();
});
const concepts = new Concepts(page, {
  onPaint: () => player.show(),
  onCandidates: (pane, gap, position) => inspector.show(pane.recording, pane.num, gap, position),
  catalog: (model) => steer.catalog(model),
});

// Running

async function runAll(bodies, names) {
  abort?.abort();
  const mine = (abort = new AbortController());
  const recordings = bodies.map((body, index) => new Recording(body, names[index]));
  begin(recordings);
  try {
    for (const [index, recording] of recordings.entries()) {
      say(recordings.length > 1 ? `Running setting ${"AB"[index]}…` : "Running…");
      await client.run(recording.body, (name, data) => noted(recording, name, data), mine.signal);
      recording.running = false;
      player.update();
    }
    finished(recordings);
  } catch (error) {
    for (const recording of recordings) recording.running = false;
    if (abort === mine) player.update();
    if (error.name === "AbortError") say("Stopped.");
    else fail(error);
  } finally {
    if (abort === mine) {
      abort = null;
      busy(false);
    }
  }
}

function begin(recordings) {
  page.error.hidden = true;
  page.comparison.hidden = true;
  inspector.close();
  concepts.clear();
  for (const pane of panes) pane.remove();
  panes = recordings.map(() => new Pane(page.panes, page.pane, { onPick: pick, onSelect: select }));
  panes.forEach((pane, index) => pane.begin(recordings[index], structuredClone(form.state), titleOf(recordings, index)));
  page.panes.classList.toggle("two", recordings.length > 1);
  busy(true);
  player.start(recordings);
  if (narrow.matches) page.draftHeading.scrollIntoView({ behavior: still.matches ? "auto" : "smooth" });
}

function titleOf(recordings, index) {
  return recordings.length > 1 ? `${"AB"[index]}: ${recordings[index].name}` : "";
}

function noted(recording, name, data) {
  recording.add(name, data);
  player.update();
}

// The text takes the place of the one that was edited; what it was is kept by the browser's undo.
async function carryOut(state) {
  abort?.abort();
  const mine = (abort = new AbortController());
  page.error.hidden = true;
  busy(true);
  say("Carrying out the instruction…");
  try {
    const model = state.model ? { model: state.model } : {};
    const body = { ...model, messages: [{ role: "user", content: messageOf(state) }], instruction: state.instruction };
    const text = textOf(state, await client.instruct(body, mine.signal));
    const same = text === state.text;
    page.text.focus();
    page.text.select();
    if (!same && !document.execCommand("insertText", false, text)) page.text.value = text;
    form.set({ text, spans: [] });
    say(same ? "Nothing to change." : "Done: the text is edited.");
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else fail(error);
  } finally {
    if (abort === mine) {
      abort = null;
      busy(false);
    }
  }
}

function finished(recordings) {
  if (still.matches) player.finish();
  page.trace.disabled = false;
  showComparison(page, recordings);
  concepts.begin(panes);
  const [one] = recordings;
  const { usage, seconds, finish_reason: reason } = one.result;
  const end = { stop: "", length: " The budget is used up.", timeout: " Time was up." }[reason];
  say(recordings.length > 1 ? "Done: both settings." :
    `Done: ${usage.completion_tokens} tokens in ${usage.forwards} forwards, ${seconds.toFixed(2)} s.${end}`);
}

function busy(now) {
  page.stop.disabled = !now;
  page.panes.setAttribute("aria-busy", String(now));
}

function say(words) {
  page.status.textContent = words;
}

function fail(error) {
  const known = error instanceof FormError || error instanceof client.ServerError;
  page.error.textContent = known ? error.message : `Something went wrong in this page: ${error.message}`;
  page.error.hidden = false;
  say("");
  if (panes.some((pane) => !pane.recording?.head)) player.pause();
}

page.form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (page.run.disabled) return;
  const letters = form.state.compare ? ["a", "b"] : ["a"];
  redraws = 0;
  if (form.state.kind === "edit" && form.state.instruction.trim()) {
    carryOut(form.state);
    return;
  }
  try {
    runAll(letters.map((letter) => bodyOf(form.state, letter)), letters.map((letter) => nameOf(form.state[letter])));
  } catch (error) {
    fail(error);
  }
});
page.stop.addEventListener("click", () => abort?.abort());

// Tokens: candidates, pins, and drawing again

function pick(pane, gap, position) {
  player.pause();
  if (concepts.explains(pane, gap, position)) concepts.token(pane, gap, position);
  else inspector.show(pane.recording, pane.num, gap, position);
}

function select(pane, selected) {
  if (!selected && selection && selection.pane !== pane) return;
  selection = selected ? { pane, ...selected } : null;
  page.selection.hidden = !selected;
  if (selected) {
    player.pause();
    const num = selected.end - selected.start;
    page.selectionText.textContent = `${num} ${num === 1 ? "token" : "tokens"} selected`;
  }
}

// The pin of a position of the draft; those of a request do not count what healing drew again.
async function pinAt(recording, gap, position, text) {
  if (recording.running && recording.head.changeable) {
    await changed(recording, { pin: { at: position, text } });
    return;
  }
  form.pin({ text, at: position - recording.healed(gap), ...(gap ? { gap } : {}) });
  say(`“${text.trim()}” is pinned for the next run.`);
  page.form.requestSubmit();
}

async function changed(recording, body) {
  try {
    await client.change(recording.head.id, body);
    say("Changed.");
    player.play();
  } catch (error) {
    fail(error);
  }
}

function useCandidate({ recording, gap, position }, text) {
  inspector.close();
  pinAt(recording, gap, position, text);
}

function chosenTokens() {
  const { pane, gap, start, end } = selection;
  return pane.recording.board(pane.num)[gap].filter((token) => token.position >= start && token.position < end);
}

page.pinSelection.addEventListener("click", () => {
  const { pane, gap, start } = selection;
  const text = chosenTokens().map((token) => token.text).join("");
  pane.view.select(null);
  if (text) pinAt(pane.recording, gap, start, text);
});

page.clearSelection.addEventListener("click", () => {
  document.getSelection().removeAllRanges();
  selection?.pane.view.select(null);
});

page.redraw.addEventListener("click", () => {
  const { pane, gap, start, end } = selection;
  const { recording } = pane;
  if (recording.running && recording.head.changeable) {
    changed(recording, { remask: [start, end] });
  } else if (recording.result) {
    runAll([again(pane, gap)], ["redrawn"]);
  } else {
    fail(new FormError("Wait until the run is done, or allow changes while it runs."));
  }
  pane.view.select(null);
});

// An edit of the whole text that draws the selected tokens again; with other random numbers each time.
function again(pane, gap) {
  const { recording } = pane;
  const board = recording.board(recording.steps.length);
  const chosen = chosenTokens();
  const parts = board.map((tokens, index) => [recording.around[index], tokens.map((token) => token.text).join("")]);
  const before = parts.slice(0, gap).flat().join("") + parts[gap][0];
  const inside = board[gap].filter((token) => token.position < chosen[0].position).map((token) => token.text).join("");
  const start = before.length + inside.length;
  const text = parts.flat().join("") + (recording.around[board.length] ?? "");
  const end = start + chosen.map((token) => token.text).join("").length;
  redraws += 1;
  const { a } = form.state;
  const options = { mode: "block", temperature: Number(a.temperature ?? 0) || 0.8, seed: Number(a.seed ?? 0) + redraws, ...conceptOptions(form.state) };
  const model = form.state.model ? { model: form.state.model } : {};
  return { kind: "edit", ...model, text, spans: [[characters(text, start), characters(text, end)]], options };
}

// Code, table, trace, link

function showCode() {
  page.languages.replaceChildren(...Object.keys(LANGUAGES).map((name) => {
    const made = button("", name, () => {
      language = name;
      showCode();
      [...page.languages.children].find((one) => one.textContent === name).focus();
    });
    made.setAttribute("aria-pressed", String(name === language));
    return made;
  }));
  try {
    page.code.textContent = LANGUAGES[language](bodyOf(form.state, "a"));
  } catch (error) {
    page.code.textContent = error instanceof FormError ? error.message : String(error);
  }
}

function showTable() {
  page.tokenTable.querySelector("tbody").replaceChildren(...(panes[0]?.rows() ?? []));
}
page.tableCard.addEventListener("toggle", showTable);

async function copy(text, words) {
  try {
    await navigator.clipboard.writeText(text);
    say(words);
  } catch {
    say("The browser does not let this page copy: select the text and copy it yourself.");
  }
}
page.copyCode.addEventListener("click", () => copy(page.code.textContent, "The code is copied."));
page.share.addEventListener("click", () => {
  const address = link(form.state);
  history.replaceState(null, "", address);
  copy(address, "The link is copied.");
});
page.trace.addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([JSON.stringify(panes[0].recording.result.trace)], { type: "application/json" }));
  Object.assign(element("a"), { href: url, download: "trace.json" }).click();
  URL.revokeObjectURL(url);
});

// Views

function view(name) {
  page.requestView.hidden = name !== "request";
  page.chatView.hidden = name !== "chat";
  page.exampleLabel.hidden = page.share.hidden = name !== "request";
  page.viewRequest.setAttribute("aria-pressed", String(name === "request"));
  page.viewChat.setAttribute("aria-pressed", String(name === "chat"));
}
page.viewRequest.addEventListener("click", () => view("request"));
page.viewChat.addEventListener("click", () => {
  view("chat");
  page.chatText.focus();
});
page.chatModel.addEventListener("change", () => form.set({ model: page.chatModel.value }));

// Keys

document.addEventListener("keydown", (event) => {
  if (!page.chatView.hidden) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    page.form.requestSubmit();
  } else if (event.key === "Escape" && !page.candidates.hidden) {
    inspector.close();
  } else if (event.key === " " && !event.target.closest("input, select, textarea, button, summary, [role=button], [role=region]")) {
    event.preventDefault();
    player.toggle();
  }
});

// Beginning

async function begun() {
  page.key.addEventListener("change", () => {
    client.setKey(page.key.value);
    listModels();
  });
  addEventListener("hashchange", () => {
    const state = decoded(location.hash);
    if (state) form.load(state);
  });
  const given = decoded(location.hash);
  form.load(given ?? fresh());
  await listModels();
  await waking;
  if (!given && form.facts?.daguerre?.chat_template) view("chat");
}

async function listModels() {
  try {
    const facts = await client.models();
    const names = facts.map((one) => one.id);
    steer.setModels(facts);
    form.setModels(facts);
    for (const select of [page.model, page.chatModel]) select.replaceChildren(...names.map((name) => new Option(name, name)));
    const wanted = names.includes(form.state.model) ? form.state.model : names[0];
    page.error.hidden = true;
    form.set({ model: wanted });
  } catch (error) {
    fail(error);
  }
}

// What a model can do is known once the server has loaded it: until then nothing is asked of it.
let waking = null;
function wake() {
  const name = form.facts && !form.facts.daguerre ? form.facts.id : null;
  page.run.disabled = page.chatSend.disabled = name !== null;
  if (name !== null) waking ??= loaded(name);
}

async function loaded(name) {
  for (const part of [{ say }, chat]) part.say(`Loading ${name}…`);
  try {
    await client.load(name);
    await listModels();
    for (const part of [{ say }, chat]) part.say("");
  } catch (error) {
    fail(error);
    chat.fail(error);
    page.run.disabled = page.chatSend.disabled = false; // which tries again
    return;
  } finally {
    waking = null;
  }
  wake(); // another one may have been chosen meanwhile
}

begun();
