// Talks to the server: plain fetch, and server-sent events read from its body (EventSource cannot POST or send a key).

export class ServerError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const ADVICE = {
  0: "The server cannot be reached. Is it still running?",
  401: "The server asks for an API key: open Connection and enter one.",
  404: "The server no longer has this. Run again.",
  429: "The server is busy. Wait a moment and run again.",
  503: "The server is stopping or restarting. Try again soon.",
};

let key = "";
export function setKey(value) {
  key = value.trim();
}

function headers(body) {
  return { ...(body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, { method, headers: headers(body), body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(ADVICE[0], 0);
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw errorOf(said, response.status);
}

function errorOf(said, status) {
  const error = said.error ?? {};
  const words = error.message ? `${sentence(error.message)}.` : "";
  const advice = ADVICE[status];
  return new ServerError(advice && status !== 404 ? advice : words || `The server answered ${status}.`, status, error.param);
}

// With a capital, unless it begins with the name of an option.
function sentence(words) {
  return /^[a-z]+ /.test(words) ? words[0].toUpperCase() + words.slice(1) : words;
}

export async function models() {
  return (await (await ask("GET", "v1/models")).json()).data;
}

// Have a model loaded that is listed by its name alone.
export async function load(model) {
  await ask("POST", "tokenize", { model, content: "" });
}

// The named concepts of a model.
export async function concepts(model) {
  return (await ask("GET", `v1/daguerre/concepts?model=${encodeURIComponent(model)}`)).json();
}

// What a message becomes by an instruction: the answer's text.
export async function instruct(body, signal) {
  return (await (await ask("POST", "v1/edit/completions", body, signal)).json()).choices[0].message.content;
}

export async function candidates(body, signal) {
  return (await ask("POST", "v1/daguerre/candidates", body, signal)).json();
}

export async function change(id, body) {
  return (await ask("POST", `v1/daguerre/requests/${id}/change`, body)).json();
}

// Begin a request; handle(name, data) gets each event. Resolves at the end, throws what the server says instead.
export async function run(body, handle, signal) {
  const response = await ask("POST", "v1/daguerre/requests", { ...body, drafts: "changes" }, signal);
  let ended = false;
  for await (const [name, data] of events(response.body)) {
    if (name === "error") throw errorOf(data, 400);
    handle(name, data);
    ended ||= name === "end";
  }
  if (!ended) throw new ServerError("The connection broke before the text was done. Run again.", 0);
}

// Ask for an answer of a conversation; handle(chunk) gets each chunk of its stream.
export async function chat(body, handle, signal) {
  const response = await ask("POST", "v1/chat/completions", body, signal);
  let ended = false;
  for await (const [, chunk] of events(response.body)) {
    if (chunk?.error) throw errorOf(chunk, 400);
    if (chunk) handle(chunk);
    ended ||= chunk === null;
  }
  if (!ended) throw new ServerError("The connection broke before the answer was done. Ask again.", 0);
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (!part.startsWith(":")) yield parsed(part);  // a comment, that it is still there
  }
}

function parsed(part) {
  let name = "message";
  let data = "";
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return [name, data === "[DONE]" ? null : JSON.parse(data)];
}
