"""GGUF files in parts, as the package `gguf` writes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from daguerre.models.gguf.header import read_header
from daguerre.models.texts import Texts


def in_parts(path: Path, most: int) -> list[Path]:
    """The file in parts of so many tensors, as the package `gguf` writes them."""
    writer = gguf.GGUFWriter(path.with_name("parts.gguf"), "", split_max_tensors=most)
    for name, held in read_header(path).metadata.items():
        held = held.tolist() if isinstance(held, np.ndarray | Texts) else held
        writer.add_key_value(name, held, gguf.GGUFValueType.get_type(held))
    for tensor in gguf.GGUFReader(path).tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob("parts-*.gguf"))
