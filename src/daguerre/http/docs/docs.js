// Shows openapi.json. All that it says is put into the page as text, never as markup.

import { $, element } from "./elements.js";

const made = (tag, ...children) => element(tag, "", ...children);
const json = (value) => made("pre", JSON.stringify(value, null, 2));

function table(heads, rows) {
  const head = made("tr", ...heads.map((name) => made("th", name)));
  return made("table", head, ...rows.map((row) => made("tr", ...row.map((cell) => made("td", cell)))));
}

// A schema with the schemas that it names in their place, each once on the way down.
function whole(schema, named, seen = []) {
  if (Array.isArray(schema)) return schema.map((one) => whole(one, named, seen));
  if (schema === null || typeof schema !== "object") return schema;
  const name = schema.$ref?.split("/").pop();
  if (name) return seen.includes(name) ? { $ref: name } : whole(named[name] ?? {}, named, [...seen, name]);
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, whole(value, named, seen)]));
}

function operation(path, method, said, named) {
  const title = made("summary", made("b", method.toUpperCase()), made("code", path), ` ${said.summary ?? ""}`);
  const parts = [title, made("p", said.description ?? "")];
  if (said.parameters?.length) {
    const rows = said.parameters.map((one) => [one.name, one.in, one.description ?? one.schema?.type ?? ""]);
    parts.push(made("h3", "Parameters"), table(["name", "in", ""], rows));
  }
  for (const [kind, body] of Object.entries(said.requestBody?.content ?? {})) {
    parts.push(made("h3", `Body (${kind})`), json(whole(body.schema ?? {}, named)));
  }
  const answers = Object.entries(said.responses ?? {}).map(([status, one]) => [status, one.description]);
  parts.push(made("h3", "Answers"), table(["status", ""], answers));
  return made("details", ...parts);
}

async function show() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`the server answers with ${response.status}`);
  const { info, paths, components } = await response.json();
  document.title = $("title").textContent = `${info.title} ${info.version}`;
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, said] of Object.entries(methods)) {
      $("routes").append(operation(path, method, said, components?.schemas ?? {}));
    }
  }
  $("notice").hidden = true;
}

show().catch((error) => { $("notice").textContent = `The routes cannot be shown: ${error.message}.`; });
