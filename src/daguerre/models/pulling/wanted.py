"""What a name asks for: an entry of the catalogue, or files of a repository on a hub."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models.gguf.header import KINDS, PART
from daguerre.models.pulling.catalogue import CatalogueEntry, entry_of, known_names

HUBS = ("hf:", "hf.co/", "huggingface.co/")
"""What a name of a repository may begin with."""
NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<tag>[\w.-]+))?")
FIRST = "Q4_K_M Q4_K_S Q5_K_M Q4_1 Q4_0 Q5_K_S Q5_0 Q5_1 Q6_K Q8_0 BF16 F16 F32".split()
"""Which file of a repository is taken where none is named: the first that there is."""
TYPE = re.compile(
    r"(?<![A-Za-z0-9])(I?Q\d_\w+?|IQ\d\w*?|TQ\d_\d|MXFP4(_MOE)?|NVFP4|BF16|F16|F32)(?=[-./]|$)", re.IGNORECASE
)
"""The type in the name of a GGUF file."""
BESIDE = ("mmproj", "imatrix")
"""What a GGUF file's name has that is no language model."""


@dataclass(frozen=True, kw_only=True)
class WantedModel:
    """What a name asks for.

    name  by which it is kept: the entry's first, or hf:OWNER/REPO[@REVISION][:TAG]
    tag   a quantization or the name of a file; None: the first of FIRST
    """

    name: str
    entry: CatalogueEntry | None = None
    repository: str | None = None
    revision: str | None = None
    tag: str | None = None


def is_wanted(name: str) -> bool:
    """Whether a string is a name of the catalogue, or begins as one of a hub's repository."""
    return name.startswith(HUBS) or entry_of(name) is not None


def wanted(name: str, revision: str | None = None) -> WantedModel:
    """What a name asks for, at a revision. InputError for a name that is none."""
    entry = entry_of(name)
    if entry is not None:
        return WantedModel(
            name=entry.name,
            entry=entry,
            repository=entry.repository,
            revision=revision,
            tag=entry.file or entry.quantization,
        )
    prefix = next((each for each in HUBS if name.startswith(each)), None)
    found = None if prefix is None else NAME.fullmatch(name.removeprefix(prefix))
    if found is None:
        raise InputError(f"{name!r} is no name of a model: {hint(name)}")
    if revision is not None and found["revision"] not in (None, revision):
        raise InputError(f"{name!r} names another revision than {revision!r}: leave out one of the two")
    revision, tag = found["revision"] or revision, found["tag"]
    if tag is not None and not tag.lower().endswith(".gguf"):
        tag = tag.upper()
    written = f"hf:{found['repository']}{f'@{revision}' if revision else ''}{f':{tag}' if tag else ''}"
    return WantedModel(name=written, repository=found["repository"], revision=revision, tag=tag)


def hint(name: str) -> str:
    """What a name could have been."""
    near = difflib.get_close_matches(name.lower()[:60], known_names(), n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "names on a hub are owner/repository, GGUF files hf:OWNER/REPO:Q4_K_M; `daguerre models` lists short names"


def files_of(wanted: WantedModel, listed: list[str]) -> list[str]:
    """The GGUF file that is wanted of those of a repository, or all its parts in order.

    InputError where none is, or several are; UnsupportedError for a type that is not read; CheckpointError where the
    repository lacks a part.
    """
    found = dict[str, list[str]]()
    for path in sorted(listed):
        name = PurePosixPath(path).name
        if name.lower().endswith(".gguf") and not any(word in name.lower() for word in BESIDE):
            part = PART.fullmatch(path)
            found.setdefault(part["name"] if part else path, []).append(path)
    chosen = _tagged(found, wanted.tag) if wanted.tag else _first(found)
    if len(chosen) != 1:
        what = "none is it" if not chosen else "several are"
        types = sorted({kind for stem in found if (kind := type_of(stem))})
        raise InputError(
            f"of the GGUF files of {wanted.repository} {what}, by {wanted.tag or 'their types'}: name one, as in "
            f"hf:{wanted.repository}:TYPE, of {', '.join(types or sorted(found)[:8]) or 'which it has none'}"
        )
    check_type(chosen[0])
    return _whole(found[chosen[0]])


def _tagged(found: dict[str, list[str]], tag: str) -> list[str]:
    """The files of a tag, a type or the name of a file."""
    named = [stem for stem, paths in found.items() if tag in {*paths, *(PurePosixPath(path).name for path in paths)}]
    return named or [stem for stem in found if type_of(stem) == tag.upper()]


def _first(found: dict[str, list[str]]) -> list[str]:
    """The only file, or the files of the first type that there is."""
    if len(found) == 1:
        return [*found]
    each = ([stem for stem in found if type_of(stem) == kind] for kind in FIRST)
    return next(filter(None, each), [])


def type_of(path: str) -> str | None:
    """The type that the name of a GGUF file says, in capitals; None where it says none."""
    found = TYPE.findall(PurePosixPath(path).name.removesuffix(".gguf")) or TYPE.findall(path)
    return found[-1][0].upper() if found else None


def check_type(path: str) -> None:
    """UnsupportedError for a file whose name says a type that is not read."""
    kind = type_of(path)
    if kind is not None and not kind.startswith(tuple(KINDS)):
        raise UnsupportedError(f"{path} is of the type {kind}, which is not read: name another, such as Q4_K_M or Q8_0")


def _whole(paths: list[str]) -> list[str]:
    """All the parts. CheckpointError where one is missing."""
    part = PART.fullmatch(paths[0])
    if part is not None:
        stem, count = part["name"], int(part["count"])
        for number in range(1, count + 1):
            name = f"{stem}-{number:05}-of-{count:05}.gguf"
            if name not in paths:
                raise CheckpointError(f"the repository lacks {name}, a part of the file: name another file of it")
        return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    return paths
