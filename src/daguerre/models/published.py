"""A publisher's checkpoint, a folder or a GGUF file: what its files say, and the model that they hold."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, DataError, InputError, UnsupportedError, unknown
from daguerre.models.bits import NumberType
from daguerre.models.bundled import NO_ADAPTER, BundledAdapter, read_bundled, with_adapter
from daguerre.models.catalog import FILE as CONCEPTS
from daguerre.models.catalog import read_catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.families import FAMILIES, find_family
from daguerre.models.families.base import Family
from daguerre.models.families.reading import sampling_of, unsupported
from daguerre.models.gguf.pieces import in_gguf
from daguerre.models.lora import merged
from daguerre.models.model_weights import FileWeights, ModelWeights
from daguerre.models.published_facts import Published
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.published_weights import fit
from daguerre.models.readers import CONFIG, Reader, given_tokenizer, reader_of
from daguerre.models.sources import Loaded, ModelSource, Progress

OWN_KEYS = frozenset({"width", "num_layers", "num_heads"})
"""Keys of Daguerre's own layout, which no publisher has."""


def is_published(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is in a publisher's layout, not in Daguerre's own."""
    return "weights_sha256" not in config and not config.keys() >= OWN_KEYS


@dataclass(frozen=True)
class Described:
    """A published folder, without its weights: its family, its config, and what its files say.

    decode    the published defaults of generation, as options of `daguerre.Decode`
    sampling  how an autoregressive model's publisher has answers drawn, likewise; empty where nothing is said
    """

    family: Family
    config: ModelConfig
    facts: Published
    decode: Mapping[str, Any]
    sampling: Mapping[str, Any]


class PublishedSource(ModelSource):
    """A publisher's folder or a GGUF file.

    family     its family by name, where the files do not say it
    tokenizer  the folder of a tokenizer that is taken in place of the checkpoint's
    """

    is_published = True

    def __init__(self, reader: Reader, family: str | None = None, tokenizer: Path | None = None) -> None:
        self.reader, self.path = reader, reader.path
        self._family, self._other = family, tokenizer

    @property
    def file_bytes(self) -> int | None:
        return self.reader.file_bytes

    @cached_property
    def facts(self) -> Published:
        """What the JSON files of a folder say, or the metadata of a GGUF file."""
        if self._family is not None and self._family not in FAMILIES:
            raise unknown("family", self._family, FAMILIES)
        return self.reader.facts(self._family)

    @cached_property
    def family(self) -> Family:
        facts = self.facts
        if not facts.config:
            raise CheckpointError(f"{self.path} has no {CONFIG}, or an empty one: check the path")
        for key in ("quantization_config", "quantization"):
            if value := facts.config.get(key):
                method = value.get("quant_method", key) if isinstance(value, Mapping) else key
                raise unsupported(f"a checkpoint that is quantized ({method})")
        return find_family(
            facts.config, tokenizer=facts.tokenizer, name=facts.name, family=self._family or facts.family
        )

    @property
    def family_name(self) -> str:
        return self.family.name

    def config(self) -> ModelConfig:
        return self.described.config

    def tokenizer(self) -> PublishedTokenizer | None:
        return self._words

    @cached_property
    def _words(self) -> PublishedTokenizer | None:
        return self.reader.tokenizer() if self._other is None else given_tokenizer(self._other, self.path)

    @cached_property
    def described(self) -> Described:
        """What the small files say, the tokenizer's among them if there are any; `config.json` is enough."""
        return self.describe(self._words)

    def describe(self, tokenizer: PublishedTokenizer | None) -> Described:
        """What the small files say, with this tokenizer."""
        facts = self.facts if tokenizer is None else with_tokenizer(self.facts, tokenizer)
        return self._described(facts, self.family, self._bundled(weights=False))

    def _bundled(self, weights: bool = True) -> BundledAdapter:
        return NO_ADAPTER if self.family.bundled is None else read_bundled(self.family.bundled, self.path, weights)

    def _described(self, facts: Published, family: Family, adapter: BundledAdapter) -> Described:
        facts, where = replace(facts, adapter=adapter.config), self.reader.config
        try:
            config = _without(family.read(facts), facts.never)
            return Described(family, config, facts, family.decode, _sampling(family, config, facts))
        except UnsupportedError as error:
            raise UnsupportedError(f"{facts.name} ({family.name}): {error}") from None
        except (CheckpointError, InputError) as error:
            raise CheckpointError(f"{where} cannot be read as {family.name}: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(
                f"{where} cannot be read as {family.name}: a value is of a wrong kind ({reason}); copy it again"
            ) from error

    def load(
        self,
        numbers: NumberType,
        device: str = "cpu",
        *,
        adapter: Path | None = None,
        progress: Progress | None = None,
        defer: bool = False,
    ) -> Loaded:
        """CheckpointError, in one line, for files that are missing, damaged or not of one model; UnsupportedError for a
        model that cannot be computed.
        """
        bundled = self._bundled()
        family = with_adapter(self.family, bundled) if bundled.stored else self.family
        words, stored = self._needed_tokenizer(), self.reader.tensors()
        shapes = self.facts.shapes or {name: tensor.shape for name, tensor in stored.items()}
        described = self._described(replace(with_tokenizer(self.facts, words), shapes=shapes), family, bundled)
        config, arch = described.config, self.reader.arch
        try:
            words = words.sized(config.vocab_size)
            words.eos_id = config.eos_id  # which the tokenizer's own files may not name
        except DataError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        stored |= bundled.stored
        pieces = fit(family if arch is None else in_gguf(family, arch), config, stored, self.path)
        weights: ModelWeights = (files := FileWeights(config, numbers, pieces, stored, progress, device))
        if adapter is not None:
            weights = merged(files, pieces if arch is None else family.pieces(config), adapter, family.prefix)
        if not defer:
            weights.module()
        return Loaded(
            weights=weights,
            tokenizer=words,
            source=self,
            family=family.name,
            decode=described.decode,
            sampling=described.sampling,
            concepts=None if config.concepts is None else read_catalog(self.path / CONCEPTS, config.concepts),
        )

    def _needed_tokenizer(self) -> PublishedTokenizer:
        if self._words is not None:
            return self._words
        instead = f", such as {self.family.tokenizer!r}" if self.family.tokenizer else ""
        raise CheckpointError(
            f"{self.path} has no tokenizer: copy the whole folder, or say which tokenizer the model was trained "
            f"with{instead}"
        )

    def weight_files(self) -> list[Path]:
        return self.reader.weight_files()

    def weights_hash(self) -> str:
        """Without reading the weights: of the names by which the hub's cache keeps files, which are hashes of their
        contents; of other files, of sizes and times of change.
        """
        digest = hashlib.sha256()
        for path in self.reader.weight_files():
            blob, about = path.resolve().name, path.stat()
            kept = blob if re.fullmatch("[0-9a-f]{64}", blob) else f"{about.st_size} {about.st_mtime_ns}"
            digest.update(f"{path.name} {kept}\n".encode())
        return digest.hexdigest()


def describe(path: Path, *, family: str | None = None, tokenizer: PublishedTokenizer | None = None) -> Described:
    """What a folder or a GGUF file says, from its small files alone, with this tokenizer if one is given."""
    return PublishedSource(reader_of(path), family).describe(tokenizer)


def with_tokenizer(facts: Published, tokenizer: PublishedTokenizer) -> Published:
    """What the files say, with what their tokenizer does."""
    tokens = {**facts.tokens, **tokenizer.added}
    return replace(facts, tokens=tokens, bos_id=tokenizer.bos_id, num_tokens=tokenizer.num_tokens)


def _without(config: ModelConfig, never: tuple[int, ...]) -> ModelConfig:
    """A config whose model does not predict these tokens, either."""
    new = {*never} - {*config.ends, *config.reserved_ids}
    return replace(config, reserved_ids=(*config.reserved_ids, *new)) if new else config


def _sampling(family: Family, config: ModelConfig, facts: Published) -> Mapping[str, Any]:
    """What generation_config.json, or the same keys of a GGUF file, say of an autoregressive model.

    Models that denoise are decoded by scripts of their publishers, which name values of their own and do not read that
    file: it is often the one of the autoregressive model that they were made of.
    """
    return sampling_of(facts.generation) if config.mask_id is None and not family.decode else {}
