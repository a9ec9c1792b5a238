"""Keys and values of settled rows: exact, because a settled row never depends on anything that may still change."""

from __future__ import annotations

import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.config import ModelConfig
from daguerre.models.layout import Rows


class Cache:
    """Preallocated keys and values, (layers, B, kv heads, capacity, H), and the labels of their rows.

    A forward reads the `length` rows stored so far and, through `append`, stores its own settled rows behind them.
    `commit` makes those visible to the next forward; until then they are not part of `length`.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        *,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0
        self.rows: Rows | None = None

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, (B, kv heads, length, H) each."""
        return self.keys[layer, :, :, : self.length], self.values[layer, :, :, : self.length]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store settled rows of one layer, (B, kv heads, rows, H), behind the last committed row."""
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise InputError(f"the cache holds {self.capacity} rows and {end} are needed: ask for fewer tokens")
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values

    def commit(self, rows: Rows) -> None:
        """Make the rows stored by the last forward part of the cache."""
        self.rows = rows if self.rows is None else Rows.cat([self.rows, rows])
        self.length += rows.num_rows

    def truncate(self, length: int) -> None:
        """Forget every row behind the first `length`."""
        self.length = min(length, self.length)
        self.rows = self.rows[: self.length] if self.rows is not None and self.length else None
