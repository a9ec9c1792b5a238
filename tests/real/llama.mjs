// What llama.cpp makes of a GGUF file: ids of texts, and the likeliest tokens after a prompt. JSON in, JSON out.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const find = createRequire(asked.packages + "/");
const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const model = await llama.loadModel({modelPath: asked.model});
const lora = asked.adapter ? {lora: {adapters: [{filePath: asked.adapter}]}} : {};
const context = await model.createContext({contextSize: 1024, threads: 1, batchSize: 512, ...lora});
const written = [];
for await (const token of context.getSequence().evaluate(asked.prompt, {temperature: 0, yieldEogToken: true})) {
  if (model.isEogToken(token) || written.length >= asked.num) break;
  written.push(token);
}
process.stdout.write(JSON.stringify({ids: asked.texts.map((text) => Array.from(model.tokenize(text, true))), written}));
process.exit(0);
