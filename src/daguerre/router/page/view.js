// What the page shows of a router's status.

import { $, element } from "./elements.js";
import { bend, curve, keyed, put, table } from "./tables.js";
import { NONE, circuit, clock, count, dollars, milliseconds, plain, rate, rule, share, since } from "./words.js";

const KEPT = 90;
const LEAST = 20;
const RECENT = 10;
const PROMISED = 0.95;

let began = null;
let totals = [];
let slowest = new Map();

const late = (one) => (one.in_time !== null && one.in_time < PROMISED ? "bad" : "");
const failing = (one) => (one.failed > 0 ? "bad" : "");
const number = (name, text, tone) => ({ name, text, tone, kind: "number" });
const SUMS = [
  number("p50", (one) => milliseconds(one.p50_ms)),
  number("p95", (one) => milliseconds(one.p95_ms)),
];
const KEPT_AND_COST = [
  number("In time", (one) => share(one.in_time), late),
  number("Cost", (one) => dollars(one.cost)),
];

const backends = table($("backends"), [
  { name: "Backend", kind: "name", draw: drawName },
  { name: "State", kind: "state", draw: drawState },
  { name: "In flight", kind: "number load", draw: drawLoad },
  number("Requests", (one) => count(one.requests)),
  number("Failed", (one) => share(one.unanswered / one.attempts), (one) => (one.unanswered > 0 ? "bad" : "")),
  ...SUMS,
  { name: "p95 lately", kind: "lately", draw: drawLately },
  ...KEPT_AND_COST,
]);

const steps = table($("steps"), [
  { name: "Step", kind: "name", text: (one) => plain(one.name) },
  number("Requests", (one) => count(one.requests)),
  number("Failed", (one) => share(one.failed / one.requests), failing),
  ...SUMS,
  ...KEPT_AND_COST,
]);

const last = table($("last"), [
  { name: "Began", kind: "time", text: (one) => clock(one.time) },
  { name: "Step", kind: "step", text: (one) => plain(one.step) },
  { name: "Backend", kind: "name", text: (one) => (one.backend === "none" ? NONE : one.backend) },
  { name: "Why", kind: "why", text: why },
  { name: "Status", kind: "number code", text: (one) => String(one.status), tone: (one) => (one.status >= 400 ? "bad" : "") },
  number("Took", (one) => milliseconds(one.ms)),
  number("Cost", (one) => dollars(one.cost)),
  { name: "Attempts", kind: "number tries", text: (one) => count(one.attempts), tone: (one) => (one.attempts > 1 ? "warn" : "") },
]);

// A backend other than the chosen one answers where that one could not.
function why(one) {
  return !one.chosen || one.chosen === one.backend ? one.reason : `${one.chosen} was chosen first: ${one.reason}`;
}

function drawName(cell, one) {
  if (!cell.firstChild) cell.append(element("span"), element("small"));
  put(cell.firstChild, one.name === "none" ? "no backend" : one.name);
  put(cell.lastChild, one.model ?? (one.name === "none" ? "none could serve it" : ""));
}

function drawState(cell, one) {
  const badges = one.circuit ? [circuit(one.circuit)] : [];
  if (one.cold) badges.push(["cold", "soft"]);
  if (one.in_flight >= one.most_in_flight) badges.push(["full", "warn"]);
  keyed(cell, badges.map((badge) => badge.join("/")), (key) => {
    const [words, tone] = key.split("/");
    return element("span", `badge ${tone}`, words);
  });
}

function drawLoad(cell, one) {
  if (!cell.firstChild) cell.append(element("span"), element("i", "meter"));
  put(cell.firstChild, one.most_in_flight ? `${count(one.in_flight)} of ${count(one.most_in_flight)}` : NONE);
  cell.lastChild.style.setProperty("--share", one.most_in_flight ? Math.min(1, one.in_flight / one.most_in_flight) : 0);
}

function drawLately(cell, one) {
  const values = slowest.get(one.name) ?? [];
  if (!cell.firstChild) cell.append(curve());
  bend(cell.firstChild, values, Math.max(LEAST, values.length));
}

export function show(status, metrics) {
  const counted = counters(metrics);
  const all = named(status.backends).sort((a, b) => (a.name === "none") - (b.name === "none"));
  for (const one of all) {
    one.attempts = counted("attempts", `backend="${one.name}"`);
    one.unanswered = one.attempts - counted("attempts", `backend="${one.name}",outcome="ok"`);
  }
  remember(status, all);
  put($("about"), `Up for ${since(status.began)} · configuration ${status.config.slice(0, 8)} · read at ${clock(Date.now() / 1000)}`);
  showTiles(all, counted);
  backends(all, (one) => one.name);
  const asked = status.last.length > 0;
  $("empty").hidden = asked;
  $("pair").hidden = $("last-card").hidden = !asked;
  put($("example"), example());
  steps(named(status.steps), (one) => one.name);
  showRules(status.rules);
  last(status.last, (one) => one.id);
}

function named(values) {
  const all = Object.entries(values).map(([name, one]) => ({ ...one, name }));
  return all.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
}

// Requests until now, and p95 of each backend, for the curves. A router that was started again begins anew.
function remember(status, all) {
  if (began !== status.began) {
    began = status.began;
    totals = [];
    slowest = new Map();
  }
  totals = [...totals, { at: performance.now() / 1000, requests: sum(all, "requests") }].slice(-KEPT - 1);
  for (const one of all) slowest.set(one.name, [...(slowest.get(one.name) ?? []), one.p95_ms].slice(-KEPT));
}

function sum(all, name) {
  return all.reduce((total, one) => total + (one[name] ?? 0), 0);
}

function rates() {
  return totals.slice(1).map((now, place) => (now.requests - totals[place].requests) / (now.at - totals[place].at));
}

// Requests a second within the last seconds.
function rateNow() {
  const now = totals.at(-1);
  const then = totals.find((one) => one.at >= now.at - RECENT);
  return then === now ? null : (now.requests - then.requests) / (now.at - then.at);
}

// Prometheus' text: sum(name, label) adds up what has the name, and the label where one is given.
function counters(text) {
  const lines = text.split("\n").map((line) => line.match(/^(\w+)(?:\{(.*)\})? (\S+)$/)).filter(Boolean);
  return (name, label = "") =>
    lines
      .filter(([, found, labels]) => found === `daguerre_route_${name}_total` && (labels ?? "").includes(label))
      .reduce((total, [, , , value]) => total + Number(value), 0);
}

function showTiles(all, counted) {
  const [requests, failed] = [sum(all, "requests"), sum(all, "failed")];
  const [promised, kept] = [counted("slo"), counted("slo", 'met="yes"')];
  const [cached, hits] = [counted("cache"), counted("cache") - counted("cache", 'result="miss"')];
  const tiles = [
    ["Requests per second", rate(rateNow())],
    ["Requests", count(requests)],
    ["In flight", count(sum(all, "in_flight"))],
    ["Failed", share(failed / requests), failed ? "bad" : ""],
    ["In time", share(kept / promised), kept < PROMISED * promised ? "bad" : ""],
    ["Cost", dollars(sum(all, "cost"))],
  ];
  if (cached) tiles.push(["From the cache", share(hits / cached)]);
  if (counted("hedges")) tiles.push(["Asked twice", count(counted("hedges"))]);
  if (counted("shadows")) tiles.push(["Shadows", count(counted("shadows"))]);
  const nodes = keyed($("tiles"), tiles.map(([name]) => name), (name) => {
    return element("div", "tile", element("dt", "", name), element("dd"));
  });
  tiles.forEach(([, words, tone], place) => {
    put(nodes[place].children[1], words);
    nodes[place].children[1].className = tone ?? "";
  });
  if (!nodes[0].querySelector("svg")) nodes[0].append(tileCurve());
  const values = rates();
  bend(nodes[0].querySelector("svg"), values, Math.max(LEAST, values.length));
}

function tileCurve() {
  const place = element("dd", "curve-place", curve());
  place.setAttribute("aria-hidden", "true");
  return place;
}

function showRules(rules) {
  const sorted = Object.entries(rules).sort(([a, m], [b, n]) => n - m || a.localeCompare(b));
  const most = sum(sorted.map(([, num]) => ({ num })), "num");
  const nodes = keyed($("rules"), sorted.map(([name]) => name), (name) => {
    return element("li", "", element("span", "", rule(name)), element("span", "number"), element("i", "meter"));
  });
  sorted.forEach(([, num], place) => {
    put(nodes[place].children[1], `${count(num)} (${share(num / most)})`);
    nodes[place].children[2].style.setProperty("--share", num / most);
  });
}

function example() {
  const body = '{"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}';
  const url = new URL("v1/chat/completions", document.baseURI);
  return `curl ${url} \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}
