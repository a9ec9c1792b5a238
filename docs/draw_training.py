"""Draw the curves of the default model's training again, from the recorded figures: `python docs/draw_training.py`."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from daguerre.train.curves import draw_curves

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
RUNS = {
    "training": ("full", "default"),
    "training-refine": ("refine", "default-refine"),
    "training-longer": ("longer", "default-longer-2"),
    "training-settle": ("settle", "default-settle-4"),
    "training-draft": ("draft", "default-draft-3"),
    "training-verified": ("verified", "default-verified-2"),
}
"""The name of each picture, of its run, and of the run's recorded figures."""


def main() -> None:
    for picture, (name, figures) in RUNS.items():
        with TemporaryDirectory() as folder:
            run = Path(folder) / name
            run.mkdir()
            shutil.copy(RESULTS / f"{figures}-training.csv", run / "log.csv")
            shutil.copy(RESULTS / f"{figures}-held.csv", run / "held.csv")
            shutil.copy(draw_curves(run), DOCS / f"{picture}.png")


if __name__ == "__main__":
    main()
