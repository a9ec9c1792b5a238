// The chat: messages, answers that come as a stream, and ways to go on from any of them.

import * as client from "./client.js";
import { button, element } from "./elements.js";

const NAMES = { user: "You", assistant: "Model", tool: "Result" };
const ENDS = { length: "Cut at the limit of tokens: raise it, or ask to go on.", loop: "It repeated itself, and was ended there." };

function json(area, what) {
  if (!area.value.trim()) return null;
  try {
    return JSON.parse(area.value);
  } catch (error) {
    throw new Error(`${what} are not JSON yet: ${error.message}.`);
  }
}

export class Chat {
  constructor(page) {
    this.page = page;
    this.messages = [];
    this.abort = null;
    page.chatForm.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    page.chatText.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    });
    page.chatStop.addEventListener("click", () => this.abort?.abort());
    page.chatClear.addEventListener("click", () => this.keep(0));
    this.show();
  }

  // What is known of the model that answers.
  setModel(facts) {
    const { page } = this;
    const own = facts?.daguerre;
    page.chatAbout.textContent = own && !own.chat_template
      ? "This model was not trained to converse: it continues a transcript." : "";
    const { temperature = 0, ...cuts } = own?.chat_sampling ?? {};
    page.chatTemperature.placeholder = temperature;
    page.chatSampling.textContent = own
      ? `By default: ${[`temperature ${temperature}`, ...Object.entries(cuts).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)].join(", ")}.` : "";
  }

  // Keep the first messages alone.
  keep(num) {
    this.abort?.abort();
    this.messages = this.messages.slice(0, num);
    this.page.chatError.hidden = true;
    this.say("");
    this.show();
  }

  ask() {
    const text = this.page.chatText.value;
    if (!text.trim() || this.abort || this.page.chatSend.disabled) return;
    this.messages.push({ role: "user", content: text });
    this.page.chatText.value = "";
    this.answer();
  }

  body() {
    const { page } = this;
    const system = page.chatSystem.value.trim();
    const tools = json(page.chatTools, "The tools");
    const schema = json(page.chatSchema, "The schema's contents");
    return {
      ...(page.chatModel.value ? { model: page.chatModel.value } : {}),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages.map(sent)],
      ...(tools ? { tools } : {}),
      ...(schema ? { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } } : {}),
      ...(page.chatTemperature.value === "" ? {} : { temperature: Number(page.chatTemperature.value) }),
      ...(page.chatTokens.value === "" ? {} : { max_tokens: Number(page.chatTokens.value) }),
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  // Ask for the answer to the messages, and show it as it comes.
  async answer() {
    const { page } = this;
    const mine = (this.abort = new AbortController());
    const answer = { role: "assistant", content: "", thought: "", calls: [] };
    const began = performance.now();
    let usage = null;
    page.chatError.hidden = true;
    page.chatStop.disabled = false;
    this.say("Writing…");
    try {
      const body = this.body();
      this.messages.push(answer);
      this.show();
      await client.chat(body, (chunk) => {
        usage = chunk.usage ?? usage;
        for (const choice of chunk.choices) taken(answer, choice);
        this.update(answer);
      }, mine.signal);
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      const end = ENDS[answer.stopped ?? answer.finish] ?? "";
      this.say(`Done: ${usage?.completion_tokens ?? 0} tokens, ${seconds} s. ${end}`.trim());
    } catch (error) {
      if (error.name === "AbortError") {
        this.say("Stopped.");
      } else {
        this.fail(error);
      }
      if (!answer.content && !answer.calls.length) this.messages = this.messages.filter((one) => one !== answer);
    } finally {
      if (this.abort === mine) {
        this.abort = null;
        page.chatStop.disabled = true;
      }
      this.show();
    }
  }

  fail(error) {
    this.page.chatError.textContent = error.message;
    this.page.chatError.hidden = false;
    this.say("");
  }

  say(words) {
    this.page.chatStatus.textContent = words;
  }

  show() {
    const { page } = this;
    page.chatLog.replaceChildren(...this.messages.map((message, index) => this.item(message, index)));
    page.chatClear.disabled = !this.messages.length;
    page.chatEmpty.hidden = this.messages.length > 0;
  }

  // The text of an answer that is being written.
  update(answer) {
    const item = this.page.chatLog.lastElementChild;
    if (this.messages.at(-1) !== answer || !item) return;
    item.querySelector(".said").textContent = answer.content;
    const thought = item.querySelector(".thought");
    thought.hidden = !answer.thought;
    thought.querySelector("p").textContent = answer.thought;
    item.scrollIntoView({ block: "nearest" });
  }

  item(message, index) {
    const thought = element("details", "thought", element("summary", "", "Thought"), element("p", "", message.thought ?? ""));
    thought.hidden = !message.thought;
    const calls = (message.calls ?? []).map((call) => this.call(call, index));
    const acts = element("div", "acts");
    const made = element("li", "", element("h3", "", NAMES[message.role]), thought, element("p", "said", message.content), ...calls, acts);
    made.dataset.role = message.role;
    if (this.abort) return made;
    if (message.role !== "tool") acts.append(button("small", "Edit", () => this.edit(made, message, index)));
    if (message.role === "assistant") acts.append(button("small", "Regenerate", () => this.again(index)));
    if (index + 1 < this.messages.length) acts.append(button("small", "Go on from here", () => this.keep(index + 1)));
    return made;
  }

  // A call of a tool, and a field for its result where there is none yet.
  call(call, index) {
    const made = element("div", "call", element("code", "", `${call.name}(${call.arguments})`));
    const answered = this.messages.slice(index + 1).some((one) => one.role === "tool" && one.id === call.id);
    if (!answered && !this.abort) {
      const field = element("input");
      Object.assign(field, { type: "text", spellcheck: false });
      field.setAttribute("aria-label", `Result of ${call.name}`);
      made.append(field, button("small", "Send the result", () => {
        this.messages = this.messages.slice(0, index + 1).concat(this.messages.slice(index + 1).filter((one) => one.role === "tool"));
        this.messages.push({ role: "tool", id: call.id, content: field.value });
        const { calls } = this.messages[index];
        const results = new Set(this.messages.slice(index + 1).map((one) => one.id));
        if (calls.every((one) => results.has(one.id))) this.answer();
        else this.show();
      }));
    }
    return made;
  }

  again(index) {
    this.messages = this.messages.slice(0, index);
    this.answer();
  }

  edit(item, message, index) {
    const area = element("textarea");
    Object.assign(area, { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1) });
    area.setAttribute("aria-label", `${NAMES[message.role]}: edit`);
    const saved = () => {
      this.messages = [...this.messages.slice(0, index), { ...message, content: area.value }];
      if (message.role === "user") this.answer();
      else this.show();
    };
    const save = button("small", message.role === "user" ? "Save and ask" : "Save", saved);
    const acts = element("div", "acts", save, button("small", "Cancel", () => this.show()));
    item.replaceChildren(element("h3", "", NAMES[message.role]), area, acts);
    area.focus();
  }
}

// What a chunk of a stream adds to an answer.
function taken(answer, choice) {
  const { content, reasoning_content: thought, tool_calls: calls = [] } = choice.delta;
  answer.content += content ?? "";
  answer.thought += thought ?? "";
  for (const one of calls) {
    const call = (answer.calls[one.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= one.id ?? "";
    call.name ||= one.function?.name ?? "";
    call.arguments += one.function?.arguments ?? "";
  }
  answer.finish = choice.finish_reason ?? answer.finish;
  answer.stopped = choice.daguerre?.stopped ?? answer.stopped;
}

// A message as the server takes it.
function sent({ role, content, id, calls }) {
  if (role === "tool") return { role, tool_call_id: id, content };
  const made = (calls ?? []).map((one) => ({ id: one.id, type: "function", function: { name: one.name, arguments: one.arguments } }));
  return { role, content, ...(made.length ? { tool_calls: made } : {}) };
}
