"""A user's folder as a corpus: its files, which of them are held out, and a vocabulary of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from daguerre.files import write_json
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.bpe import train_bpe
from daguerre.train.corpus.document import CorpusDocument, Harvest
from daguerre.train.corpus.gather import gather_folder
from daguerre.train.corpus.harvest import always
from daguerre.train.corpus.languages import counted, language_of
from daguerre.train.corpus.report import write_manifest
from daguerre.train.shards import META, Shard, write_shards

VOCABULARY, SMALL_VOCABULARY, BYTES_A_TOKEN = 2048, 512, 200
"""Tokens of a vocabulary of its own, those of the smallest one, and bytes of text for each token."""
PYTHON, PROMPT = "def ", 32
"""How a sample of Python begins, and the characters of another beginning."""
LEFT_OUT = "left_out.json"
"""The file in a corpus that says which files were left out: {reason: number}."""


@dataclass(frozen=True)
class UserFolder:
    """A folder whose files are to be tokenized: "python", or "text" of any language (the key `files` of a recipe).

    About one file in ten (by hash) is held out, and with two files or more at least one. The files pass the corpus
    filters; no license is needed. `has_time` is asked before each file is read; where it says no, the rest is left out.
    """

    path: Path
    files: str = "python"
    has_time: Callable[[], bool] = always

    @cached_property
    def kept(self) -> Harvest:
        """What is read of it, once. DataError when the folder is missing or nothing is left of it."""
        return gather_folder(
            self.path, "pass --data with a folder", any_language=self.files == "text", has_time=self.has_time
        )

    @cached_property
    def splits(self) -> dict[str, list[CorpusDocument]]:
        """The documents to train on, and those that are held out."""
        kept = sorted(self.kept.documents, key=lambda document: document.sha256)
        val = [document for document in kept if int(document.sha256[:8], 16) % 10 == 0] or kept[:1]
        if len(val) == len(kept):
            val = kept[:1] if len(kept) > 1 else []
        held = {document.sha256 for document in val}
        return {"train": [document for document in kept if document.sha256 not in held], "val": val}

    def vocabulary(self) -> Tokenizer:
        """A vocabulary of what is trained on; the held-out files have no part in it."""
        texts = [document.text for document in self.splits["train"]]
        size = sum(document.num_bytes for document in self.splits["train"]) // BYTES_A_TOKEN
        return train_bpe(texts, max(SMALL_VOCABULARY, min(VOCABULARY, size)), exact=False)

    def write(self, out: str | os.PathLike[str], tokenizer: Tokenizer) -> None:
        """Tokenize it into a corpus."""
        splits, folder = self.splits, Path(out)  # nothing is written when there is nothing to read
        folder.mkdir(parents=True, exist_ok=True)
        (folder / META).unlink(missing_ok=True)  # a folder with one is whole, its manifest included
        write_manifest(folder, splits)
        write_json(folder / LEFT_OUT, self.kept.dropped)
        write_shards(out, {split: (d.text for d in documents) for split, documents in splits.items()}, tokenizer)


def own_vocabulary(data: object) -> Tokenizer:
    """The vocabulary of a user's folder, or the one that a corpus is written in."""
    return data.vocabulary() if isinstance(data, UserFolder) else Tokenizer.load(Path(str(data)) / "tokenizer.json")


def files_read(corpus: Path) -> str:
    """Which files of a user's folder a corpus has, and how many were left out; "" for another corpus."""
    try:
        dropped: dict[str, int] = json.loads((corpus / LEFT_OUT).read_text(encoding="utf-8"))
        listed = (corpus / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return f"read {counted([json.loads(line)['file'] for line in listed])}{_left_out(dropped)}"


def sample_prompt(corpus: Path) -> str:
    """How a sample of a model of this corpus begins: as Python where most files are, else as a held-out file does."""
    listed = [json.loads(line) for line in (corpus / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    python = sum(language_of(each["file"]) == "Python" for each in listed)
    val = Shard.open(corpus, "val")
    if 2 * python >= len(listed) or not val.num_documents:
        return PYTHON
    text = Tokenizer.load(corpus / "tokenizer.json").decode(val.document(0).tolist()).lstrip()
    line = text.split("\n", 1)[0]
    return line if len(line) <= PROMPT else line[:PROMPT].rsplit(" ", 1)[0]


def _left_out(dropped: dict[str, int]) -> str:
    reasons: Sequence[str] = [f"{count:,} {reason}" for reason, count in dropped.items()]
    return f"; left out: {', '.join(reasons)}" if reasons else ""
