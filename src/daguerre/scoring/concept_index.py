"""What a model has read in files, kept for the next query: one file of the cache for each text, model and strength.

A file is found by what it was made of, so that none is ever out of date: a text that changed is another one. It appears
under its name only when whole, and one that cannot be read is none. Beyond MOST_BYTES those go that were used the
longest ago.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from daguerre.files import atomic_write
from daguerre.scoring.concept_search import SearchedText, Strength, UnitTable

FOLDER = "concept-index"
VERSION = 2
"""Of the files, and of how texts are read."""
MOST_BYTES = 512 << 20
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile)
ARRAYS = ("best", "lines", "means")


class ConceptIndex:
    """The tables of a model's concepts in a folder.

    model  names the model: another one has another name
    by     what tables are of
    """

    def __init__(self, folder: Path, model: str, by: Strength, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._model, self._by, self._most = folder, model, by, most_bytes

    def get(self, document: SearchedText) -> UnitTable | None:
        """The table of all concepts in a text; None where there is none."""
        path = self._path(document)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                units = [tuple(one) for one in json.loads(held["units"].tobytes())]
                table = UnitTable(units, *(held[name] for name in ARRAYS))
            os.utime(path)
        except BROKEN:
            return None
        return table

    def put(self, document: SearchedText, table: UnitTable) -> None:
        """Keep a table. Where the disk has no room, none is kept."""
        units = np.frombuffer(json.dumps(table.units).encode(), dtype=np.uint8)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(self._path(document)) as file:
                np.savez(file, units=units, **{name: getattr(table, name) for name in ARRAYS})

    def trim(self) -> None:
        """Remove the files that were used the longest ago, until all of them have no more than the most bytes."""
        with suppress(OSError):
            found = [(path.stat(), path) for path in self._folder.glob("*.npz")]
            size = sum(about.st_size for about, _ in found)
            for about, path in sorted(found, key=lambda one: one[0].st_mtime):
                if size <= self._most:
                    return
                path.unlink(missing_ok=True)
                size -= about.st_size

    def _path(self, document: SearchedText) -> Path:
        made_of = (str(VERSION), self._model, self._by, hashlib.sha256(document.text.encode()).hexdigest())
        return self._folder / f"{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:40]}.npz"
