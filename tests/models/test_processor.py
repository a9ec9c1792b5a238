"""What the processor can do, and DAGUERRE_ISA, by which it plays a lesser one."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
import torch

import daguerre
from backends import needs_compiler
from daguerre.errors import InputError
from daguerre.models import denoiser, processor
from daguerre.models.backends import library
from daguerre.models.denoiser import auto_numbers
from daguerre.models.processor import LEVELS, available, compiler_flags, instruction_set, native_dtype, native_numbers

FEATURES = dict(zip(LEVELS, accumulate((set(needs) for needs, _ in LEVELS.values()), set.union), strict=True))
"""All that a processor of each level has."""


def pretend(monkeypatch: pytest.MonkeyPatch, features: set[str], chosen: str = "") -> None:
    monkeypatch.setattr(processor, "cpu_flags", lambda: frozenset(features))
    monkeypatch.setenv("DAGUERRE_ISA", chosen)


def test_a_processor_has_the_levels_whose_features_it_has(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for level in LEVELS:
        with subtests.test(level):
            names = list(LEVELS)
            pretend(monkeypatch, FEATURES[level] | {"sse2"})
            assert list(available()) == names[: names.index(level) + 1]
            assert instruction_set() == level
            assert compiler_flags() == ("-march=native",)
            for lesser in available():
                pretend(monkeypatch, FEATURES[level], lesser)
                assert instruction_set() == lesser
                assert compiler_flags() == LEVELS[lesser][1]


def test_a_feature_that_is_missing_ends_the_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FEATURES["amx"] - {"avx512dq"})
    assert available() == ("avx2",)
    pretend(monkeypatch, set())
    assert available() == ()
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    assert instruction_set() == "aarch64"


def test_weights_are_loaded_in_the_type_that_the_backend_is_fastest_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoiser, "can_compile", lambda: True)
    for level in LEVELS:
        pretend(monkeypatch, FEATURES[level])
        assert auto_numbers() == auto_numbers("cpu", "native") == "bfloat16"
        assert auto_numbers("cpu", "torch") == native_numbers()
    pretend(monkeypatch, FEATURES["avx2"])
    monkeypatch.setattr(denoiser, "can_compile", lambda: False)
    assert auto_numbers() == "float32"
    pretend(monkeypatch, set())
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(denoiser, "can_compile", lambda: True)
    assert auto_numbers() == "float32"


def test_precision_is_what_the_processor_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, rounded = ("avx2", "avx512", "avx512_vnni"), ("avx512_bf16", "amx")
    by_level = dict.fromkeys(exact, torch.float32) | dict.fromkeys(rounded, torch.bfloat16)
    assert list(by_level) == list(LEVELS)
    for level, dtype in by_level.items():
        pretend(monkeypatch, FEATURES[level])
        assert native_dtype() == dtype
        pretend(monkeypatch, FEATURES["amx"], level)
        assert native_dtype() == dtype
    assert native_dtype("meta") == torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    assert native_dtype("cuda") == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert native_dtype("cuda") == torch.float32


def test_an_instruction_set_that_is_not_there_is_an_error_that_names_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, FEATURES["avx512"], "avx51")
    with pytest.raises(InputError, match=r"unknown DAGUERRE_ISA 'avx51': did you mean 'avx512'"):
        compiler_flags()
    pretend(monkeypatch, FEATURES["avx512"], "amx")
    with pytest.raises(InputError, match=r"DAGUERRE_ISA=amx .*avx2, avx512; unset it"):
        instruction_set()
    pretend(monkeypatch, set(), "avx2")
    with pytest.raises(InputError, match=r"DAGUERRE_ISA=avx2 .*none of its values; unset it"):
        native_dtype()


@needs_compiler
def test_nobody_runs_with_a_wrong_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by another backend: what was asked for is not ignored."""
    monkeypatch.setenv("DAGUERRE_ISA", "avx3")
    for options in ({}, {"backend": "native", "dtype": "float32"}):
        with pytest.raises(InputError, match="unknown DAGUERRE_ISA 'avx3'"):
            daguerre.load(**options).generate("x", 1)  # type: ignore[arg-type]


@needs_compiler
def test_every_level_has_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(library, "_libraries", {})
    monkeypatch.setattr(library, "_load", lambda source, flags: asked.append(flags))
    monkeypatch.setattr(library, "_declared", lambda made: made)
    for level in (*LEVELS, ""):
        pretend(monkeypatch, FEATURES["amx"], level)
        library.library()
        library.library()
    assert len(asked) == len({library._key(library.NATIVE, flags) for flags in asked}) == len(LEVELS) + 1


def test_features_are_read_once_and_missing_where_there_is_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, encoding: str = "") -> str:
        return "processor: 0\nFeatures\t: fp asimd i8mm\n"

    processor.cpu_flags.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read)
        assert processor.cpu_flags() == {"fp", "asimd", "i8mm"}
    processor.cpu_flags.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path, encoding: (_ for _ in ()).throw(FileNotFoundError))
        assert processor.cpu_flags() == frozenset()
    processor.cpu_flags.cache_clear()
