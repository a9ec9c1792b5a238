"""What a frozen model computes of its own texts, once: the hidden states that drafts are made from, on the disk.

The backend that will decode computes them, in the type of weights in which it will, so that the head learns from the
same numbers that it reads later.

Letters: R rows, D width, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from daguerre.errors import DataError
from daguerre.model import Model
from daguerre.models.forward import DraftStep, Forward, Hidden, Layout
from daguerre.train.corpus.chat_text import ChatText

ROWS, TEXTS = "rows.bin", "texts.jsonl"
"""The files of a folder of states: records of rows, one text after the other; and the texts' places."""
PROJECTED = 64
"""Rows whose logits are in memory at a time."""


@dataclass(frozen=True)
class TextPlace:
    """A text among the rows: of which number, `first` row, how many `rows`, and the temperature it was drawn at."""

    number: int
    first: int
    rows: int
    temperature: float


def record(width: int) -> np.dtype:
    """A row's record: its hidden state (D,), the token that follows it in the text, and of the model's distribution
    there the log of the sum of exp(logits), and the most likely token.
    """
    return np.dtype([("hidden", np.float16, (width,)), ("token", np.int32), ("log_sum", np.float32), ("top", np.int32)])


class States:
    """The states of texts in a folder, to which more can be added. DataError for a damaged folder."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.kind = folder, record(width)
        folder.mkdir(parents=True, exist_ok=True)
        self.places = self._read()
        end = self.places[-1].first + self.places[-1].rows if self.places else 0
        with (folder / ROWS).open("ab") as file:
            if file.tell() < end * self.kind.itemsize:
                raise DataError(f"{folder / ROWS} is shorter than it was: remove {folder}")
            file.truncate(end * self.kind.itemsize)

    def _read(self) -> list[TextPlace]:
        path = self.folder / TEXTS
        if not path.exists():
            return []
        lines = path.read_bytes()
        whole = lines[: lines.rfind(b"\n") + 1]
        if len(whole) < len(lines):
            path.write_bytes(whole)
        return [TextPlace(**json.loads(line)) for line in whole.splitlines()]

    def add(self, model: Model, text: ChatText) -> TextPlace:
        """Compute the states of a text, and keep them."""
        rows = states_of(model, text, self.kind)
        first = self.places[-1].first + self.places[-1].rows if self.places else 0
        place = TextPlace(text.number, first, len(rows), text.temperature)
        with (self.folder / ROWS).open("ab") as file:
            file.write(rows.tobytes())
        with (self.folder / TEXTS).open("ab") as file:
            file.write(json.dumps(asdict(place)).encode() + b"\n")
        self.places.append(place)
        return place

    def read(self, places: Sequence[TextPlace]) -> np.ndarray:
        """The records of texts, one after the other."""
        size = self.kind.itemsize
        with (self.folder / ROWS).open("rb") as file:
            parts = []
            for place in places:
                file.seek(place.first * size)
                parts.append(np.frombuffer(file.read(place.rows * size), self.kind))
        return np.concatenate(parts)


def states_of(model: Model, text: ChatText, kind: np.dtype) -> np.ndarray:
    """The records of the rows that predict an answer's tokens."""
    backend, ids = model.denoiser.backend, np.array(text.prompt + text.new[:-1])
    num, wanted = len(ids), np.arange(len(text.prompt) - 1, len(ids), dtype=np.int32)
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    (answer,) = backend.forward([Forward(ids, layout, backend.cache(num), wanted, Hidden())])
    assert answer.hidden is not None
    out = np.zeros(len(wanted), kind)
    out["hidden"], out["token"] = answer.hidden, text.new
    for first in range(0, len(wanted), PROJECTED):
        some = slice(first, first + PROJECTED)
        (read,) = backend.forward([DraftStep(answer.hidden[some])])
        assert read.logits is not None
        out["top"][some] = read.logits.argmax(-1)
        most = read.logits.max(-1)
        out["log_sum"][some] = most + np.log(np.exp(read.logits - most[:, None]).sum(-1))
    return out
