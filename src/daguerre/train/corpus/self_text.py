"""A corpus of a model's own text and of text from another corpus, half each, for training its drafts.

What a model writes is what its drafts are verified on. The text continues prompts of the corpus: half of it is sampled
at temperature 1, half is greedy and ends where it begins to loop. It is written in parts, each a file of the folder
`parts` from when it is finished until the corpus is whole, so that an interrupted run can be continued.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample
from daguerre.errors import DataError, InputError
from daguerre.files import write_json
from daguerre.model import Model
from daguerre.models.forward import Answer, Backend, DraftStep, Forward
from daguerre.models.tokenizer import NUM_SPECIALS, Tokenizer
from daguerre.models.weights import sha256_of
from daguerre.trace import Event
from daguerre.train.shards import Shard, write_tokens

PROMPT = 64, 128
"""The fewest and the most tokens of a prompt."""
LONGEST = 511
"""Tokens of a text, its prompt included; with <bos> they are a window of the recipes."""
SHORTEST = 8
"""A text of fewer new tokens is left out."""
LOOP = 6
"""Greedy text ends before the first run of so many tokens that it has had before."""
TOGETHER = 48
"""Texts that are written together."""
TEMPERATURES = 1.0, 0.0
PART = 100_000
"""New tokens of a part. A part ends with few texts in a batch, so small parts are slow."""
PARTS = "parts"
"""Folder of the finished parts, in the folder of the corpus."""
Progress = Callable[[int, int], None]
"""Called with how many new tokens were written, and how many of them are in finished parts."""


@dataclass(frozen=True)
class SelfText:
    """Token ids of a prompt, and of what the model wrote after it."""

    prompt: list[int]
    new: list[int]


@dataclass(frozen=True)
class SelfTextSummary:
    """What was written: texts of the model, its new tokens in them, and tokens of the corpus."""

    texts: int
    new_tokens: int
    corpus_tokens: int


def write_self_text(
    model: Model,
    corpus: Path,
    out: Path,
    tokens: int,
    *,
    seed: int = 0,
    progress: Progress = lambda done, kept: None,
) -> SelfTextSummary:
    """Write at least `tokens` new tokens of a model's text, and as much text of the corpus, as the training split of a
    corpus `out`; its validation split is that of `corpus`.

    A function of the weights, the corpus, `tokens` and `seed` alone, however often it was interrupted: finished parts
    in `out` are not written again, and are removed when the corpus is whole. InputError for fewer than one token,
    where `out` is the corpus itself, and where it holds parts of other arguments; DataError for a damaged part, a
    corpus of another vocabulary, and one without a long enough text.
    """
    if tokens < 1:
        raise InputError(f"the number of tokens must be 1 or more, not {tokens}")
    if out.resolve() == corpus.resolve():
        raise InputError(f"{out} is the corpus itself: choose another folder")
    shard = Shard.open(corpus, "train", model.tokenizer.sha256)
    folder, settings = out / PARTS, _settings(model, shard, tokens, seed)
    texts, kept, finished = list[SelfText](), 0, _read_parts(folder, settings)
    for temperature in TEMPERATURES:
        goal, number = kept + (tokens + 1) // 2, 0
        while kept < goal:
            path = folder / f"{temperature:g}-{number}.json"
            part = finished.get(path.name)
            if part is None:
                rng = np.random.default_rng([seed, round(1000 * temperature), number])
                part = self_texts(model, shard, temperature, min(PART, goal - kept), rng, _after(kept, progress))
                folder.mkdir(parents=True, exist_ok=True)
                write_json(path, {"settings": settings, "texts": [asdict(text) for text in part]})
            texts += part
            kept, number = kept + _new_tokens(part), number + 1
            progress(kept, kept)
    summary = write_corpus(out, corpus, texts, model.tokenizer, seed)
    shutil.rmtree(folder)
    return summary


def self_texts(
    model: Model,
    shard: Shard,
    temperature: float,
    tokens: int,
    rng: np.random.Generator,
    progress: Callable[[int], None] = lambda done: None,
) -> list[SelfText]:
    """Texts of at least so many new tokens in all, at temperature 0 up to where each begins to loop.

    Every text that is begun is finished, so that short ones are no likelier; none is begun once all have enough
    tokens. `progress` is called with how many new tokens the finished texts have.
    """
    out: list[SelfText] = []
    live: list[_Writing] = []
    written, together = 0, min(TOGETHER, 1 + tokens // LONGEST)  # no more texts than so few tokens need
    while live or written < tokens:
        while len(live) < together and written + _new_tokens(writing.text for writing in live) < tokens:
            live.append(_Writing(model, draw_prompt(shard, rng), temperature, int(rng.integers(2**62))))
        _step(model.denoiser.backend, live)
        for writing in [writing for writing in live if writing.batch is None]:
            live.remove(writing)
            if len(writing.text.new) >= SHORTEST:
                out.append(writing.text)
                written += len(writing.text.new)
                progress(written)
    return out


def _after(kept: int, progress: Progress) -> Callable[[int], None]:
    return lambda done: progress(kept + done, kept)


def _new_tokens(texts: Iterable[SelfText]) -> int:
    return sum(len(text.new) for text in texts)


def _settings(model: Model, shard: Shard, tokens: int, seed: int) -> dict[str, Any]:
    """What the texts are a function of, as JSON: weights and corpus by their SHA-256."""
    weights = hashlib.sha256(repr((model, model.config)).encode())
    for name, tensor in model.backbone.state_dict().items():
        weights.update(name.encode())
        weights.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    corpus = sha256_of(shard.folder / f"{shard.split}.bin")
    tokenizer = model.tokenizer.sha256
    return {"model": weights.hexdigest(), "corpus": corpus, "tokenizer": tokenizer, "tokens": tokens, "seed": seed}


def _read_parts(folder: Path, settings: dict[str, Any]) -> dict[str, list[SelfText]]:
    """The finished parts of a folder by file name. InputError for other settings, DataError for a damaged file."""
    parts: dict[str, list[SelfText]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            part = json.loads(path.read_bytes())
            before, texts = part["settings"], [SelfText(**text) for text in part["texts"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged: remove it, and run the same command again") from error
        if others := [name for name, value in settings.items() if before.get(name) != value]:
            raise InputError(
                f"{folder} holds unfinished text of another {' and '.join(others)}: remove this folder, or choose "
                "another one for the corpus"
            )
        parts[path.name] = texts
    return parts


class _Writing:
    """A text in progress: `text` so far, and the `batch` of forwards that it waits for; None once it is over."""

    def __init__(self, model: Model, prompt: list[int], temperature: float, seed: int) -> None:
        decode = Decode(mode="ar", temperature=temperature, seed=seed, stop_loops=False)
        request = Request.of("generate", prompt, LONGEST - len(prompt), decode, heal=False)
        plan = plan_of(model.denoiser, model.tokenizer, request)
        self.sample, self.text = Sample(model.denoiser, plan, 0, None), SelfText(prompt, [])
        self.batch: list[Forward | DraftStep] | None = None
        self._greedy = temperature == 0
        self.advance(None)

    def advance(self, answers: list[Answer] | None) -> None:
        """Run up to the next forwards; greedy text that begins to loop loses the repetition, and is over."""
        item = self.sample.advance(answers)
        while isinstance(item, Event):
            self.text.new.extend(token for token in item.decision.tokens.tolist() if token >= NUM_SPECIALS)
            item = self.sample.advance()
        self.batch = item
        if self._greedy and loops(self.text.new):
            del self.text.new[-LOOP:]
            self.batch = None


def _step(backend: Backend, live: Sequence[_Writing]) -> None:
    """One batch: the next forwards of every text."""
    batches = [writing.batch or [] for writing in live]
    answers = iter(backend.forward([forward for batch in batches for forward in batch]))
    for writing, batch in zip(live, batches, strict=True):
        writing.advance([next(answers) for _ in batch])


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last LOOP tokens stood before in them, as a run."""
    end = list(tokens[-LOOP:])
    return any(list(tokens[i : i + LOOP]) == end for i in range(len(tokens) - LOOP))


def draw_prompt(shard: Shard, rng: np.random.Generator) -> list[int]:
    """A prompt around a uniformly drawn token. DataError if the texts are too short."""
    for _ in range(1000):
        length, at = int(rng.integers(PROMPT[0], PROMPT[1] + 1)), int(rng.integers(max(1, shard.num_tokens)))
        document = int(np.searchsorted(shard.starts, at, side="right")) - 1
        start, end = int(shard.starts[document]) + 1, int(shard.starts[document + 1]) - 1
        if end - start >= length:
            first = min(max(start, at), end - length)
            ids: list[int] = shard.tokens[first : first + length].tolist()
            if min(ids) >= NUM_SPECIALS:
                return ids
    raise DataError(f"{shard.folder} has no texts of {PROMPT[1]} tokens to continue: take a larger corpus")


def write_corpus(
    out: Path, corpus: Path, texts: Sequence[SelfText], tokenizer: Tokenizer, seed: int
) -> SelfTextSummary:
    """Write texts of a model, and random texts of a corpus of as many tokens in all, or all it has, as a corpus."""
    train, val = (Shard.open(corpus, split, tokenizer.sha256) for split in ("train", "val"))
    order = np.random.default_rng([seed, 1]).permutation(train.num_documents)
    wanted = sum(len(text.prompt) + len(text.new) for text in texts)
    ends = np.cumsum(np.diff(train.starts)[order])
    chosen = np.sort(order[: int(np.searchsorted(ends, wanted)) + 1])

    def documents() -> Iterator[tuple[np.ndarray[Any, Any], int]]:
        for text in texts:
            ids = text.prompt + text.new
            yield np.array(ids), len(tokenizer.decode_bytes(ids))
        yield from _documents(train, chosen)

    given = [len(text.prompt) for text in texts] + [0] * len(chosen)
    splits = {"train": documents(), "val": _documents(val, range(val.num_documents))}
    write_tokens(out, splits, tokenizer, {"train": given})
    corpus_tokens = int(np.diff(train.starts)[chosen].sum())
    return SelfTextSummary(len(texts), _new_tokens(texts), corpus_tokens)


def _documents(shard: Shard, chosen: Iterable[int]) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    for index in chosen:
        yield shard.document(int(index))[1:-1], int(shard.doc_bytes[index])
