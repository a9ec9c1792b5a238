// Requests to begin with.

const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 }, admin: { type: "boolean" } },
  required: ["name", "age", "admin"],
  additionalProperties: false,
};

export const EXAMPLES = {
  "Complete a class": {},
  "Fill a gap": {
    kind: "infill", max_tokens: "24",
    prefix: "def mean(values):\n    total = 0\n    ", suffix: "\n    return total / len(values)\n",
  },
  "Template with two gaps": {
    kind: "fill", max_tokens: "12", template: "class Point:\n    def __init__(self, <gap>):\n        self.x = <gap>\n        self.y = y\n",
  },
  "Rewrite a line": { kind: "edit", text: "def area(width, height):\n    return width + height\n", spans: [[36, 50]] },
  "JSON of a schema": {
    kind: "generate", prompt: "# A user as JSON:\n", max_tokens: "64", constraint: "schema", rule: JSON.stringify(PERSON, null, 2),
  },
  "A date, by a regular expression": {
    kind: "generate", prompt: "released = ", max_tokens: "24", constraint: "regex", rule: "\"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]\"",
  },
  "Careful or quick?": {
    kind: "generate", prompt: "def read_lines(path):\n    ", max_tokens: "48", compare: true,
    a: { mode: "block", policy: "threshold", threshold: "0.9" }, b: { mode: "block", policy: "confidence", block_size: "48", steps: "16" },
  },
};
