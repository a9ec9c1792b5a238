"""Files of checkpoints that lie: every value of every family's config.json, headers of safetensors, tokenizers, indices
and templates. Each is a CheckpointError or another error of ours, in one line, before anything is built.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import tiny_config
from daguerre.errors import CheckpointError, DaguerreError
from daguerre.models import own_layout
from daguerre.models.core.build import make_backbone
from daguerre.models.families import FAMILIES
from daguerre.models.loading import load_folder
from daguerre.models.own_layout import save_model
from daguerre.models.published import describe
from daguerre.models.tokenizer import Tokenizer
from hostile import Hung, returns_within
from oracles import gemma, steerling
from published import CASES, LLADA, LLAMA

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 10**9, 2**62, 10**400, 1.5, float("nan"), float("inf"), "", "x", "a\ud800"),
    *([], [-1], [10**9], ["a"], [[]], {}, {"a": 1}, {"a": {}}),
)
DEEP = ("[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "", "null", "[]", "\0", '{"a": 1e999}')
SECONDS = 60
MOE = LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
DDIT = {"vocab_size": 258, "model_length": 48, "hidden_dim": 32, "cond_dim": 16, "n_blocks": 2, "n_heads": 4}
SEDD = {"tokens": 257, "model": {"hidden_size": 32, "cond_dim": 16, "length": 48, "n_blocks": 2, "n_heads": 4}}
SMALL = {
    **dict.fromkeys(("qwen3_moe", "sdar_moe", "rnd1", "olmoe"), MOE),
    **{name: DDIT | {"block_size": 4} for name in ("mdlm", "bd3lm", "ddit_ar", "duo")},
    **{name: MOE | {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1} for name in ("llada2", "llada21")},
    "llada_moe": MOE | {"expert_intermediate_size": 16, "moe_layer_freq": [0, 1]},
    "llada": LLADA,
    "sedd": SEDD,
    "gemma": {"canvas_length": 8, "eos_token_id": [2], "text_config": gemma.SIZES},
    "steerling": steerling.NESTED,
}
"""Configs of families that `published.CASES` has none of."""


def configs() -> dict[str, dict[str, Any]]:
    """One of each family. That of Nemotron is in a module that needs transformers."""
    pytest.importorskip("transformers.models.ministral3")
    from oracles import nemotron

    of_cases = {case.family: dict(case.config) for case in CASES.values()}
    small = SMALL | {"nemotron": nemotron.CONFIG}
    return {name: of_cases.get(name) or dict(small.get(name, LLAMA)) for name in FAMILIES}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a JSON value has values."""
    keys = value if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    out = copy.deepcopy(value)
    at = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return out


def wrong(read: Callable[[], object], what: object) -> list[str]:
    """What is wrong with how files are read: anything but success, or an error of ours in one line."""
    try:
        with returns_within(SECONDS):
            read()
    except DaguerreError as error:
        return [f"{what!r:.80}: {error}"] if "\n" in str(error) else []
    except Hung:
        return [f"{what!r:.80}: it did not return"]
    except BaseException as error:
        return [f"{what!r:.80}: {type(error).__name__}: {error}"[:300]]
    return []


def changes(value: Any, most: int, values: tuple[Any, ...] = VALUES) -> list[tuple[tuple[Any, ...], Any]]:
    """Some of the changes of a JSON value, always the same ones."""
    every = [(path, new) for path in places(value) for new in values]
    return random.Random(0).sample(every, min(most, len(every)))


def mutated(folder: Path, name: str, most: int) -> list[str]:
    """What goes wrong when a JSON file of a folder is changed in one place, is cut or is nested without end."""
    path, found = folder / name, list[str]()
    was = path.read_text(encoding="utf-8")
    value = json.loads(was)
    texts = [(f"{where}={new!r:.40}", json.dumps(changed(value, where, new))) for where, new in changes(value, most)]
    for what, text in [*texts, *((text[:20], text) for text in (*DEEP, was[: len(was) // 2]))]:
        path.write_text(text, encoding="utf-8")
        found += [f"{name}: {each}" for each in wrong(lambda: load_folder(folder), what)]
    path.write_text(was, encoding="utf-8")
    return found


@pytest.fixture
def own(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    backbone = make_backbone(tiny_config(tokenizer, num_layers=1))
    return save_model(tmp_path / "own", backbone, tokenizer)


def test_no_value_of_a_config_does_more_than_an_error(tmp_path: Path, subtests: pytest.Subtests) -> None:
    every = configs()
    for family in FAMILIES:
        with subtests.test(family):
            entry, found = FAMILIES[family], list[str]()
            config = every[family] | {
                "architectures": [*entry.architectures[:1]],
                "model_type": entry.model_types[0],
            }
            for where, new in changes(config, 120):
                (tmp_path / "config.json").write_text(json.dumps(changed(config, where, new)))
                found += wrong(lambda family=family: describe(tmp_path, family=family), (where, new))
            assert not found


def test_no_value_of_our_own_files_does_more_than_an_error(own: Path) -> None:
    assert not mutated(own, "config.json", 400)
    assert not mutated(own, "tokenizer.json", 30)


def test_no_value_of_a_published_file_does_more_than_an_error(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for case in ["qwen3", "gpt2"]:
        with subtests.test(case):
            (parent := tmp_path / case).mkdir()
            folder = CASES[case].write(parent)
            assert load_folder(folder).family == case
            names = [path.name for path in sorted(folder.glob("*.json"))]
            assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= {*names}
            assert not [each for name in names for each in mutated(folder, name, 60)]


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"num_layers": 10**9}, "num_layers must be a whole number from 1 to 4,096, not 1000000000"),
    ({"num_layers": 4096}, "says 4,096 layers"),
    ({"num_layers": -1}, "num_layers must be a whole number"),
    ({"num_layers": None}, "num_layers must be a whole number"),
    ({"width": 32.0}, "width must be a whole number"),
    ({"vocab_size": 2**40}, "vocab_size must be a whole number"),
    ({"mask_id": 99_999}, "mask_id=99999 is outside the vocabulary of 2048"),
    ({"mask_id": -3}, "mask_id must be a whole number"),
    ({"mask_id": 2}, "mask_id=2 is eos_id, too"),
    ({"null_id": 3}, "mask_id=3 is null_id, too"),
    ({"end_ids": [3]}, "mask_id=3 is end_ids, too"),
    ({"end_ids": [5000]}, "end_ids=5000 is outside the vocabulary"),
    ({"eos_id": None}, "eos_id must be a whole number"),
    ({"eos_id": "2"}, "eos_id must be a whole number"),
    ({"pad_id": 2048}, "pad_id=2048 is outside the vocabulary"),
    ({"reserved_ids": [-1]}, "reserved_ids: -1 is outside the vocabulary"),
    ({"reserved_ids": 5}, "reserved_ids must be a list"),
    ({"num_reserved": 10**12}, "num_reserved must be a whole number"),
    ({"norm_eps": float("nan")}, "norm_eps must be a number from 0 up, not nan"),
    ({"shift": 1}, "shift must be True or False"),
    ({"rope_scaling": 5}, "rope_scaling must be an object"),
    ({"rope_scaling": {"kind": "linear", "factor": -1}}, "rope_scaling: factor must be a number above 0"),
    ({"weights_sha256": []}, "no weights_sha256"),
]


def test_a_value_that_no_model_has_is_named(own: Path, subtests: pytest.Subtests) -> None:
    known = json.loads((own / "config.json").read_text())
    for values, said in NAMED:
        with subtests.test(said):
            config = known | values
            if "num_reserved" in values:
                del config["reserved_ids"]
            (own / "config.json").write_text(json.dumps(config))
            with returns_within(SECONDS), pytest.raises(CheckpointError, match=said):
                load_folder(own)


def written(path: Path, header: Any, body: bytes, length: int | None = None) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + body)


def headers(head: dict[str, Any], body: bytes) -> Iterator[tuple[Any, bytes, int | None]]:
    """Headers that lie, the data behind them, and the length that is said of the header."""
    num = len(json.dumps(head).encode())
    for length in (0, 1, num - 1, num + 1, 2**31, 2**60, 2**63, 2**64 - 1):
        yield head, body, length
    first, second = [name for name in head if name != "__metadata__"][:2]
    lies = [*VALUES, "F8_E4M3", "I64", "F4", "C64", [2**62, 2**62], [0], [10**9], [1] * 100, [0, 2**63], [5, 1]]
    for key in ("dtype", "shape", "data_offsets"):
        for value in lies:
            yield changed(head, (first, key), value), body, None
    for value in VALUES:
        yield changed(head, (first,), value), body, None
    yield changed(head, (first, "data_offsets"), head[second]["data_offsets"]), body, None
    for header in (b"[" * 100_000, b"", {**head, "__metadata__": {"a": 5}}, {**head, "\ud800": head[first]}):
        yield header, body, None
    yield head, b"", None
    yield head, body + b"x", None
    yield json.dumps(head).encode()[:-1] + b"," + json.dumps({first: head[first]}).encode()[1:], body, None


@pytest.mark.parametrize("layout", ["own", "published"])
def test_a_header_that_lies_is_an_error(
    layout: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own if layout == "own" else CASES["gpt2"].write(tmp_path)
    known = json.loads((own / "config.json").read_text())["weights_sha256"]
    monkeypatch.setattr(own_layout, "sha256_of", lambda _: known)  # as of a file that was made to lie
    path = folder / "model.safetensors"
    was = path.read_bytes()
    (num,) = struct.unpack("<Q", was[:8])
    head, found = json.loads(was[8 : 8 + num]), list[str]()
    for header, body, length in headers(head, was[8 + num :]):
        written(path, header, body, length)
        found += wrong(lambda: load_folder(folder), (header, length))
    for content in (b"", was[:4], was[:100]):
        path.write_bytes(content)
        found += wrong(lambda: load_folder(folder), content)
    assert not found
    path.write_bytes(was)
    assert load_folder(folder).backbone


def test_an_index_that_names_no_file_is_an_error(tmp_path: Path) -> None:
    folder = CASES["gpt2"].write(tmp_path)
    for name in ("x" * 5000, "a\0b", "../x", "a\ud800", ""):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
        with pytest.raises(CheckpointError, match=r"^[^\n]*$"):
            load_folder(folder)
