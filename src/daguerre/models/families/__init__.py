"""The families of published checkpoints: one entry each, in the file of the core that they share.

A family reads `config.json` and says where each published tensor belongs (`daguerre.models.families.base.Family`).
Nothing of a checkpoint is ever executed: `auto_map`, which names a publisher's code, is not looked at.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from typing import Any

from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.families import (
    ddit,
    dream,
    fast_dllm,
    gemma,
    gemma3,
    gpt2,
    llada,
    llada2,
    llama,
    moe,
    nemotron,
    phi3,
    qwen,
    sdar,
    steerling,
    wedlm,
)
from daguerre.models.families.base import Family

LOG = logging.getLogger("daguerre")
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *llama.FAMILIES,
        *qwen.FAMILIES,
        *gpt2.FAMILIES,
        *gemma3.FAMILIES,
        *phi3.FAMILIES,
        *llada.FAMILIES,
        *dream.FAMILIES,
        *sdar.FAMILIES,
        *moe.FAMILIES,
        *llada2.FAMILIES,
        *fast_dllm.FAMILIES,
        *nemotron.FAMILIES,
        *ddit.FAMILIES,
        *gemma.FAMILIES,
        *wedlm.FAMILIES,
        *steerling.FAMILIES,
    )
}


def find_family(
    config: Mapping[str, Any],
    *,
    tokenizer: Mapping[str, Any] | None = None,
    name: str = "",
    family: str | None = None,
) -> Family:
    """The family of a `config.json`: by its architectures, else by its model_type.

    tokenizer  tokenizer_config.json. A tokenizer with a mask tells a model that was trained to denoise from the
               autoregressive one whose architecture it declares
    name       the name on a hub, or of the folder, which tells such models from each other
    family     the user's word, which is taken if it is possible

    UnsupportedError for an architecture that no family has; InputError where the files do not say which it is.
    """
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    possible = _of_architecture(config, family)
    if family is not None:
        if FAMILIES[family] not in possible:
            raise InputError(f"config.json is not of family {family!r}, but of {_names(possible)}: leave family out")
        return FAMILIES[family]
    marked = [entry for entry in possible if any(config.get(mark) is not None for mark in entry.marks)]
    possible = marked or [entry for entry in possible if not entry.marks]
    named = [entry for entry in possible if is_named(entry, name)]
    plain = named or [entry for entry in possible if not entry.names]
    if len(plain) == 1:
        denoises = bool(named or plain[0].decode)  # only these have published defaults of denoising
        if denoises or len(possible) == 1 or not _has_mask(config, tokenizer or {}):
            if denoises and not named:
                _warn(plain[0], possible, name)
            return plain[0]
    raise InputError(f"the files do not say which of {_names(possible)} this model is: give its family by name")


def _warn(chosen: Family, possible: list[Family], name: str) -> None:
    """Say which family a folder was taken for, where only its name could tell and does not."""
    published = {example.partition("/")[2].lower() for example in chosen.examples}
    if len(possible) > 1 and name and "/" not in name and name.lower() not in published:
        LOG.warning(
            "config.json is of %s, which only the name tells apart: %r is taken for %r; give its family to be sure",
            _names(possible),
            name,
            chosen.name,
        )


def _of_architecture(config: Mapping[str, Any], family: str | None = None) -> list[Family]:
    """The families that have one of the config's architectures, else its model type; `family`, if it names neither."""
    kind, listed = str(config.get("model_type")), config.get("architectures")
    architectures = [str(name) for name in listed] if isinstance(listed, list) else []
    found = [entry for entry in FAMILIES.values() if {*entry.architectures} & {*architectures}]
    found = found or [entry for entry in FAMILIES.values() if kind in entry.model_types]
    found = found or _with_all_marks(config)
    if not found and not config.get("architectures") and config.get("model_type") is None:
        if family is None:
            raise InputError("config.json names neither architectures nor a model_type: give the family by name")
        return [FAMILIES[family]]
    if found:
        return found
    what = ", ".join(architectures) or "no architecture"
    raise UnsupportedError(f"{what} (model_type {kind!r}) is not supported{_nearest([*architectures, kind])}")


def _with_all_marks(config: Mapping[str, Any]) -> list[Family]:
    """The families of a config that names neither architecture nor model_type: those all of whose marks it has."""
    if config.get("architectures") or config.get("model_type"):
        return []
    return [entry for entry in FAMILIES.values() if entry.marks and {*entry.marks} <= {*config}]


def _nearest(names: list[str]) -> str:
    """What is supported, and which of it is most like these names."""
    entries = reversed(FAMILIES.values())  # of those that share an architecture, the first
    known = {known: entry for entry in entries for known in (*entry.architectures, *entry.model_types)}
    near = [match for name in names for match in difflib.get_close_matches(name, known, n=1)]
    listed = f"; supported are {', '.join(sorted({*FAMILIES}))}"
    return f": the nearest name that is supported is {near[0]} ({known[near[0]].name}){listed}" if near else listed


def is_named(family: Family, name: str) -> bool:
    """Whether a name is one of the family's examples, or has a part by which the family is known."""
    known = {example.lower() for example in family.examples if family.names}
    return name.lower() in known or any(re.search(part, name, re.IGNORECASE) for part in family.names)


def _has_mask(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> bool:
    return config.get("mask_token_id") is not None or bool(tokenizer.get("mask_token"))


def _names(families: list[Family]) -> str:
    return " and ".join(repr(family.name) for family in families)
