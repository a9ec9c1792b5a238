"""Folders of models: the configuration, the weights and the tokenizer, as Daguerre and as publishers write them."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save

from checkpoints import write_tokenizer
from conftest import CONTEXTS, GEMMA, tiny_config
from daguerre.errors import DaguerreError, InputError
from daguerre.models.core.build import make_backbone
from daguerre.models.export import export
from daguerre.models.loading import load_folder
from daguerre.models.own_layout import CONFIG, parse_config, save_model
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.readers import read_tokenizer
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.weights import WEIGHTS, sha256_of, stored_in
from fuzz.mutate import mutant
from fuzz.target import Run, Target
from published import CASES


def scratch() -> Path:
    """A folder that is there as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="daguerre-fuzz-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[Any] = []


def tiny(**facts: Any) -> Any:
    return make_backbone(
        tiny_config(Tokenizer.default("2k"), **{"width": 16, "num_heads": 2, "mlp_width": 16, **facts})
    )


def own_config() -> Run:
    folder = scratch()
    save_model(folder, tiny().initialize(0), Tokenizer.default("2k"))

    def run(data: bytes) -> None:
        (folder / CONFIG).write_bytes(data)
        load_folder(folder)

    return run


def own_configs() -> list[bytes]:
    """The configuration of the folder that the target has, and others, which do not fit it."""
    folder = scratch()
    save_model(folder, tiny().initialize(0), Tokenizer.default("2k"))
    first = parse_config(folder / CONFIG)
    hashes = {name: first[name] for name in ("weights_sha256", "tokenizer_sha256")}
    others = [tiny(**facts).config.to_dict() | hashes for facts in (*CONTEXTS.values(), GEMMA, {"draft_head": 8})]
    return [json.dumps(values).encode() for values in (first, *others)]


def published_config() -> Run:
    folder = exported()

    def run(data: bytes) -> None:
        (folder / CONFIG).write_bytes(data)
        load_folder(folder)

    return run


def exported() -> Path:
    """A tiny model as a publisher of a Llama would write it."""
    folder = scratch() / "model"
    export(tiny(tied=False).initialize(0), Tokenizer.default("2k"), folder)
    return folder


def published_configs() -> list[bytes]:
    """The configuration that fits the target's weights, and those of other families, which do not get so far."""
    kinds = [
        {"architectures": [one.architecture], "model_type": one.model_type, **one.config} for one in CASES.values()
    ]
    first = (exported() / CONFIG).read_bytes()
    return [*[first] * (len(kinds) // 2), *(json.dumps(values).encode() for values in kinds)]


def weights() -> Run:
    """The header alone, and a whole folder whose hash is the one of the damaged file."""
    folder = scratch()
    save_model(folder, tiny().initialize(0), Tokenizer.default("2k"))
    config = parse_config(folder / CONFIG)

    def run(data: bytes) -> None:
        (folder / WEIGHTS).write_bytes(data)
        (folder / CONFIG).write_text(json.dumps(config | {"weights_sha256": sha256_of(folder / WEIGHTS)}))
        load_folder(folder)
        for one in stored_in(folder / WEIGHTS).values():
            one.read("float32")

    return run


def weight_files() -> list[bytes]:
    folder = scratch()
    save_model(folder, tiny().initialize(0), Tokenizer.default("2k"))
    return [
        (folder / WEIGHTS).read_bytes(),
        save({"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.int64)}, {"format": "pt"}),
        save({"a": torch.zeros(0, 3), "b": torch.ones((), dtype=torch.bfloat16)}),
    ]


def damaged(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """A file of weights whose header is changed, mostly with a length that is right."""
    if len(data) < 8 or random.random() < 0.2:
        return mutant(data[:4096], others, random) + data[4096:]
    (size,) = struct.unpack("<Q", data[:8])
    body = data[8 + size :]
    heads = [one[8 : 8 + struct.unpack("<Q", one[:8])[0]] for one in others if len(one) >= 8]
    head = mutant(data[8 : 8 + size], heads, random)
    length = len(head) if random.random() < 0.9 else random.choice((0, 1, len(head) - 1, 2**31, 2**63, 2**64 - 1))
    return struct.pack("<Q", length % 2**64) + head + (body if random.random() < 0.8 else body[: len(body) // 2])


def tokenizer() -> Run:
    """As Daguerre reads its own, and as published ones are read; then one text goes there and back."""
    folder = scratch()

    def run(data: bytes) -> None:
        (folder / "tokenizer.json").write_bytes(data)
        with suppress(DaguerreError):
            tried(Tokenizer.load(folder / "tokenizer.json"))
        found = read_tokenizer(folder)
        assert found is not None
        tried(found)

    return run


def tried(found: Tokenizer | PublishedTokenizer) -> None:
    try:
        text = found.decode(found.encode("def f(é):\n  return 1"))
    except InputError:
        return
    assert isinstance(text, str)


def tokenizers() -> list[bytes]:
    folder = scratch()
    write_tokenizer(folder)
    whole = json.loads(Tokenizer.default("2k").to_bytes())
    small = json.loads((folder / "tokenizer.json").read_bytes())
    metaspace = small | {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}],
        },
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "\u2581"}]},
    }
    few = {"a": 0, "b": 1, "ab": 2, "<unk>": 3}
    pieces = small | {
        "added_tokens": [],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]},
    }
    words = small | {"model": {"type": "WordLevel", "vocab": few, "unk_token": "<unk>"}}
    merges = small | {"model": {"type": "BPE", "vocab": few, "merges": [["a", "b"]], "unk_token": "<unk>"}}
    whole["model"]["merges"] = whole["model"]["merges"][:20]
    return [json.dumps(one).encode() for one in (small, metaspace, pieces, words, merges, whole)]


def tokenizer_config() -> Run:
    folder = scratch()
    write_tokenizer(folder)

    def run(data: bytes) -> None:
        (folder / "tokenizer_config.json").write_bytes(data)
        found = read_tokenizer(folder)
        assert found is not None
        tried(found)
        if found.chat_template is not None:
            found.chat_template.render([{"role": "user", "content": "a"}])

    return run


def tokenizer_configs() -> list[bytes]:
    kinds: list[Any] = [dict(one.tokenizer) for one in CASES.values() if one.tokenizer]
    added = {"300": {"content": "<x>", "special": True, "lstrip": False}, "301": {"content": "<y>"}}
    kinds += [{"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "added_tokens_decoder": added}]
    kinds += [{"chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}], "bos_token": None}]
    return [json.dumps(one).encode() for one in kinds]


TARGETS = (
    Target(name="config", make=own_config, seeds=own_configs, cases=150),
    Target(name="published_config", make=published_config, seeds=published_configs, cases=200),
    Target(name="weights", make=weights, seeds=weight_files, change=damaged, cases=150),
    Target(name="tokenizer", make=tokenizer, seeds=tokenizers, cases=80),
    Target(name="tokenizer_config", make=tokenizer_config, seeds=tokenizer_configs, cases=80),
)
