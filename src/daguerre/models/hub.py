"""Models by their name on a hub: downloaded by huggingface_hub into its cache, with its progress and its settings.

What it reads from the environment (HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT, HF_TOKEN) is its own affair. Only what a model
needs is downloaded: JSON, safetensors and vocabularies from the top folder, and never code or pickles.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daguerre.errors import CheckpointError, DaguerreError, InputError
from daguerre.models.adapter_files import CONFIG as ADAPTER
from daguerre.models.families import find_family
from daguerre.models.json_files import read_json
from daguerre.models.published import is_published
from daguerre.models.readers import CONFIG
from daguerre.models.tokenizer_files import CONFIG as TOKENIZER_CONFIG

NAME = re.compile(r"[\w.-]+/[\w.-]+")
SMALL = ("*.json",)
"""Read first: a model that is not supported is refused before its weights are downloaded."""
WORDS = ("*.json", "*.model", "*.tiktoken", "*.jinja", "merges.txt", "vocab.txt")
"""What a tokenizer needs."""
FILES = (*WORDS, "*.safetensors")
TEMPLATES = ("additional_chat_templates/*.jinja",)
"""Chat templates beside the first."""
OTHERS = ("*/*", "consolidated*", "optimizer*", "training_args*")
"""Other copies of the weights, and what training left behind."""


def is_name(name: str) -> bool:
    """Whether a string that is no folder here can be the name of a model on a hub: owner/repository[@revision]."""
    return NAME.fullmatch(name.partition("@")[0]) is not None and not name.startswith(".")


def pull(name: str, revision: str | None = None, *, family: str | None = None, weights: bool = True) -> Path:
    """The folder of a model, or an adapter, in the hub's cache, downloaded if it is not there yet.

    name      owner/repository, or owner/repository@revision
    revision  a branch, tag or commit; by default the repository's main branch
    weights   False: only the small files

    InputError for a name, revision or right of access that the hub does not have; UnsupportedError for a model of no
    known family; CheckpointError where it cannot be downloaded.
    """
    repository, revision = _split(name, revision)
    folder = _download(repository, revision, SMALL)
    config = read_json(folder / CONFIG)
    if not config and not (folder / ADAPTER).exists():
        raise CheckpointError(
            f"{repository} has no {CONFIG}: it is no model; check the name; a GGUF file of it is "
            f"hf:{repository} or hf:{repository}:Q4_K_M"
        )
    if config and is_published(config):
        words = read_json(folder / TOKENIZER_CONFIG)
        found = find_family(config, tokenizer=words, name=repository, family=family)
        bundled = "" if found.bundled is None else f"{found.bundled.folder}/adapter_"
        beside = [f"{bundled}*" if weights else f"{bundled}config.json"] if bundled else []
        _download(repository, revision, (*TEMPLATES, *beside), ignored=())
    return _download(repository, revision, FILES if weights else WORDS)


def _split(name: str, revision: str | None) -> tuple[str, str | None]:
    """The repository and the revision that a name and an option give. InputError where they give none, or two."""
    repository, at, pinned = name.partition("@")
    if not is_name(name):
        raise InputError(f"{name!r} is not a name on a hub: give owner/repository, or owner/repository@revision")
    if not isinstance(revision, str | None) or revision == "" or (at and not pinned):
        raise InputError(f"the revision of {name!r} is not a branch, tag or commit: name one, or leave it out")
    if pinned and revision not in (None, pinned):
        raise InputError(f"{name!r} names another revision than {revision!r}: leave out one of the two")
    return repository, pinned or revision


def pull_tokenizer(name: str, revision: str | None = None) -> Path:
    """The folder of a tokenizer in the hub's cache, without weights; see `pull`."""
    repository, revision = _split(name, revision)
    _download(repository, revision, TEMPLATES, ignored=())
    return _download(repository, revision, WORDS)


def _download(repository: str, revision: str | None, files: tuple[str, ...], ignored: tuple[str, ...] = OTHERS) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=[*files], ignore_patterns=[*ignored])
        )
    except Exception as error:  # the library's errors, its HTTP client's and those of the file system
        raise translated(error, repository, revision) from None


def translated(error: Exception, repository: str, revision: str | None) -> DaguerreError:
    """What an error of the library means for a user, in one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return InputError(
            f"{repository} is gated: accept its terms on its page of the hub, then log in with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{repository} has no revision {revision!r}: check it, or leave it out")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return InputError(
            f"the hub has no model {repository!r} that you may see, and there is no such folder here: check the name, "
            "or log in with `hf auth login`"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(f"no space is left to download {repository}: make room, or set HF_HOME to another disk")
    at = f"{repository} at {revision}" if revision else repository
    absent = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.IncompleteSnapshotError)
    if isinstance(error, absent):
        return CheckpointError(
            f"{at} is not in the cache as a whole, the hub cannot be reached, and there is no such folder here: "
            "connect, unset HF_HUB_OFFLINE, or check the path"
        )
    if is_of_files(error):
        return CheckpointError(f"the cache cannot hold {at} ({error}): set HF_HOME to a folder that can be written")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"{at} cannot be downloaded ({reason}): try again, which continues where it stopped")


def is_of_files(error: Exception) -> bool:
    """Whether the system refused a file, not a connection."""
    own = isinstance(error, OSError) and type(error).__module__ == "builtins" and error.errno is not None
    return own and not isinstance(error, ConnectionError | TimeoutError)


@dataclass(frozen=True)
class Cached:
    """What the hub's cache has: a model's name, revision, kind (None: not supported, for `reason`), bytes and folder;
    see `kind_of`.
    """

    name: str
    revision: str
    family: str | None
    num_bytes: int
    folder: Path
    reason: str = ""


def kind_of(folder: Path, name: str, family: str | None = None) -> str:
    """The family of a model in a folder, as `find_family` finds it; "daguerre" for our own layout, and "adapter"."""
    config = read_json(folder / CONFIG)
    if not config:
        if (folder / ADAPTER).exists():
            return "adapter"
        raise CheckpointError(f"it has no {CONFIG}: it is no model")
    if not is_published(config):
        return "daguerre"
    return find_family(config, tokenizer=read_json(folder / TOKENIZER_CONFIG), name=name, family=family).name


def cached() -> Iterator[Cached]:
    """The models in the hub's cache, by name; every revision that is there."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repository in sorted(
        (each for each in repositories if each.repo_type == "model"), key=lambda each: each.repo_id
    ):
        for revision in sorted(repository.revisions, key=lambda each: each.last_modified, reverse=True):
            folder, family, reason = revision.snapshot_path, None, ""
            try:
                family = kind_of(folder, repository.repo_id)
            except DaguerreError as error:
                reason = str(error)
            short = ",".join(sorted(revision.refs)) or revision.commit_hash[:8]
            yield Cached(repository.repo_id, short, family, revision.size_on_disk, folder, reason)


def delete(repository: str) -> int | None:
    """Delete a model from the hub's cache; the bytes that it had, None where it is not there."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        held = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return None
    found = [one for each in held.repos if each.repo_id == repository for one in each.revisions]
    if not found:
        return None
    plan = held.delete_revisions(*(one.commit_hash for one in found))
    plan.execute()
    return plan.expected_freed_size
