"""Files of prompts as a corpus: JSON Lines, JSON or Parquet.

    {"prompt": text}              the answer follows the text
    {"messages": [...], "tools"}  the answer follows the conversation, as the model's chat template writes it
    {"template": text}            the answer fills every <gap>, with `length` tokens or as many as each of the texts
                                  "fills" has

All other keys are for the reward, and so are those of "messages" and "fills".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.decoding.text_spans import MARK
from daguerre.errors import InputError, UnsupportedError
from daguerre.files import atomic_write
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.sft.corpus import SplitWriter
from daguerre.train.sft.formats import fields_of, read_row
from daguerre.train.sft.rendering import Renderer
from daguerre.train.sft.texts import Text
from daguerre.train.shards import Shard

OWN = ("prompt", "messages", "tools", "template")


@dataclass(frozen=True)
class RewardedPrompt:
    """What an answer follows, or the text with its gaps; how many tokens each gap has (none: it is no template); and
    what the row has beside it, for the reward.
    """

    text: str
    gaps: tuple[int, ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class EncodedPrompt(Text):
    """The tokens of a prompt, and the row that is kept of it."""

    row: Mapping[str, Any]


@dataclass(frozen=True)
class PromptReader:
    """Makes the prompt of a row. `length`: the most tokens of an answer, or of a gap."""

    length: int

    def __call__(self, renderer: Renderer, row: object, longest: int) -> list[Text]:
        prompt = read_prompt(row, renderer, self.length)
        if prompt.gaps and renderer.config.context != "full":
            raise UnsupportedError("templates need a model with full context: give rows {'prompt': ...}")
        ids = renderer.tokenizer.encode(prompt.text.replace(MARK, ""), begins=True)
        if len(ids) + (sum(prompt.gaps) or self.length) > longest:
            raise InputError(f"they and their answers are longer than {longest} tokens")
        kept = {"text": prompt.text, "gaps": prompt.gaps, "fields": prompt.fields}
        return [EncodedPrompt(np.array(ids, dtype=np.int64), np.zeros(len(ids), dtype=bool), kept)]


class PromptSplit(SplitWriter):
    """A split of prompts, with their rows beside it."""

    def __init__(self, folder: Path, name: str, kind: np.dtype[Any], stack: ExitStack) -> None:
        super().__init__(folder, name, kind, stack)
        self.rows = stack.enter_context(atomic_write(_file(folder, name)))

    def add(self, text: Text, tokenizer: Tokenizer) -> None:
        assert isinstance(text, EncodedPrompt)
        super().add(text, tokenizer)
        self.rows.write((json.dumps(text.row) + "\n").encode())


def read_prompt(row: object, renderer: Renderer, length: int) -> RewardedPrompt:
    """The prompt of a row. InputError, in a few words, for a row that has none."""
    row = fields_of(row)
    fields = {key: value for key, value in row.items() if key not in OWN}
    if isinstance(row.get("template"), str):
        num = row["template"].count(MARK)
        fills = row.get("fills", [])
        if not num or (fills and (not isinstance(fills, list) or len(fills) != num)):
            raise InputError(f"its template has {num} gaps ({MARK}), and its fills are {len(fills)}")
        known = [len(renderer.tokenizer.encode(str(fill), begins=False)) for fill in fills]
        if 0 in known:
            raise InputError("one of its fills is empty")
        return RewardedPrompt(row["template"], tuple(known or [length] * num), fields)
    if isinstance(row.get("prompt"), str):
        return RewardedPrompt(row["prompt"], (), fields)
    if isinstance(row.get("messages"), list):
        answer = {"role": "assistant", "content": "."}
        talk = read_row({"messages": [*row["messages"], answer], "tools": row.get("tools")})
        messages, tools = talk.messages[:-1], list(talk.tools) or None  # type: ignore[union-attr]
        text = renderer.template.render(messages, tools, add_generation_prompt=True)
        return RewardedPrompt(text, (), fields | {"messages": row["messages"]})
    has = ", ".join(map(str, list(row)[:6])) or "none"
    raise InputError(f"its keys ({has}) are none of prompt, messages, template")


def prompts_of(shard: Shard) -> list[RewardedPrompt]:
    """The prompts of a split. InputError for a corpus of anything else."""
    path = _file(shard.folder, shard.split)
    if not path.is_file():
        raise InputError(f"{shard.folder} holds no prompts: give --data files of prompts (docs/reinforce.md)")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [RewardedPrompt(row["text"], tuple(row["gaps"]), row["fields"]) for row in rows]


def prompts_line(train: Shard, val: Shard) -> str:
    """What is asked, and what was left out."""
    report = json.loads((train.folder / "rows.json").read_text(encoding="utf-8"))
    left = f"; left out: {report['line']}" if report["line"] else ""
    held = "held-out rewards are of the same prompts" if val is train else f"{val.num_documents:,} held out"
    return f"{report['rows']:,} prompts, {held}{left}"


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.prompts.jsonl"
