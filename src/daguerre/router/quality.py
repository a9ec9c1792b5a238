"""P(right): how likely each backend's answer to a request is right, fitted by `daguerre route fit`.

Three models are added up for each backend, in logits: a logistic one of measures that mean the same in every subject
(`measures.py`), one of hashed groups of characters, which knows subjects that it has seen, and a forest on the measures
(`trees.py`). A scale that all backends share and a shift of each, fitted on answers that no model had seen, make the
sum a probability. To predict, NumPy is enough.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from daguerre.errors import DataError
from daguerre.router.measures import MEASURES, ROWS, SETTINGS_HASH, distinct, ends, hashes, measured, rarity, text_of
from daguerre.router.reading import ParsedRequest
from daguerre.router.trees import Forest

FORMAT = "daguerre quality"
VERSION = 2
CLIP = 4.0
"""Standard deviations beyond which a measure counts no more."""
SHARE = 0.5
"""What the model of characters counts beside that of measures, in logits."""
TREES = 0.5
"""What the forest counts beside both."""
LEAST = 0.01
"""The forest's shares are between this and 1 less it."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class QualityModel:
    """B backends, M measures, R rows of hashes.

    backends  their names
    counts    uint16 (R,): in how many of `requests` requests a group of characters was found
    center    float32 (M,), and `spread`, of the measures
    weights   float32 (M, B), for measures as standard deviations, and `bias` (B,)
    grams     float16 (R, B): for groups of characters, and `shift` (B,)
    trees     on measures as standard deviations
    scales    float32 (B, 2): the factor of the summed logits, and what is added, so that they are calibrated
    report    how it did on groups that it had not seen
    """

    backends: tuple[str, ...]
    requests: int
    counts: NDArray[np.uint16]
    center: Floats
    spread: Floats
    weights: Floats
    bias: Floats
    grams: NDArray[np.float16]
    shift: Floats
    trees: Forest
    scales: Floats
    report: dict[str, Any]

    def predict(self, reading: ParsedRequest) -> dict[str, float]:
        """The probability that each backend's answer is right."""
        logits = self.scales[:, 0] * self.logits(reading) + self.scales[:, 1]
        return dict(zip(self.backends, (1 / (1 + np.exp(-logits))).tolist(), strict=True))

    def logits(self, reading: ParsedRequest) -> NDArray[np.float64]:
        """Of all backends, before the calibration, (B,)."""
        places = hashes(ends(text_of(reading)))
        values = np.concatenate([measured(reading), rarity(places, self.counts, self.requests)])
        measures = standard(values, self.center, self.spread)
        dense = measures @ self.weights + self.bias
        rows = distinct(places)
        chars = self._table[rows].sum(axis=0, dtype=np.float64) / max(len(rows), 1) ** 0.5 + self.shift
        shares = np.clip(self.trees.of(measures), LEAST, 1 - LEAST)
        linear = (1 - SHARE) * dense + SHARE * chars
        return np.asarray((1 - TREES) * linear + TREES * np.log(shares / (1 - shares)), np.float64)

    @cached_property
    def _table(self) -> Floats:
        """`grams` as what is added up faster."""
        return self.grams.astype(np.float32)

    def save(self, path: Path) -> None:
        """Plain arrays and a JSON header; the same bytes for the same model."""
        header = {"format": FORMAT, "version": VERSION, "settings": SETTINGS_HASH, "parts": PARTS}
        header |= {"backends": list(self.backends), "requests": self.requests, "report": self.report}
        with path.open("wb") as file:
            arrays = {name: getattr(self, name) for name in ARRAYS} | vars(self.trees)
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)

    @classmethod
    def load(cls, path: Path) -> QualityModel:
        """The model of a file. DataError for one that is none, is damaged, or was fitted with other measures."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        try:
            with np.load(BytesIO(data), allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                arrays = {name: file[name] for name in ARRAYS | TREE_ARRAYS}
            known = header["format"] == FORMAT and header["version"] == VERSION
            backends, requests = tuple(header["backends"]), int(header["requests"])
            report = dict(header["report"])
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise DataError(f"{path} is no file of `daguerre route fit` ({error}): fit it again") from None
        if not known or (header.get("settings"), header.get("parts")) != (SETTINGS_HASH, PARTS):
            raise DataError(f"{path} was fitted by another version of daguerre: run `daguerre route fit` again")
        if not backends or not all(isinstance(name, str) for name in backends):
            raise DataError(f"{path} names no backends: run `daguerre route fit` again")
        long = {"B": len(backends), "M": len(MEASURES), "R": ROWS, "2": 2}
        long |= {"T": arrays["roots"].size, "N": arrays["columns"].size}
        for name, (kind, shape) in (ARRAYS | TREE_ARRAYS).items():
            sizes = tuple(long[one] for one in shape)
            if (arrays[name].dtype, arrays[name].shape) != (np.dtype(kind), sizes):
                raise DataError(f"{name} of {path} is {arrays[name].dtype} {arrays[name].shape}, not {kind} {sizes}")
            if name != "cuts" and not np.isfinite(arrays[name]).all():
                raise DataError(f"{name} of {path} are not all finite: run `daguerre route fit` again")
        trees = Forest(**{name: arrays.pop(name) for name in TREE_ARRAYS})
        trees.check(len(MEASURES), path)
        return cls(backends=backends, requests=requests, report=report, trees=trees, **arrays)


def quality_in(path: Path, backends: Sequence[str]) -> QualityModel:
    """A model of quality. DataError for a file that cannot be read, is none, or knows none of the backends."""
    found = QualityModel.load(path)
    if set(backends).isdisjoint(found.backends):
        said = f"{path} was fitted for {', '.join(found.backends)}, and the backends here are {', '.join(backends)}"
        raise DataError(f"{said}: rename them, or run `daguerre route fit` on a log of these")
    return found


ARRAYS = {
    "counts": ("uint16", "R"),
    "center": ("float32", "M"),
    "spread": ("float32", "M"),
    "weights": ("float32", "MB"),
    "bias": ("float32", "B"),
    "grams": ("float16", "RB"),
    "shift": ("float32", "B"),
    "scales": ("float32", "B2"),
}
"""The type of each array, and what it is long."""
TREE_ARRAYS = {
    "roots": ("int32", "T"),
    "columns": ("int16", "N"),
    "cuts": ("float32", "N"),
    "children": ("int32", "N"),
    "leaves": ("float16", "NB"),
}
PARTS = [SHARE, TREES, LEAST, CLIP]


def standard(values: NDArray[np.float64], center: Floats, spread: Floats) -> NDArray[np.float64]:
    """Measures as standard deviations, at most CLIP; one that never varied is 0."""
    varies = spread > 0
    out = np.where(varies, (values - center) / np.where(varies, spread, 1), 0.0)
    return np.asarray(np.clip(out, -CLIP, CLIP), np.float64)
