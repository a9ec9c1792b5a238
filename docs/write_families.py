"""Write the table of memory and speed in families.md again: `python docs/write_families.py`.

Every number is computed from public shapes and two machines' data sheets; nothing is measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from daguerre.evals.tables import table
from daguerre.files import atomic_write

PAGE = Path(__file__).with_name("families.md")
BLOCK = re.compile(r"(<!-- roofline -->\n).*?(<!-- end -->)", flags=re.DOTALL)
CANVAS = 512
"""Rows of a forward of full context."""
BYTES = 2


@dataclass(frozen=True)
class Machine:
    """Bytes and operations a second, from a data sheet."""

    bandwidth: float
    operations: float


LAPTOP = Machine(60e9, 1e12)
"""Two channels of DDR4-3733 or DDR5; eight cores that multiply bfloat16 or float32 at this rate."""
GPU = Machine(4.8e12, 990e12)
"""NVIDIA H200: HBM3e, dense bfloat16."""


@dataclass(frozen=True)
class Shape:
    """A public model: billions of weights, how many of them a token uses, and rows of a forward.

    experts  of each layer, and how many of them a token uses; None: the MLP is dense
    """

    name: str
    weights: float
    active: float
    rows: int
    experts: tuple[int, int] | None = None

    @property
    def read(self) -> float:
        """Billions of weights that a forward reads: those of experts that no row chooses are left out, if rows choose
        independently.
        """
        if self.experts is None:
            return self.weights
        num, each = self.experts
        unchosen = (1 - each / num) ** self.rows
        rest = (self.active - self.weights * each / num) / (1 - each / num)  # shared by all tokens
        return rest + (self.weights - rest) * (1 - unchosen)

    def forwards(self, machine: Machine) -> float:
        """The most forwards a second: what is read, or what is computed, takes longest."""
        reading = self.read * 1e9 * BYTES / machine.bandwidth
        return 1 / max(reading, 2 * self.active * 1e9 * self.rows / machine.operations)


SHAPES = (
    Shape("Tiny-A2D Qwen3 0.6B, full", 0.596, 0.596, CANVAS),
    Shape("MDLM", 0.170, 0.170, 1024),
    Shape("SDAR 1.7B, blocks of 4", 1.721, 1.721, 4),
    Shape("Fast-dLLM v2 1.5B, blocks of 32", 1.544, 1.544, 32),
    Shape("LLaDA 8B", 8.016, 8.016, CANVAS),
    Shape("LLaDA 8B, approximate_dual, blocks of 32", 8.016, 8.016, 32),
    Shape("LLaDA2.0 mini 16B-A1.4B, blocks of 32", 16.26, 1.43, 32, (256, 8)),
    Shape("DiffusionGemma 26B-A4B, canvas of 256", 25.25, 3.8, 256, (128, 8)),
)


def roofline() -> str:
    """The table."""
    rows = [
        (
            shape.name,
            f"{shape.weights * BYTES:.1f} GB",
            f"{shape.rows}",
            _rate(shape.forwards(LAPTOP)),
            _rate(shape.forwards(GPU)),
        )
        for shape in SHAPES
    ]
    return table(("model", "weights, bfloat16", "rows of a forward", "laptop, forwards/s", "H200, forwards/s"), rows)


def _rate(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def rewritten(text: str) -> str:
    """The page with the table of these shapes."""
    return BLOCK.sub(lambda found: found[1] + roofline() + "\n" + found[2], text)


if __name__ == "__main__":
    page = rewritten(PAGE.read_text(encoding="utf-8"))
    with atomic_write(PAGE) as file:
        file.write(page.encode())
