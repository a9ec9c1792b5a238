// llama.cpp's side of serving_real.py: JSON on standard input, JSON on standard output. One context of node-llama-cpp
// with a sequence for each request, which batches what its sequences ask for; the clients live in the same process. What
// is not there after `patience` seconds is null: a long prompt beside streams may never be read.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const find = createRequire(asked.packages + "/");
const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: asked.threads, logLevel: "error"});
const model = await llama.loadModel({modelPath: asked.model});
const sequences = Math.max(asked.at_once, asked.streams + 2);
const contextSize = asked.long.length + asked.room;
const context = await model.createContext({sequences, contextSize, threads: asked.threads, batchSize: 512});
const free = Array.from({length: sequences}, () => context.getSequence());
const seconds = () => performance.now() / 1000;

// A completion on a sequence of its own: when it was asked, and when each token came.
function stream(prompt, num) {
  const one = {asked: seconds(), at: []};
  one.done = (async () => {
    const sequence = free.pop();
    await sequence.clearHistory();
    for await (const _ of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
      one.at.push(seconds());
      if (one.at.length === num) break;
    }
    free.push(sequence);
    return one.at.at(-1) - one.asked;
  })();
  return one;
}

const pause = (milliseconds) => new Promise((go) => setTimeout(go, milliseconds));

// Whether each has so many pieces more, which is waited for as long as there is patience.
async function waitFor(streams, pieces) {
  const wanted = streams.map((one) => one.at.length + pieces), end = seconds() + asked.patience;
  const missing = () => streams.some((one, number) => one.at.length < wanted[number]);
  while (missing() && seconds() < end) await pause(10);
  return !missing();
}

function silence(one, begin, end) {
  const at = [begin, ...one.at.filter((moment) => begin < moment && moment < end), end];
  return Math.max(...at.slice(1).map((moment, number) => moment - at[number]));
}

async function longPrompt() {
  const ids = asked.long;
  const alone = await stream(ids.slice(0, -1), 1).done;
  const streams = asked.questions.slice(0, asked.streams).map((ids) => stream(ids, asked.room - 100));
  await waitFor(streams, 4);
  const long = stream(ids.slice(1), 1);
  await waitFor(streams, asked.pieces);
  const newcomer = stream(asked.questions.at(-1), 2);
  const came = await waitFor([newcomer], 1), read = await waitFor([long], 1);
  const end = read ? long.at[0] : seconds(), took = end - long.asked;
  return {
    tokens: ids.length - 1,
    alone_seconds: alone,
    patience: asked.patience,
    seconds: read ? took : null,
    longer: read ? took / alone : null,
    longest_silence: Math.max(...streams.map((one) => silence(one, long.asked, end))),
    newcomer_first: came ? newcomer.at[0] - newcomer.asked : null,
    fewest_pieces: Math.min(...streams.map((one) => one.at.filter((at) => long.asked < at && at < end).length)),
  };
}

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

async function crowd() {
  const found = {crowd: [], one: []};
  for (let round = 0; round < asked.rounds; round++) {
    for (const [name, num] of [["crowd", asked.at_once], ["one", 1]]) {
      const began = seconds();
      await Promise.all(asked.questions.slice(0, num).map((ids) => stream(ids, asked.tokens).done));
      found[name].push((num * asked.tokens) / (seconds() - began));
    }
  }
  const [many, one] = [median(found.crowd), median(found.one)];
  return {crowd: many, one, crowd_over_one: many / one, at_once: asked.at_once};
}

console.log(JSON.stringify({crowd: await crowd(), long_prompt: await longPrompt()}));
process.exit(0);
