// What llama.cpp makes of a GGUF file: ids of texts, the likeliest tokens after each prompt, and the logarithms of the
// probabilities of all tokens behind each token of `rows`. JSON in, JSON out.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const find = createRequire(asked.packages + "/");
const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const model = await llama.loadModel({modelPath: asked.model});
const lora = asked.adapter ? {lora: {adapters: [{filePath: asked.adapter}]}} : {};
const exact = asked.rows ? {experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32", flashAttention: false} : {};
const context = await model.createContext({contextSize: asked.context ?? 1024, threads: 1, batchSize: 512, ...lora, ...exact});
const sequence = context.getSequence();
const written = [];
for (const prompt of asked.prompts) {
  await sequence.clearHistory();
  const [tokens, began] = [[], process.cpuUsage()];
  let ended = false;
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    ended = model.isEogToken(token);
    if (ended || tokens.length >= asked.num) break;
    tokens.push(token);
  }
  const took = process.cpuUsage(began);
  written.push({tokens, ended, text: model.detokenize(tokens), seconds: (took.user + took.system) / 1e6});
}
const all = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};
const rows = [];
for (const tokens of asked.rows ?? []) {
  await sequence.clearHistory();
  const found = await sequence.controlledEvaluate(tokens.map((token) => [token, all]));
  rows.push(found.map(({next}) => Array.from(next.probabilities.keys()).sort((a, b) => a - b).map((token) => Math.log(next.probabilities.get(token)))));
}
const ids = asked.texts.map((text) => Array.from(model.tokenize(text, true)));
process.stdout.write(JSON.stringify({ids, written, rows}), () => process.exit(0));
