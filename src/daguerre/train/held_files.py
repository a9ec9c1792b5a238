"""A user's held-out files: which they are, and their bits per byte before and after a run.

Every file is scored whole, token after token, in windows that overlap (`daguerre.scoring.windows`), so the figure is
that of `daguerre score`. The change has the standard error of a ratio over files (Cochran 1977, section 6.4): how much
it would vary with other files like these.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from daguerre.errors import UnsupportedError
from daguerre.files import write_json
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import check_layout
from daguerre.scoring.windows import score_long
from daguerre.train.shards import Shard

MOST_TOKENS = 16_384
"""Files are scored up to so many tokens in all, the first ones by hash; on two slow cores that takes seconds."""
NAMED = 4
"""Files that a line names."""
FILE = "held_files.json"
KNOWN, LZMA = 4_000_000, 6
"""Bytes of the training text that the compressor knows, whose window holds twice as many; and its preset."""


@dataclass(frozen=True)
class HeldFile:
    """A file that is never trained on: its name, where known; its tokens, `<bos>` and `<eos>` included; its bytes."""

    name: str
    tokens: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class FileBits:
    """Bits and bytes of each file, in order."""

    bits: tuple[float, ...]
    num_bytes: tuple[int, ...]

    @property
    def value(self) -> float:
        """Bits per byte of all files together."""
        return sum(self.bits) / sum(self.num_bytes)


class HeldFiles:
    """The files that a run in the folder `run` is measured on; none for a model that has no score of plain text."""

    def __init__(self, train: Shard, val: Shard, tokenizer: Tokenizer, config: ModelConfig, run: Path) -> None:
        self._train, self._val, self._tokenizer, self._run = train, val, tokenizer, run
        self.files = held_files(val) if can_score(config) and val.answers is None else []

    @property
    def num_rows(self) -> int:
        """About how many rows a score takes: windows overlap."""
        return 2 * sum(len(file.tokens) for file in self.files)

    def forget(self) -> None:
        """Remove the figures from before another run in this folder."""
        (self._run / FILE).unlink(missing_ok=True)

    def has_before(self) -> bool:
        """Whether the model that the run starts from has been scored."""
        return load_before(self._run) is not None

    def before(self, model: Backbone) -> str:
        """Score the model that a run starts from, keep the figures, and say them."""
        bits = score_files(model, self.files)
        save_before(self._run, bits)
        return f"before training: {bits.value:.3f} bits a byte of them"

    def after(self, model: Backbone) -> str:
        """Score the model, and say what the run brought."""
        after, before = score_files(model, self.files), load_before(self._run)
        if before is not None and len(before.bits) == len(after.bits):
            return change_line(before, after)
        packed = self._compressed()
        return f"held-out files: {after.value:.3f} bits a byte; lzma that knows the training text: {packed:.3f}"

    def _compressed(self) -> float:
        """Bits per byte that lzma adds for these files to the training text, of which it gets the last KNOWN bytes."""
        texts = (self._tokenizer.decode(self._train.document(index).tolist()) for index in self._known())
        known = "".join(texts).encode()[-KNOWN:]
        text = "".join(self._tokenizer.decode(file.tokens) for file in self.files).encode()
        size = len(lzma.compress(known + text, preset=LZMA)) - len(lzma.compress(known, preset=LZMA))
        return 8 * size / len(text)

    def _known(self) -> Iterator[int]:
        """The first documents of the training split that have KNOWN bytes or more."""
        total = 0
        for index in range(self._train.num_documents):
            if total >= KNOWN:
                return
            total += int(self._train.doc_bytes[index])
            yield index

    def line(self) -> str:
        """Which files are held out."""
        val, named = self._val, [file.name for file in self.files if file.name][:NAMED]
        more = f" and {val.num_documents - len(named)} more" if val.num_documents > len(named) else ""
        which = f": {', '.join(named)}{more}" if named else ""
        return f"held out, never trained on: {val.num_documents} files of {val.num_bytes:,} bytes{which}"


def held_files(val: Shard, most_tokens: int = MOST_TOKENS) -> list[HeldFile]:
    """The files of a validation split that are scored: at least one, while they have no more than so many tokens."""
    names, out, total = _names(val.folder, val.split), list[HeldFile](), 0
    for index in range(val.num_documents):
        tokens = val.document(index)
        total += len(tokens)
        if out and total > most_tokens:
            break
        name = names[index] if index < len(names) else ""
        out.append(HeldFile(name, tuple(tokens.tolist()), int(val.doc_bytes[index])))
    return [file for file in out if file.num_bytes]


def _names(folder: Path, split: str) -> list[str]:
    """The files of a split, by the corpus's list of documents; none where it has no such list."""
    listed = folder / "manifest.jsonl"
    if not listed.exists():
        return []
    documents = [json.loads(line) for line in listed.read_text(encoding="utf-8").splitlines()]
    return [document["file"] for document in documents if document["split"] == split]


def can_score(config: ModelConfig) -> bool:
    """Whether a model has a likelihood of plain text, token after token."""
    try:
        check_layout(config, "ar", None)
    except UnsupportedError:
        return False
    return bool(config.first) and config.shift


def score_files(model: Backbone, files: Sequence[HeldFile]) -> FileBits:
    """The bits of files under a model as it is. <eos> is not scored: it has no bytes."""
    backend = BackboneDenoiser(model, backend="torch").backend
    values = [score_long(backend, file.tokens[:-1], kind="ar").value / np.log(2) for file in files]
    return FileBits(tuple(values), tuple(file.num_bytes for file in files))


def change_line(before: FileBits, after: FileBits) -> str:
    """Bits per byte before and after, and the change with its standard error."""
    b, a, size = (np.array(values, dtype=np.float64) for values in (before.bits, after.bits, after.num_bytes))
    change, num = after.value - before.value, len(size)
    rest = (a - b) - change * size
    error = f" ± {np.sqrt(num / (num - 1) * (rest**2).sum()) / size.sum():.3f}" if num > 1 else ""
    better = int((a < b).sum())
    word = "better" if change < 0 else "WORSE: fewer minutes or lower rates may help"
    return (
        f"held-out files: {before.value:.3f} bits a byte before, {after.value:.3f} after ({change:+.3f}{error}), "
        f"{better} of {num} files better: {word}"
    )


def save_before(run: Path, bits: FileBits) -> None:
    """Keep the figures from before a run, for when it is resumed."""
    write_json(run / FILE, asdict(bits))


def load_before(run: Path) -> FileBits | None:
    """The figures from before a run; None where there are none."""
    try:
        kept = json.loads((run / FILE).read_text(encoding="utf-8"))
        return FileBits(tuple(kept["bits"]), tuple(kept["num_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
