"""From packages to chosen documents: harvest each package (in processes, kept on disk), then select."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from daguerre.errors import DataError
from daguerre.heldout import Document
from daguerre.train.corpus.document import CorpusDocument, Harvest
from daguerre.train.corpus.harvest import always, harvest, harvest_path, harvest_to
from daguerre.train.corpus.languages import text_files
from daguerre.train.corpus.parallel import WorkerPool
from daguerre.train.corpus.selection import select
from daguerre.train.corpus.sources import Package, Skipped, heldout_splits, user_folder


@dataclass(frozen=True)
class Gathered:
    """Documents chosen for a corpus, by split, and what a `CorpusSummary` says of what was read and left out."""

    splits: dict[str, list[CorpusDocument]]
    facts: dict[str, Any]


def gather(
    found: Sequence[Package | Skipped],
    work: Path,
    *,
    pool: WorkerPool,
    near_duplicates: float | None,
    max_share: float,
    frozen: Sequence[Document] = (),
) -> Gathered:
    """Choose documents from packages; see `select`. DataError, with the counts, when none is left."""
    packages = [package for package in found if isinstance(package, Package)]
    skipped = [package for package in found if isinstance(package, Skipped)]
    harvests = harvest_all(packages, work / "packages", pool)
    splits = {package.name: heldout_splits().get(package.name, "train") for package in packages}
    selection = select(harvests, splits, threshold=near_duplicates, max_share=max_share, frozen=frozen)
    for each in harvests.values():
        selection.dropped.update(each.dropped)
    dropped, seen = dict(selection.dropped.most_common()), sum(len(package.files) for package in packages)
    if not any(selection.splits.values()):
        raise DataError(_nothing_left(seen, dropped, skipped, "pass --source with a folder of Python files"))
    facts = {
        "dropped": dropped,
        "skipped": {package.name: package.reason for package in skipped},
        "bad_files": {name: each.bad_files for name, each in harvests.items() if each.bad_files},
        "seen_files": seen,
        "seen_bytes": sum(each.seen_bytes for each in harvests.values()),
    }
    return Gathered(selection.splits, facts)


def harvest_all(packages: Sequence[Package], cache: Path, pool: WorkerPool) -> dict[str, Harvest]:
    """{package name: what it gave}; packages already in `cache` are not read again."""
    cache.mkdir(parents=True, exist_ok=True)
    paths = {package.name: harvest_path(package, cache) for package in packages}
    done = {name: Harvest.load(path) for name, path in paths.items()}
    todo = sorted((p for p in packages if done[p.name] is None), key=lambda package: -len(package.files))
    pool.map(partial(harvest_to, cache), todo, "read packages")
    made = {package.name: done[package.name] or Harvest.load(paths[package.name]) for package in packages}
    return {name: each for name, each in made.items() if each is not None}


def gather_folder(
    folder: Path, hint: str = "give a folder", *, any_language: bool = False, has_time: Callable[[], bool] = always
) -> Harvest:
    """Files of the user's folder that pass the filters, each text once: of Python, or of any language. Once
    `has_time` is false, the rest counts as dropped. DataError, with the hint, for none.
    """
    kind = "text files" if any_language else "Python files"
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: {hint} of {kind}")
    package = user_folder(folder, text_files(folder) if any_language else None)
    harvested = harvest(package, signatures=False, any_language=any_language, has_time=has_time)
    unique = {document.sha256: document for document in harvested.documents}
    if not unique:
        raise DataError(_nothing_left(len(package.files), harvested.dropped, [], f"{hint} of {kind}"))
    return replace(harvested, documents=list(unique.values()))


def _nothing_left(seen: int, dropped: dict[str, int], skipped: Sequence[Skipped], hint: str) -> str:
    reasons = [f"{count} {reason}" for reason, count in Counter(dropped).most_common()]
    packages = Counter(package.reason.split(":")[0] for package in skipped)
    reasons += [f"{count} packages skipped ({reason})" for reason, count in packages.most_common(3)]
    return f"no file left: {', '.join([f'{seen} seen', *reasons])}; {hint}"
