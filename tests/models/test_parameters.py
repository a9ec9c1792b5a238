"""The names and shapes of weights, which are known without PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_config
from daguerre.models.bits import floats, halves
from daguerre.models.core.build import make_shapes
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.loading import model_folder, open_source
from daguerre.models.tokenizer import Tokenizer
from published import CASES
from published import made as built


def configs(folder: Path) -> dict[str, ModelConfig]:
    """One of every family and of the package's models, and what none of these has."""
    found = {
        name: open_source(case.write(folder / str(n), built(name))).config()
        for n, (name, case) in enumerate(CASES.items())
    }
    found |= {name: open_source(model_folder(name)).config() for name in ("default", "concepts")}
    tiny = tiny_config(Tokenizer.default("2k"))
    return found | {
        "a level": replace(tiny, context="full", shift=False, time_input=True),
        "learned positions": replace(tiny, positions="learned", norm="layer", norm_bias=False, norm_placement="both"),
    }


def test_parameters_have_the_names_and_shapes_of_the_modules(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, config in configs(tmp_path).items():
        with subtests.test(name):
            made = {key: tuple(part.shape) for key, part in make_shapes(config).state_dict().items()}
            assert parameter_shapes(config) == made


def test_bits_of_bfloat16_are_pytorchs() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32)
    bits[:8] = 0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00008000, 0x00018000, 0x3F808000
    numbers = bits.view(np.float32)
    made = torch.from_numpy(numbers).to(torch.bfloat16)
    assert np.array_equal(floats(halves(numbers)), made.float().numpy(), equal_nan=True)
    assert np.array_equal(floats(made.view(torch.int16).numpy().view(np.uint16)), made.float().numpy(), equal_nan=True)
