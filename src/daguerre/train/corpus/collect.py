"""The main path of `daguerre data python`: find packages, keep good files, drop duplicates, split by package, tokenize.

Finished work is kept in OUT/work, a file a package and a file a chunk of tokens, so that a rerun after a kill goes on
where it stopped. The folder may be deleted afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from daguerre.errors import DataError, InputError
from daguerre.heldout import load_frozen
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus.dedup import THRESHOLD
from daguerre.train.corpus.encode import encode_documents
from daguerre.train.corpus.gather import Gathered, gather
from daguerre.train.corpus.parallel import WorkerPool
from daguerre.train.corpus.report import CorpusSummary, write_manifest, write_report
from daguerre.train.corpus.sources import Package, Skipped, find_packages
from daguerre.train.shards import read_meta, write_tokens

MAX_SHARE = 0.08


def collect_python(
    out: Path,
    sources: Sequence[Path] = (),
    *,
    tokenizer: str | Path = "2k",
    workers: int | None = None,
    stdlib: bool = True,
    installed: bool = True,
    near_duplicates: float | None = THRESHOLD,
    max_share: float = MAX_SHARE,
    progress: bool = True,
) -> CorpusSummary:
    """Make a corpus of permissively licensed Python in the folder `out`: shards, manifest.jsonl and report.json.

    `tokenizer` is "2k", "8k" or the path of a tokenizer.json. `workers` is the number of processes (None: one a core).
    `near_duplicates` is the similarity from which a file counts as one (None: keep them). `max_share` caps a package's
    share of the bytes. No training file is a duplicate of one in the frozen held-out sample. DataError when nothing is
    left, a source is not a folder or `out` cannot be written; InputError for a number out of range.
    """
    _check(workers, near_duplicates, max_share)
    vocabulary = Tokenizer.load(tokenizer) if isinstance(tokenizer, Path) else Tokenizer.default(tokenizer)
    found = find_packages(sources, stdlib=stdlib, installed=installed)
    try:
        return _collect(out, found, vocabulary, near_duplicates, max_share, WorkerPool(workers, progress))
    except OSError as error:
        raise DataError(f"cannot write {out}: {error}; fix this and run again, finished work is kept") from error


def _collect(
    out: Path,
    found: Sequence[Package | Skipped],
    tokenizer: Tokenizer,
    near_duplicates: float | None,
    max_share: float,
    pool: WorkerPool,
) -> CorpusSummary:
    started = time.perf_counter()
    gathered = gather(
        found,
        out / "work",
        pool=pool,
        near_duplicates=near_duplicates,
        max_share=max_share,
        frozen=load_frozen(),
    )
    tokens = encode_documents(gathered.splits, tokenizer, out / "work", pool)
    write_manifest(out, gathered.splits)
    write_tokens(out, tokens, tokenizer)
    summary = _summarize(out, gathered, time.perf_counter() - started)
    write_report(out, summary)
    return summary


def _summarize(out: Path, gathered: Gathered, seconds: float) -> CorpusSummary:
    splits = read_meta(out)["splits"]
    return CorpusSummary(
        out=out,
        packages=len({document.package for documents in gathered.splits.values() for document in documents}),
        documents={split: counts["documents"] for split, counts in splits.items()},
        bytes={split: counts["bytes"] for split, counts in splits.items()},
        tokens={split: counts["tokens"] for split, counts in splits.items()},
        seconds=round(seconds, 2),
        **gathered.facts,
    )


def _check(workers: int | None, near_duplicates: float | None, max_share: float) -> None:
    if workers is not None and workers < 1:
        raise InputError(f"workers must be 1 or more, not {workers}; leave it out for one a core")
    if near_duplicates is not None and not 0 < near_duplicates <= 1:
        raise InputError(
            f"near_duplicates is a similarity above 0 and at most 1, not {near_duplicates}; None keeps near duplicates"
        )
    if not 0 < max_share <= 1:
        raise InputError(f"max_share is a share above 0 and at most 1, not {max_share}")
