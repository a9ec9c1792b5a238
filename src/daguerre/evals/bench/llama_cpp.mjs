// llama.cpp's side of part "real", by node-llama-cpp: a line of JSON in, a line of JSON out (llama_cpp.py).
import {createRequire} from "module";
import {pathToFileURL} from "url";
import readline from "readline";

const PIECE = 16;  // rows whose probabilities of all tokens are in memory at once
const ALL = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};
let sequence, clock;

const processorTime = () => (process.cpuUsage().user + process.cpuUsage().system) / 1e6;

async function load({packages, model, threads, context}) {
  const find = createRequire(packages + "/");
  const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
  clock = threads === 1 ? processorTime : () => performance.now() / 1000;
  const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
  const began = clock();
  const loaded = await llama.loadModel({modelPath: model});
  const made = await loaded.createContext({contextSize: context, threads, batchSize: 512});
  sequence = made.getSequence();
  const {repo, release} = llama.llamaCppRelease;
  return {seconds: clock() - began, release: `${repo} ${release}`, flags: llama.systemInfo.trim()};
}

async function write({prompt, num}) {
  await sequence.clearHistory();
  const [tokens, times, began] = [[], [], clock()];
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    times.push(clock());
    tokens.push(token);
    if (tokens.length > num) break;
  }
  return {prompt: times[0] - began, token: (times.at(-1) - times[0]) / (times.length - 1), tokens};
}

// The sum of the negative log-probabilities of the second half of a run of tokens.
async function nats({window}) {
  await sequence.clearHistory();
  const half = window.length >> 1;
  await sequence.controlledEvaluate(window.slice(0, half));
  let sum = 0;
  for (let start = half; start < window.length - 1; start += PIECE) {
    const rows = window.slice(start, Math.min(start + PIECE, window.length - 1));
    const found = await sequence.controlledEvaluate(rows.map((token) => [token, ALL]));
    found.forEach(({next}, place) => sum -= Math.log(next.probabilities.get(window[start + place + 1])));
  }
  return {nats: sum};
}

const ASKS = {load, write, nats};
for await (const line of readline.createInterface({input: process.stdin})) {
  const {ask, ...given} = JSON.parse(line);
  try {
    console.log(JSON.stringify({answer: await ASKS[ask](given)}));
  } catch (error) {
    console.log(JSON.stringify({error: `${error.message ?? error}`.split("\n")[0]}));
  }
}
process.exit(0);
