// The ids that llama.cpp gives to texts by the vocabulary of a GGUF file, which may have no weights. JSON in, JSON out.
import {createRequire} from "module";
import {pathToFileURL} from "url";
import fs from "fs";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const find = createRequire(asked.packages + "/");
const {getLlama} = await import(pathToFileURL(find.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const found = [];
for (const modelPath of asked.files) {
  const model = await llama.loadModel({modelPath, vocabOnly: true});
  const ids = (special) => asked.texts.map((text) => Array.from(model.tokenize(text, special)));
  found.push({special: ids(true), plain: ids(false)});
  await model.dispose();
}
process.stdout.write(JSON.stringify(found), () => process.exit(0));
