"""Results of finished parts, kept in a folder, so that a measurement that was stopped can go on.

Without a folder nothing is kept. A folder belongs to one measurement, whose settings are written into it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.concepts.taxonomy import Concept
from daguerre.errors import DataError
from daguerre.evals.workers import Progress
from daguerre.files import atomic_write

FACTS = "measured.json"


class PartialResults:
    """Parts by their names. DataError for a folder with parts of a measurement with other `facts`."""

    def __init__(self, folder: Path | None, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path, text = folder / FACTS, json.dumps(dict(facts), sort_keys=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise DataError(f"{folder} has parts that were measured with other settings: name another folder")
        with atomic_write(path) as file:
            file.write(text.encode())

    def arrays(self, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Arrays of a part, made if they are not there."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.npz"
        if not path.exists():
            buffer = io.BytesIO()
            np.savez(buffer, **make())  # type: ignore[arg-type]
            with atomic_write(path) as file:
                file.write(buffer.getvalue())
        with np.load(path) as found:
            return dict(found)

    def each(
        self, part: str, concepts: Sequence[Concept], make: Callable[[Concept], Any], progress: Progress
    ) -> list[Any]:
        """The `figures` of a part, concept by concept."""
        out = []
        for number, concept in enumerate(concepts):
            progress(f"{part}: {concept.name}", number, len(concepts))
            out.append(self.figures(f"{part}-{concept.name}", partial(make, concept)))
        return out

    def figures(self, name: str, make: Callable[[], Any]) -> Any:
        """A part as JSON has it, made if it is not there."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.json"
        if not path.exists():
            made = json.dumps(make(), allow_nan=False)
            with atomic_write(path) as file:
                file.write(made.encode())
        return json.loads(path.read_text(encoding="utf-8"))
