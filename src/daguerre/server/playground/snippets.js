// The same call for other programs.

const OWN = ["mode", "policy", "block_size", "steps", "threshold", "regex", "choices", "pins", "explain", "steer", "forbid", "forbid_exactly"]; // of the object `daguerre`
const SAMPLING = ["temperature", "seed"];

function json(value, indent = 2) {
  return JSON.stringify(value, null, indent);
}

// A literal of Python.
export function python(value, pad = "") {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((one) => python(one, pad)).join(", ")}]`;
  if (typeof value === "object") {
    const items = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one, pad)}`);
    return `{${items.join(", ")}}`;
  }
  return String(value);
}

const url = () => location.href.split("#")[0].replace(/\/$/, "");
const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(body) {
  return [
    `curl -N ${url()}/v1/daguerre/requests \\`,
    "  -H 'Content-Type: application/json' \\",
    "  -H \"Authorization: Bearer $DAGUERRE_API_KEY\" \\",
    `  -d ${shellQuoted(json(body))}`,
  ].join("\n");
}

function library(body) {
  const { kind, options, effort, model, ...rest } = body;
  const first = { generate: ["prompt"], infill: ["prefix", "suffix"], fill: ["template"], edit: ["text"] }[kind];
  const positional = first.map((name) => python(rest[name]));
  const pins = options.pins?.map((pin) => `daguerre.Pin(${python(pin.text)}, at=${pin.at}${pin.gap ? `, gap=${pin.gap}` : ""})`);
  const named = Object.entries({ ...rest, ...options })
    .filter(([name]) => !first.includes(name) && name !== "changeable" && name !== "pins")
    .map(([name, value]) => `${name}=${name === "spans" ? `[${value.map((span) => `(${span.join(", ")})`).join(", ")}]` : python(value)}`);
  if (pins) named.push(`pins=[${pins.join(", ")}]`);
  const loads = !model || model === "default" ? "daguerre.load()" : `daguerre.load(${python(model)})`;
  const head = ["import daguerre"];
  if (effort) {
    head.push("from daguerre.decoding.effort import effort_options");
    named.push(`**effort_options(${python(effort)}, model.config, model.defaults)`);
  }
  const lines = [...head, "", `model = ${loads}`];
  if (body.changeable) {
    const suffix = kind === "infill" ? [`suffix=${positional.pop()}`] : [];
    return [...lines, "running = model.start(", ...[...positional, ...suffix, ...named].map((one) => `    ${one},`), ")",
      "for event in running:  # between events: running.pin(at, text), running.remask(start, end)", "    print(event.text)"].join("\n");
  }
  return [...lines, `result = model.${kind}(`, ...[...positional, ...named].map((one) => `    ${one},`), ")", "print(result.text)"].join("\n");
}

function openai(body) {
  const head = ["from openai import OpenAI", "", `client = OpenAI(base_url="${url()}/v1", api_key="none")`];
  const { kind, options } = body;
  const plain = Object.keys(options).every((name) => OWN.includes(name) || SAMPLING.includes(name));
  if (!plain || (kind !== "generate" && kind !== "infill") || body.changeable) {
    const call = [`answer = client.post(`, `    "/daguerre/requests",`, `    body=${python({ ...body, stream: false })},`, "    cast_to=object,", ")", 'print(answer["result"]["text"])'];
    return [...head, ...call].join("\n");
  }
  const own = Object.fromEntries(Object.entries(options).filter(([name]) => OWN.includes(name)));
  if (body.timeout) own.timeout = body.timeout;
  const named = [`model=${python(body.model ?? "default")}`, `prompt=${python(kind === "infill" ? body.prefix : body.prompt)}`];
  if (kind === "infill") named.push(`suffix=${python(body.suffix)}`);
  if (body.max_tokens) named.push(`max_tokens=${body.max_tokens}`);
  for (const name of SAMPLING) if (options[name] !== undefined) named.push(`${name}=${options[name]}`);
  const extra = { ...(Object.keys(own).length ? { daguerre: own } : {}), ...(body.effort ? { reasoning_effort: body.effort } : {}) };
  if (Object.keys(extra).length) named.push(`extra_body=${python(extra)}`);
  return [...head, "answer = client.completions.create(", ...named.map((one) => `    ${one},`), ")", "print(answer.choices[0].text)"].join("\n");
}

function javascript(body) {
  return [
    `const response = await fetch("${url()}/v1/daguerre/requests", {`,
    '  method: "POST",',
    '  headers: { "Content-Type": "application/json" },',
    `  body: JSON.stringify(${json({ ...body, stream: false }).replaceAll("\n", "\n  ")}),`,
    "});",
    "const { result } = await response.json();",
    "console.log(result.text);",
  ].join("\n");
}

export const LANGUAGES = { curl, "Python": library, "Python, openai": openai, JavaScript: javascript };
