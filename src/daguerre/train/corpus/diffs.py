"""Frozen held-out diffs (daguerre/assets/heldout-diffs.json): regions of test packages' files in two versions.

They were made from the wheels of the versions of recipes/corpus.txt and of earlier ones, one or two feature releases
back. A region is a change of a file with up to 3 unchanged lines around it, as in a unified diff, that has 4 lines or
more, a line that is replaced or new and one that is kept, and 40 to 250 tokens of our 2k vocabulary in both versions.
Packages took turns, each with its regions in the order of their hashes, so that no score had a part in the choice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from importlib import resources


@dataclass(frozen=True)
class Hunk:
    """A region of a file in two versions, as whole lines, and the text before it in the new file.

    version, old_version   of the package
    license                SPDX expression of the new version
    sha256, old_sha256     of the UTF-8 text of the two files
    context                whole lines right before the region, at most 300 tokens of our 2k vocabulary
    old, new               the region: changed lines, and the unchanged ones on either side
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


def load_diffs() -> list[Hunk]:
    """The frozen hunks."""
    content = (resources.files("daguerre") / "assets" / "heldout-diffs.json").read_text(encoding="utf-8")
    names = [each.name for each in fields(Hunk)]
    return [Hunk(*(record[name] for name in names)) for record in json.loads(content)["hunks"]]
