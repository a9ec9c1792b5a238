// llama.cpp under the load of serving_real.py: one context with as many sequences, whose rows share batches. JSON in,
// JSON out: {packages, model, threads, crowd: [ids], tokens, rounds, long: [ids, ids], streams: [ids], newcomer: ids}.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const find = createRequire(asked.packages + "/");
const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: asked.threads, logLevel: "error"});
const model = await llama.loadModel({modelPath: asked.model});
const now = () => performance.now() / 1000;

// Seconds at which each token came; heard: is called with their number.
async function write(sequence, ids, tokens, done = () => false, heard = () => {}) {
  await sequence.clearHistory();
  const at = [];
  for await (const _ of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
    at.push(now());
    heard(at.length);
    if (at.length >= tokens || done()) break;
  }
  return at;
}

async function contextOf(num, size) {
  const context = await model.createContext({sequences: num, contextSize: size, threads: asked.threads, batchSize: 512});
  return [context, Array.from({length: num}, () => context.getSequence())];
}

const found = {};
if (asked.crowd) {
  const most = Math.max(...asked.crowd.map((ids) => ids.length));
  const [context, sequences] = await contextOf(asked.crowd.length, most + asked.tokens + 16);
  found.crowd = {crowd: [], one: []};
  for (let round = 0; round < asked.rounds; round++) {
    for (const [name, num] of [["crowd", asked.crowd.length], ["one", 1]]) {
      const began = now();
      const all = asked.crowd.slice(0, num).map((ids, place) => write(sequences[place], ids, asked.tokens));
      const written = (await Promise.all(all)).reduce((sum, at) => sum + at.length, 0);
      found.crowd[name].push(written / (now() - began));
    }
  }
  await context.dispose();
}
if (asked.long) {
  const [context, sequences] = await contextOf(asked.streams.length + 2, asked.long[0].length + 64);
  const [long, fresh, ...streams] = sequences;
  const began = now();
  const alone = (await write(long, asked.long[0], 1)).at(-1) - began;
  let finished = false, pieces = 0;
  const ready = [];
  const all = asked.streams.map((ids, place) => {
    let told;
    ready.push(new Promise((resolve) => { told = resolve; }));
    return write(streams[place], ids, asked.long[0].length, () => finished, (num) => { if (num === 4) told(); pieces += 1; });
  });
  await Promise.all(ready);
  const start = now();
  const reading = write(long, asked.long[1], 1);
  const before = pieces;
  while (pieces < before + 8 && now() < start + 0.5 * alone) await new Promise((resolve) => setTimeout(resolve, 5));
  const came = now();
  const newcomer = write(fresh, asked.newcomer, 2);
  const first = (await newcomer)[0] - came;
  const end = (await reading).at(-1);
  finished = true;
  const heard = await Promise.all(all);
  const gaps = heard.map((at) => {
    const inside = [start, ...at.filter((one) => start < one && one < end), end];
    return Math.max(...inside.slice(1).map((one, place) => one - inside[place]));
  });
  found.long = {alone, seconds: end - start, longest_silence: Math.max(...gaps), newcomer_first: first};
}
process.stdout.write(JSON.stringify(found), () => process.exit(0));
