"""Files of prompts as a corpus: JSON Lines, JSON or Parquet.

    {"prompt": text}              the answer follows the text
    {"messages": [...], "tools"}  the answer follows the conversation, as the model's chat template writes it
    {"template": text}            the answer fills every <gap>, with `length` tokens or as many as each of the texts
                                  "fills" has

All other keys are for the reward, and so are those of "messages" and "fills".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.decoding.text_spans import MARK
from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.files import atomic_write
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.sft.corpus import AnswerFiles, Left, Split, with_held_out
from daguerre.train.sft.files import data_files, rows_of
from daguerre.train.sft.formats import read_row
from daguerre.train.sft.rendering import Renderer
from daguerre.train.sft.texts import Text
from daguerre.train.shards import META, TOKEN_TYPE, Shard

OWN = ("prompt", "messages", "tools", "template")


@dataclass(frozen=True)
class Prompt:
    """What an answer follows, or the text with its gaps; how many tokens each gap has (none: it is no template); and
    what the row has beside it, for the reward.
    """

    text: str
    gaps: tuple[int, ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class PromptFiles(AnswerFiles):
    """Files of prompts, as `AnswerFiles`. `length`: the most tokens of an answer, or of a gap."""

    length: int = 64

    def __call__(self, tokenizer: Tokenizer, config: ModelConfig) -> Path:
        left, renderer = Left(), Renderer(tokenizer, config)
        rows = with_held_out(self._prompts(renderer, left), self.held_out)
        if (first := next(rows, None)) is None:
            raise DataError(f"no row of {self.paths[0].name} is a prompt to answer: {left.line() or 'there is none'}")
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / META).unlink(missing_ok=True)
        kind, num = TOKEN_TYPE if config.vocab_size <= 65536 else np.dtype("<u4"), 0
        with ExitStack() as stack:
            splits = {name: Split(self.out, name, kind, stack) for name in ("train", "val")}
            files = {name: stack.enter_context(atomic_write(_file(self.out, name))) for name in splits}
            for held, texts in chain([first], rows):
                num += 1
                side = "val" if held else "train"
                for text in texts:
                    assert isinstance(text, _Encoded)
                    splits[side].add(text, tokenizer)
                    files[side].write((json.dumps(text.row) + "\n").encode())
        for split in splits.values():
            split.close(self.out)
        self._finish(splits, tokenizer, kind, {"rows": num, "left_out": left.counts, "line": left.line()})
        return self.out

    def _prompts(self, renderer: Renderer, left: Left) -> Iterator[tuple[float, list[Text]]]:
        for file in data_files(self.paths):
            for number, row in rows_of(file):
                try:
                    if isinstance(row, InputError):
                        raise row
                    made = self._encoded(read_prompt(row, renderer, self.length), renderer)
                except InputError as error:
                    left.add(str(error), f"{file.name}:{number}")
                    continue
                said = json.dumps(row, sort_keys=True, default=str).encode()
                yield int(hashlib.sha256(said).hexdigest()[:8], 16) / 2**32, [made]

    def _encoded(self, prompt: Prompt, renderer: Renderer) -> _Encoded:
        if prompt.gaps and renderer.config.context != "full":
            raise UnsupportedError("templates need a model with full context: give rows {'prompt': ...}")
        ids = renderer.tokenizer.encode(prompt.text.replace(MARK, ""), begins=True)
        if len(ids) + (sum(prompt.gaps) or self.length) > self.longest:
            raise InputError(f"they and their answers are longer than {self.longest} tokens")
        row = {"text": prompt.text, "gaps": prompt.gaps, "fields": prompt.fields}
        return _Encoded(np.array(ids, dtype=np.int64), np.zeros(len(ids), dtype=bool), row)


@dataclass(frozen=True)
class _Encoded(Text):
    """The tokens of a prompt, and the row that is kept of it."""

    row: Mapping[str, Any]


def read_prompt(row: object, renderer: Renderer, length: int) -> Prompt:
    """The prompt of a row. InputError, in a few words, for a row that has none."""
    if not isinstance(row, Mapping):
        raise InputError("it is no object with keys")
    row = {key: value for key, value in row.items() if value is not None}
    fields = {key: value for key, value in row.items() if key not in OWN}
    if isinstance(row.get("template"), str):
        num = row["template"].count(MARK)
        fills = row.get("fills", [])
        if not num or (fills and (not isinstance(fills, list) or len(fills) != num)):
            raise InputError(f"its template has {num} gaps ({MARK}), and its fills are {len(fills)}")
        known = [len(renderer.tokenizer.encode(str(fill), begins=False)) for fill in fills]
        if 0 in known:
            raise InputError("one of its fills is empty")
        return Prompt(row["template"], tuple(known or [length] * num), fields)
    if isinstance(row.get("prompt"), str):
        return Prompt(row["prompt"], (), fields)
    if isinstance(row.get("messages"), list):
        answer = {"role": "assistant", "content": "."}
        talk = read_row({"messages": [*row["messages"], answer], "tools": row.get("tools")})
        messages, tools = talk.messages[:-1], list(talk.tools) or None  # type: ignore[union-attr]
        text = renderer.template.render(messages, tools, add_generation_prompt=True)
        return Prompt(text, (), fields | {"messages": row["messages"]})
    has = ", ".join(map(str, list(row)[:6])) or "none"
    raise InputError(f"its keys ({has}) are none of prompt, messages, template")


def prompts_of(shard: Shard) -> list[Prompt]:
    """The prompts of a split. InputError for a corpus of anything else."""
    path = _file(shard.folder, shard.split)
    if not path.is_file():
        raise InputError(f"{shard.folder} holds no prompts: give --data files of prompts (docs/reinforce.md)")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Prompt(row["text"], tuple(row["gaps"]), row["fields"]) for row in rows]


def prompts_line(train: Shard, val: Shard) -> str:
    """What is asked, and what was left out."""
    report = json.loads((train.folder / "rows.json").read_text(encoding="utf-8"))
    left = f"; left out: {report['line']}" if report["line"] else ""
    held = "held-out rewards are of the same prompts" if val is train else f"{val.num_documents:,} held out"
    return f"{report['rows']:,} prompts, {held}{left}"


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.prompts.jsonl"
