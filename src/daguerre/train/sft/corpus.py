"""Files of prompts and answers as a corpus: rows are read, written by the chat template, and encoded one at a time.

A row is held out by a hash of what it says, so that the same row is always on the same side.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.files import atomic_write, write_json
from daguerre.models.core.config import ModelConfig
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.readers import read_tokenizer
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_files import CONFIG as PUBLISHED
from daguerre.train.sft.files import data_files, rows_of
from daguerre.train.sft.formats import read_row
from daguerre.train.sft.rendering import Renderer
from daguerre.train.sft.texts import Text
from daguerre.train.shards import FORMAT, META, TOKEN_TYPE, Shard, read_meta, save_array

FEW = 64
"""Rows that are read before the first is written."""
Reads = Callable[[Renderer, object, int], list[Text]]
"""Makes the texts of a row of a file, of at most so many tokens. InputError, in a few words, where it has none."""
Hashed = tuple[float, list[Text]]
"""The hash of a row, as a number in [0, 1), and its texts."""
NAMED = 3
"""How many of the rows that are left out for one reason a line names by their places."""
REPORT = "rows.json"
"""The file in a corpus that says how many rows were read, and which were left out and why."""


@dataclass
class Left:
    """Rows that are left out: how many for each reason, and where the first ones are."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, why: str, place: str) -> None:
        self.counts[why] += 1
        if len(named := self.places.setdefault(why, [])) < NAMED:
            named.append(place)

    def line(self) -> str:
        """All of it, in one line."""
        parts = []
        for why, count in self.counts.most_common():
            named = self.places[why]
            parts.append(f"{count:,} since {why} ({', '.join(named)}{', ...' if count > len(named) else ''})")
        return "; ".join(parts)


def answer_texts(renderer: Renderer, row: object, longest: int) -> list[Text]:
    """The texts of a row of prompts and answers, of which long ones become several."""
    return [part for text in renderer.texts(read_row(row)) for part in windows(text, longest)]


def windows(text: Text, longest: int) -> list[Text]:
    """A text as one, or as windows of at most so many tokens, which begin with a quarter of the one before them for the
    model to read. Every token of an answer is learned in one of them; those without any are left out.
    """
    parts, known, start, num = list[Text](), 0, 0, len(text.tokens)
    if num <= longest:
        return [text]
    while known < num:
        end = min(start + longest, num)
        answer = text.answer[start:end].copy()
        answer[: known - start] = False
        parts.append(Text(text.tokens[start:end], answer))
        known, start = end, end - longest // 4
    return [part for part in parts if part.answer.any()]


class SplitWriter:
    """A split that is being written."""

    def __init__(self, folder: Path, name: str, kind: np.dtype[Any], stack: ExitStack) -> None:
        self.name, self.kind, self.starts, self.num_bytes = name, kind, [0], list[int]()
        self.tokens: IO[bytes] = stack.enter_context(atomic_write(folder / f"{name}.bin"))
        self.answers: IO[bytes] = stack.enter_context(atomic_write(folder / f"{name}.answers.bin"))

    def add(self, text: Text, tokenizer: Tokenizer) -> None:
        self.tokens.write(text.tokens.astype(self.kind).tobytes())
        self.answers.write(text.answer.astype(np.uint8).tobytes())
        self.starts.append(self.starts[-1] + len(text.tokens))
        self.num_bytes.append(len(tokenizer.decode_bytes(text.tokens.tolist())))

    def close(self, folder: Path) -> None:
        save_array(folder / f"{self.name}.starts.npy", self.starts)
        save_array(folder / f"{self.name}.bytes.npy", self.num_bytes)

    def facts(self) -> dict[str, int]:
        return {"tokens": self.starts[-1], "bytes": sum(self.num_bytes), "documents": len(self.num_bytes)}


@dataclass(frozen=True)
class AnswerFiles:
    """Files of prompts and answers. Called with a model's tokenizer and config, it writes them into `out` as a corpus.

    longest   tokens of the longest text; longer ones become several (pairs: are left out)
    held_out  share of the rows that is held out
    reads     makes the texts of a row; `pairs`: always two, one to be preferred to the other
    split     writes those of a split
    """

    paths: Sequence[Path]
    out: Path
    longest: int
    held_out: float
    reads: Reads = answer_texts
    pairs: bool = False
    split: type[SplitWriter] = SplitWriter

    def __call__(self, tokenizer: Tokenizer, config: ModelConfig) -> Path:
        files = data_files(self.paths)
        left, renderer = Left(), Renderer(tokenizer, config)
        rows = with_held_out(self._rows(files, renderer, left), self.held_out)
        if (first := next(rows, None)) is None:
            named = ", ".join(file.name for file in files[:NAMED]) + (", ..." if len(files) > NAMED else "")
            raise DataError(f"no row of {named} can be trained on: {left.line() or 'there is none'}")
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / META).unlink(missing_ok=True)
        kind, num = TOKEN_TYPE if config.vocab_size <= 65536 else np.dtype("<u4"), 0
        with ExitStack() as stack:
            splits = {name: self.split(self.out, name, kind, stack) for name in ("train", "val")}
            for held, texts in chain([first], rows):
                num += 1
                for text in texts:
                    splits["val" if held else "train"].add(text, tokenizer)
        for split in splits.values():
            split.close(self.out)
        self._finish(splits, tokenizer, kind, {"rows": num, "left_out": left.counts, "line": left.line()})
        return self.out

    def _rows(self, files: Sequence[Path], renderer: Renderer, left: Left) -> Iterator[Hashed]:
        """Rows that have a text, each with its hash."""
        for file in files:
            for number, row in rows_of(file):
                place = f"{file.name}:{number}"
                try:
                    if isinstance(row, InputError):
                        raise row
                    texts = self.reads(renderer, row, self.longest)
                except InputError as error:
                    left.add(str(error), place)
                    continue
                said = json.dumps(row, sort_keys=True, default=str).encode()
                yield int(hashlib.sha256(said).hexdigest()[:8], 16) / 2**32, texts

    def _finish(self, splits: dict[str, SplitWriter], tokenizer: Tokenizer, kind: Any, report: dict[str, Any]) -> None:
        write_tokenizer(self.out, tokenizer)
        write_json(self.out / REPORT, report)
        meta = {
            "format": FORMAT,
            "tokenizer_sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "token_type": kind.str,
            "splits": {name: split.facts() for name, split in splits.items()},
            **({"pairs": True} if self.pairs else {}),
        }
        write_json(self.out / META, meta)


def with_held_out(rows: Iterator[Hashed], share: float) -> Iterator[tuple[bool, list[Text]]]:
    """Rows, and whether each is held out: where its hash is below `share`. Of two rows or more there is at least one on
    either side, among the first FEW.
    """
    few = list(islice(rows, FEW))
    held = [place < share for place, _ in few]
    if len(few) > 1 and len(set(held)) == 1:
        order = sorted(range(len(few)), key=lambda index: few[index][0])
        held[order[-1] if held[0] else order[0]] ^= True
    elif len(few) == 1:
        held = [False]
    yield from ((is_held, texts) for is_held, (_, texts) in zip(held, few, strict=True))
    yield from ((place < share, texts) for place, texts in rows)


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """The tokenizer of a corpus, of which a run that is resumed reads those of Daguerre's own layout."""
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(tokenizer.to_bytes())
    if isinstance(tokenizer, PublishedTokenizer):
        write_json(folder / PUBLISHED, tokenizer.config)


def answers_line(train: Shard, val: Shard) -> str:
    """What is trained on, and what was left out."""
    report = json.loads((train.folder / REPORT).read_text(encoding="utf-8"))
    assert train.answers is not None
    num = int(np.count_nonzero(train.answers))
    held = "the held-out figures are of the training rows" if val is train else f"{val.num_documents:,} texts held out"
    left = f"; left out: {report['line']}" if report["line"] else ""
    return (
        f"{report['rows']:,} rows: {train.num_documents:,} texts of {train.num_tokens:,} tokens, {num:,} of them "
        f"answers; {held}{left}"
    )


def is_pairs(folder: Path) -> bool:
    """Whether the texts of a corpus come in pairs, of which the first is to be preferred."""
    return bool(read_meta(folder).get("pairs"))


def first_prompt(folder: Path) -> str | None:
    """What is before the first answer that is held out of a corpus, or the first prompt; None for plain text."""
    if not (folder / REPORT).is_file():
        return None
    shards = (Shard.open(folder, split) for split in ("val", "train"))
    shard = next(shard for shard in shards if shard.num_documents)
    assert shard.answers is not None
    start, end = shard.starts[:2]
    num = next(iter(np.flatnonzero(shard.answers[start:end]).tolist()), end - start)  # of prompts alone there is none
    return tokenizer_in(folder).decode(shard.tokens[start : start + num].tolist())


def has_chat_template(folder: Path) -> bool:
    """Whether a corpus was written by a chat template of its model's own."""
    return (folder / REPORT).is_file() and getattr(tokenizer_in(folder), "chat_template", None) is not None


def tokenizer_in(folder: Path) -> Tokenizer:
    """The tokenizer that `write_tokenizer` wrote."""
    if (folder / PUBLISHED).is_file():
        tokenizer = read_tokenizer(folder)
        assert tokenizer is not None
        return tokenizer
    return Tokenizer.load(folder / "tokenizer.json")
