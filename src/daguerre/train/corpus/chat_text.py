"""Conversations that a chat model writes by itself, for training its drafts (`train.drafts`): prompts, and its answers.

A chat model that is given its template up to the user's text goes on with a prompt (Magpie, arXiv 2406.08464); prompts
of files are used beside these. An answer keeps the token that ends it; where a greedy one begins to loop it is cut.
Texts are lines of a JSON Lines file, which are added as they are finished, so that an interrupted run goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.errors import DataError, InputError
from daguerre.files import write_json
from daguerre.model import Model
from daguerre.train.sft.files import data_files, rows_of

TEXTS, SETTINGS = "texts.jsonl", "settings.json"
"""The files of a folder of conversations."""
TOGETHER = 32
"""Conversations that are written together."""
LONGEST_PROMPT, LONGEST_TOLD, LONGEST_ANSWER = 96, 512, 192
"""Tokens of a prompt that the model writes, of one of a file with its template, and of an answer, at most."""
SHORTEST_PROMPT, SHORTEST_ANSWER = 4, 8
"""Shorter prompts and answers are left out."""
TEMPERATURES = 0.0, 0.7, 0.0, 1.0
"""Of answers, in turn: what is greedy is drafted best, and asked for most."""
LOOP = 20
"""A greedy answer is cut before the first run of so many tokens that it has had before."""
Progress = Callable[[int, float], None]
"""Called with how many tokens were written in all, and how many a second since this run began."""


@dataclass(frozen=True)
class ChatText:
    """Token ids of a conversation up to an answer, and of the answer, which was drawn at a temperature."""

    number: int
    prompt: list[int]
    new: list[int]
    temperature: float


def write_chat_text(
    model: Model,
    out: Path,
    tokens: int,
    prompts: Sequence[Path] = (),
    *,
    seed: int = 0,
    progress: Progress = lambda done, speed: None,
) -> int:
    """Write conversations until their answers have so many tokens in all; returns how many they have.

    prompts   files or folders of JSON, JSON Lines or Parquet, whose rows have an instruction, a question, a prompt or
              messages; every second conversation begins with one of them

    InputError for fewer than one token, for a model without a chat template, and where `out` holds conversations of
    other settings; DataError for a file that cannot be read.
    """
    if tokens < 1:
        raise InputError(f"the number of tokens must be 1 or more, not {tokens}")
    told = list(told_prompts(prompts))
    settings = {"model": repr(model), "prompts": len(told), "seed": seed}
    _check_settings(out, settings)
    kept = read_chat_texts(out) if (out / TEXTS).exists() else []
    began, before = time.monotonic(), sum(len(text.new) for text in kept)
    written = before
    writer = _Conversing(model, told, seed, {text.number for text in kept})
    with (out / TEXTS).open("ab") as file:
        file.truncate(_whole_lines(out / TEXTS))
        while written < tokens:
            for text in writer.step():
                file.write(json.dumps(asdict(text)).encode() + b"\n")
                file.flush()
                written += len(text.new)
                progress(written, (written - before) / max(time.monotonic() - began, 1e-9))
    return written


def read_chat_texts(folder: Path) -> list[ChatText]:
    """The conversations of a folder. DataError for what is none of its lines."""
    try:
        lines = (folder / TEXTS).read_bytes()
        return [ChatText(**json.loads(line)) for line in lines[: lines.rfind(b"\n") + 1].splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{folder / TEXTS} cannot be read ({error}): write it again with `daguerre data self`"
        ) from None


def _whole_lines(path: Path) -> int:
    """Bytes of a file up to the end of its last whole line."""
    return path.read_bytes().rfind(b"\n") + 1


def _check_settings(out: Path, settings: Mapping[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if not (out / SETTINGS).exists():
        write_json(out / SETTINGS, settings)
    elif json.loads((out / SETTINGS).read_bytes()) != settings:
        raise InputError(f"{out} holds conversations of another model, other prompts or another seed: choose another")


def told_prompts(paths: Sequence[Path]) -> Iterator[str]:
    """The user's texts in the rows of files. DataError where there are none in them."""
    for path in data_files(paths) if paths else []:
        found = [text for _, row in rows_of(path) if isinstance(row, Mapping) and (text := _prompt_of(row))]
        if not found:
            raise DataError(f"{path} has no prompts: its rows need an instruction, a question, a prompt or messages")
        yield from found


def _prompt_of(row: Mapping[str, Any]) -> str:
    """The user's text of a row, "" where it has none."""
    messages = row.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[0], Mapping):
        row = {"prompt": next((one.get("content") for one in messages if one.get("role") == "user"), "")}
    text = next((row[key] for key in ("instruction", "question", "prompt") if isinstance(row.get(key), str)), "")
    more = row.get("input")
    return f"{text}\n\n{more}" if text and isinstance(more, str) and more else text


class _Conversing:
    """Conversations in progress, in an engine that is stepped; `done`: the numbers of those that are there."""

    def __init__(self, model: Model, told: Sequence[str], seed: int, done: set[int]) -> None:
        self._model, self._told, self._seed, self._done = model, told, seed, done
        self._engine, self._next = Engine(model, max_running=TOGETHER), 0
        self._live: list[tuple[Job, Callable[[list[int]], ChatText | None]]] = []
        self._begun = opening(model)
        self._order = np.random.default_rng([seed, 1]).permutation(len(told))
        self._seen = set[tuple[int, ...]]()

    def step(self) -> Iterator[ChatText]:
        """Compute a batch; the answers that it finished."""
        while len(self._live) < TOGETHER:
            self._begin(self._next)
            self._next += 1
        self._engine.step()
        for one in [one for one in self._live if one[0].done]:
            self._live.remove(one)
            job, then = one
            job.result()  # which raises what ended it
            text = then([token for event in job.samples[0].events for token in event.decision.tokens.tolist()])
            if text is not None and len(text.new) >= SHORTEST_ANSWER:
                yield text

    def _begin(self, number: int) -> None:
        if number in self._done:
            return
        if self._told and number % 2:
            self._answer(number, self._told[self._order[number // 2 % len(self._told)]])
            return
        options = {"temperature": 1.0, "seed": self._seed + number}
        self._ask(self._begun, LONGEST_PROMPT, options, partial(self._prompted, number))

    def _prompted(self, number: int, ids: list[int]) -> None:
        """Answer a prompt that the model has written, and ended, unless it has written it before."""
        ends, begins = ids[-1:], tuple(ids[:16])
        if not {*ends} <= {*self._model.config.ends} or len(ids) <= SHORTEST_PROMPT or begins in self._seen:
            return
        self._seen.add(begins)
        self._answer(number, self._model.tokenizer.decode(ids[:-1]))

    def _answer(self, number: int, prompt: str) -> None:
        ids = self._model.chat_prompt([{"role": "user", "content": prompt}])
        if len(ids) > LONGEST_TOLD:
            return
        temperature = TEMPERATURES[number // 2 % len(TEMPERATURES)]
        options = {"temperature": temperature, "seed": self._seed + number}
        self._ask(ids, LONGEST_ANSWER, options, lambda new: ChatText(number, ids, cut(new, temperature), temperature))

    def _ask(self, ids: list[int], most: int, options: Mapping[str, Any], then: Callable[[list[int]], Any]) -> None:
        job = self._engine.generate(ids, most, mode="ar", heal=False, stop_loops=True, **options)
        self._live.append((job, then))


def opening(model: Model) -> list[int]:
    """What a conversation has before the first text of a user, token ids: what two conversations begin with."""
    one, other = (model.chat_prompt([{"role": "user", "content": text}]) for text in ("Why", "7"))
    num = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[:num]


def cut(ids: list[int], temperature: float) -> list[int]:
    """An answer; a greedy one up to where it begins to loop."""
    if temperature:
        return ids
    runs = set[tuple[int, ...]]()
    for end in range(LOOP, len(ids) + 1):
        run = tuple(ids[end - LOOP : end])
        if run in runs:
            return ids[: end - LOOP]
        runs.add(run)
    return ids
