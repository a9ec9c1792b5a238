// Numbers as people read them. What is not known is a dash.

export const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const money = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD" });
const cents = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD", maximumSignificantDigits: 2 });

export function count(value) {
  return whole.format(value);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 999.5) return `${value.toFixed(0)} ms`;
  if (value < 99_950) return `${(value / 1000).toFixed(value < 9950 ? 2 : 1)} s`;
  return `${(value / 60_000).toFixed(1)} min`;
}

export function dollars(value) {
  if (value === null || value === undefined) return NONE;
  return value > 0 && value < 0.1 ? cents.format(value) : money.format(value);
}

// A share of 0.9996 is not 100%, and one of 0.0003 is not 0%.
export function share(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0 || value === 1) return `${100 * value}%`;
  return `${Math.min(99.9, Math.max(0.1, 100 * value)).toFixed(1)}%`;
}

export function rate(value) {
  if (value === null) return NONE;
  return value === 0 || value >= 99.95 ? whole.format(value) : value.toFixed(value < 10 ? 2 : 1);
}

// How long ago a time in seconds was.
export function since(seconds) {
  const gone = Math.max(0, Date.now() / 1000 - seconds);
  if (gone < 90) return `${gone.toFixed(0)} s`;
  if (gone < 5400) return `${(gone / 60).toFixed(0)} min`;
  return gone < 129_600 ? `${(gone / 3600).toFixed(1)} h` : `${(gone / 86_400).toFixed(gone < 864_000 ? 1 : 0)} days`;
}

// A time in seconds, as the clock of whoever reads says it; with the day where it is not today.
export function clock(seconds) {
  const then = new Date(1000 * seconds);
  const day = then.toDateString() === new Date().toDateString() ? {} : { day: "numeric", month: "short" };
  return then.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function plain(name) {
  return name.replaceAll("_", " ");
}

const RULES = {
  conversation: "Open tool call stays where it is",
  wish: "Request named the backend",
  quality: "Quality",
  latency: "Latency",
  cost: "Cost",
  load: "Load",
  explore: "Explored",
  only: "Only one backend could",
  none: "No backend could",
};

export function rule(name) {
  return RULES[name] ?? plain(name);
}

const CIRCUITS = { closed: ["ok", "good"], "half open": ["half open", "warn"], open: ["circuit open", "bad"] };

// What a backend's circuit is called here, and its color.
export function circuit(state) {
  return CIRCUITS[state] ?? [plain(state), "warn"];
}
