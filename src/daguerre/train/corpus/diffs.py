"""Frozen held-out diffs (daguerre/assets/heldout-diffs.json): regions of test packages' files in two versions.

`freeze_diffs(new, old, out)` makes them again, byte for byte, from the wheels of both versions:

    pip download --no-deps --only-binary :all: --dest new NAME==VERSION ...    with the versions of recipes/corpus.txt
    pip download --no-deps --only-binary :all: --dest old NAME==VERSION ...    with those of EARLIER
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from email.parser import HeaderParser
from importlib import resources
from itertools import chain, islice, zip_longest
from pathlib import Path
from zipfile import ZipFile

from daguerre.errors import DataError
from daguerre.files import atomic_write
from daguerre.heldout import load_frozen
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus import licenses
from daguerre.train.corpus.sources import heldout_splits, normalize

EARLIER = {
    "anyio": "4.5.2",
    "arrow": "1.2.3",
    "attrs": "23.2.0",
    "boltons": "23.1.1",
    "cattrs": "23.2.3",
    "click": "8.1.8",
    "flask": "2.3.3",
    "h11": "0.13.0",
    "httpx": "0.26.0",
    "humanize": "4.9.0",
    "itsdangerous": "2.0.1",
    "marshmallow": "3.26.2",
    "mistune": "3.0.2",
    "more-itertools": "10.3.0",
    "packaging": "24.1",
    "requests": "2.31.0",
    "simpy": "4.0.2",
    "starlette": "0.40.0",
    "tenacity": "8.5.0",
    "toolz": "0.12.1",
    "werkzeug": "2.3.8",
}
"""The earlier version of each package: one or two feature releases back."""
KEPT_LINES = 3
"""Unchanged lines around a change that belong to its region, as in a unified diff."""
MIN_LINES = 4
REGION_TOKENS = (40, 250)
CONTEXT_TOKENS = 300
NUM_HUNKS = 60


@dataclass(frozen=True)
class Hunk:
    """A region of a file in two versions, as whole lines, and the text before it in the new file.

    version, old_version   of the package
    license                SPDX expression of the new version
    sha256, old_sha256     of the UTF-8 text of the two files
    context                whole lines right before the region, at most CONTEXT_TOKENS tokens of our 2k vocabulary
    old, new               the region: changed lines, and up to KEPT_LINES unchanged ones on either side
    """

    package: str
    version: str
    old_version: str
    license: str
    file: str
    sha256: str
    old_sha256: str
    context: str = field(repr=False)
    old: str = field(repr=False)
    new: str = field(repr=False)

    @property
    def key(self) -> str:
        """A hash of what the hunk is, to order hunks by."""
        return sha256(f"{self.package}\n{self.file}\n{self.context}\n{self.new}")


def load_diffs() -> list[Hunk]:
    """The frozen hunks."""
    content = (resources.files("daguerre") / "assets" / "heldout-diffs.json").read_text(encoding="utf-8")
    names = [each.name for each in fields(Hunk)]
    return [Hunk(*(record[name] for name in names)) for record in json.loads(content)["hunks"]]


def freeze_diffs(new: Path, old: Path, out: Path, *, num: int = NUM_HUNKS) -> list[Hunk]:
    """Write at most `num` hunks to the file `out` and return them; `new` and `old` are folders of wheels.

    Packages take turns, each with its hunks in the order of their hashes, so that no score has a part in the choice.
    DataError where a wheel is missing, or its license is not permissive.
    """
    splits, covered = heldout_splits(), {document.package for document in load_frozen()}
    found = []
    for name in sorted(EARLIER):
        if splits.get(name) != "test" or name not in covered:
            raise DataError(f"{name} is not a package of the frozen held-out sample: its license text is not shipped")
        found.append(sorted(_hunks(_Wheel.find(new, name), _Wheel.find(old, name)), key=lambda hunk: hunk.key))
    turns = chain.from_iterable(zip_longest(*found))
    hunks = list(islice((hunk for hunk in turns if hunk is not None), num))
    about = (
        "Regions of files of held-out packages in two versions, made by daguerre.train.corpus.diffs.freeze_diffs; the "
        "packages' licenses are in heldout/LICENSES.txt."
    )
    lines = ",\n".join(json.dumps(asdict(hunk), ensure_ascii=False) for hunk in hunks)
    with atomic_write(out) as file:
        file.write(f'{{"about": {json.dumps(about)}, "hunks": [\n{lines}\n]}}\n'.encode())
    return hunks


@dataclass(frozen=True)
class _Wheel:
    """What is read of a wheel: its Python files that are UTF-8 and have only line feeds, by path."""

    name: str
    version: str
    license: str
    files: dict[str, str]

    @classmethod
    def find(cls, folder: Path, name: str) -> _Wheel:
        paths = [path for path in sorted(folder.glob("*.whl")) if normalize(path.name.split("-")[0]) == name]
        if len(paths) != 1:
            raise DataError(f"{folder} has {len(paths)} wheels of {name}, not one: download it with pip")
        with ZipFile(paths[0]) as wheel:
            about = next(each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            metadata = HeaderParser().parsestr(wheel.read(about).decode("utf-8"))
            texts = {each: wheel.read(each) for each in wheel.namelist() if each.endswith(".py")}
        verdict = licenses.judge(metadata)
        if verdict.license is None:
            raise DataError(f"the license of {name} {metadata['Version']} is not known to be permissive")
        files = {path: text for path, content in texts.items() if (text := _readable(content)) is not None}
        return cls(name, metadata["Version"], verdict.license, files)


def _readable(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\r" in text else text


def _hunks(new: _Wheel, old: _Wheel) -> Iterator[Hunk]:
    """The usable hunks of every file that both versions have."""
    for path in sorted(new.files.keys() & old.files.keys()):
        one, other = new.files[path], old.files[path]
        for context, before, after in changed_regions(other, one, Tokenizer.default("2k")):
            hashes = sha256(one), sha256(other)
            yield Hunk(new.name, new.version, old.version, new.license, path, *hashes, context, before, after)


def changed_regions(old: str, new: str, tokenizer: Tokenizer) -> Iterator[tuple[str, str, str]]:
    """(context, old region, new region) of the changes from one text to another that are usable as hunks.

    A region has MIN_LINES lines or more, a line that is replaced or new and one that is kept, and REGION_TOKENS tokens.
    """
    befores, afters = old.splitlines(keepends=True), new.splitlines(keepends=True)
    low, high = REGION_TOKENS
    for group in difflib.SequenceMatcher(None, befores, afters, autojunk=False).get_grouped_opcodes(KEPT_LINES):
        kinds = {kind for kind, *_ in group}
        start, end = group[0][3], group[-1][4]
        before, after = "".join(befores[group[0][1] : group[-1][2]]), "".join(afters[start:end])
        sizes = [len(tokenizer.encode(text)) for text in (before, after)]
        if (
            "equal" in kinds
            and kinds & {"replace", "insert"}
            and end - start >= MIN_LINES
            and all(low <= size <= high for size in sizes)
            and before.split() != after.split()
        ):
            context = _context(afters[:start], tokenizer)
            if context:
                yield context, before, after


def _context(lines: list[str], tokenizer: Tokenizer) -> str:
    """As many of the last lines as have CONTEXT_TOKENS tokens, each encoded alone."""
    start, left = len(lines), CONTEXT_TOKENS
    while start > 0 and (size := len(tokenizer.encode(lines[start - 1]))) <= left:
        start, left = start - 1, left - size
    return "".join(lines[start:])


def sha256(text: str) -> str:
    """The hash of a text's UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
