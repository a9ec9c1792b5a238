// What llama.cpp makes of a GGUF file: ids of texts, and the likeliest tokens after each prompt. JSON in, JSON out.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const find = createRequire(asked.packages + "/");
const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const model = await llama.loadModel({modelPath: asked.model});
const lora = asked.adapter ? {lora: {adapters: [{filePath: asked.adapter}]}} : {};
const context = await model.createContext({contextSize: asked.context ?? 1024, threads: 1, batchSize: 512, ...lora});
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
const ids = asked.texts.map((text) => Array.from(model.tokenize(text, true)));
process.stdout.write(JSON.stringify({ids, written}), () => process.exit(0));
