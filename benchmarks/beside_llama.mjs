// llama.cpp's side of beside_llama.py: a line of JSON in, a line of JSON out.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";
import readline from "readline";

const status = () => {
  const found = {};
  for (const line of fs.readFileSync("/proc/self/status", "utf8").split("\n")) {
    const [name, value] = line.split(":");
    if (["VmRSS", "RssAnon", "VmHWM"].includes(name)) found[name] = 1024 * parseInt(value);
  }
  return found;
};
const seconds = () => (process.cpuUsage().user + process.cpuUsage().system) / 1e6;
let sequence;

async function load(asked) {
  const find = createRequire(asked.packages + "/");
  const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
  const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
  const began = seconds();
  const model = await llama.loadModel({modelPath: asked.model});
  const context = await model.createContext({contextSize: asked.context, threads: 1, batchSize: 512});
  sequence = context.getSequence();
  return {seconds: seconds() - began};
}

async function round(asked) {
  await sequence.clearHistory();
  const [tokens, times, began] = [[], [], seconds()];
  for await (const token of sequence.evaluate(asked.prompt, {temperature: 0, yieldEogToken: true})) {
    times.push(seconds());
    tokens.push(token);
    if (tokens.length > asked.num) break;
  }
  return {prompt: times[0] - began, token: (times.at(-1) - times[0]) / (times.length - 1), tokens, memory: status()};
}

for await (const line of readline.createInterface({input: process.stdin})) {
  const asked = JSON.parse(line);
  console.log(JSON.stringify(sequence ? await round(asked) : await load(asked)));
}
process.exit(0);
