// Requests to begin with.

const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 }, admin: { type: "boolean" } },
  required: ["name", "age", "admin"],
  additionalProperties: false,
};

const EXAMPLES = {
  "Complete a class": {},
  "Fill a gap": {
    kind: "infill", max_tokens: "24", a: {},
    prefix: "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        ",
    suffix: "\n\n    def __repr__(self):\n        return f\"Point({self.x}, {self.y})\"\n",
  },
  "Template with a gap": {
    kind: "fill", max_tokens: "12", a: {}, template: "class Point:\n    def __init__(self, x, y):\n        self.x = <gap>\n        self.y = y\n",
  },
  "Template with two gaps": { kind: "fill", max_tokens: "4", a: {}, template: "try:\n    import <gap>\nexcept <gap>\n    pass\n" },
  "Rewrite a part": {
    kind: "edit", a: {}, text: "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = x\n", spans: [[70, 80]],
  },
  "JSON of a schema": {
    kind: "generate", prompt: "# A user as JSON:\n", max_tokens: "64", a: {}, constraint: "schema", rule: JSON.stringify(PERSON, null, 2),
  },
  "A date, by a regular expression": {
    kind: "generate", prompt: "released = ", max_tokens: "24", a: {}, constraint: "regex", rule: "\"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]\"",
  },
  "Careful or quick?": {
    kind: "generate", prompt: "def read_lines(path):\n    ", max_tokens: "48", compare: true,
    a: { mode: "block", policy: "threshold", threshold: "0.9" }, b: { mode: "block", policy: "confidence", block_size: "48", steps: "16" },
  },
};

const SENTENCE = {
  "Complete a sentence": {
    kind: "generate", prompt: "Water boils at 100 degrees Celsius and freezes at", max_tokens: "5", a: {},
  },
};

// The examples that a model can do, the first one of each kind of request first; without facts, all.
export function examplesOf(facts) {
  const own = facts?.daguerre;
  if (!own) return EXAMPLES;
  const denoises = own.modes.includes("block") || own.modes.includes("full");
  const able = ([name, values]) =>
    (name !== "Template with two gaps" || own.gaps === "several") && (name !== "Template with a gap" || own.gaps === "one")
    && (own.gaps !== "none" || !["infill", "fill", "edit"].includes(values.kind)) && (!values.compare || denoises);
  const plain = (values) => (denoises ? values : { ...values, a: {}, b: {} });
  const kept = Object.entries(EXAMPLES).filter(able).map(([name, values]) => [name, plain(values)]);
  return { ...(own.chat_template && !denoises ? SENTENCE : {}), ...Object.fromEntries(kept) };
}
