"""Where source files come from: the standard library, installed distributions, the user's folders."""

from __future__ import annotations

import os
import platform
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.resources import files
from itertools import chain, count
from pathlib import Path, PurePosixPath

from daguerre.errors import DataError
from daguerre.train.corpus import licenses

# Left out of the standard library: its tests (deliberately broken code, big tables) and installed packages.
_NOT_STDLIB = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload", "__phello__")
)
USER_PROVIDED = "user-provided"
_NOT_USERS = frozenset(("site-packages", "__pycache__"))


@dataclass(frozen=True)
class Package:
    """Files of one package. `files` are posix paths relative to `root`; `license` is an SPDX id, or USER_PROVIDED."""

    name: str
    version: str
    license: str
    root: Path
    files: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    """A distribution that is left out, and why."""

    name: str
    version: str
    reason: str


def find_packages(sources: Sequence[Path], *, stdlib: bool = True, installed: bool = True) -> list[Package | Skipped]:
    """Every package of the sources, the running interpreter and its standard library, each name once, the first wins.

    The user's folders are all kept: one whose name is another package's, or on the held-out list, gets a number.
    DataError when a source is not a folder.
    """
    given = [package for source in sources for package in from_folder(source)]
    users = [package for package in given if isinstance(package, Package) and package.license == USER_PROVIDED]
    found = [package for package in given if package not in users]
    if stdlib:
        found.append(standard_library())
    if installed:
        found += distributions(None)
    unique: dict[str, Package | Skipped] = {}
    for package in found:
        unique.setdefault(package.name, package)
    taken = {name for name, package in unique.items() if isinstance(package, Package)} | heldout_splits().keys()
    return [*unique.values(), *_with_free_names(users, taken)]


def _with_free_names(packages: Iterable[Package], taken: set[str]) -> Iterator[Package]:
    for package in packages:
        names = chain([package.name], (f"{package.name}-{number}" for number in count(2)))
        name = next(name for name in names if normalize(name) not in taken)
        taken.add(normalize(name))
        yield replace(package, name=name)


def from_folder(folder: Path) -> list[Package | Skipped]:
    """A site-packages folder's distributions if it holds any *.dist-info, else the folder as the user's code."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give --source a folder of Python files or a site-packages folder")
    if any(folder.glob("*.dist-info")):
        return distributions([str(folder)])
    return [user_folder(folder)]


def user_folder(folder: Path, chosen: tuple[str, ...] | None = None) -> Package:
    """The user's code, or the chosen files: no license is needed. The package is named after the folder."""
    name = folder.resolve().name or "folder"
    return Package(name, "", USER_PROVIDED, folder, tuple(walk(folder, _NOT_USERS)) if chosen is None else chosen)


def standard_library() -> Package:
    """The running interpreter's standard library, without its tests; `idlelib` and `turtledemo` are kept."""
    root = Path(sysconfig.get_path("stdlib"))
    return Package("python-stdlib", platform.python_version(), "PSF-2.0", root, tuple(walk(root, _NOT_STDLIB)))


def distributions(path: list[str] | None) -> list[Package | Skipped]:
    """Installed distributions with a permissive license, and the others with the reason; sorted by name."""
    found = metadata.distributions(path=path) if path is not None else metadata.distributions()
    packages = [package for distribution in found if (package := _from_distribution(distribution)) is not None]
    return sorted(packages, key=lambda package: package.name)


def heldout_splits() -> dict[str, str]:
    """{normalized package name: "test" or "val"} of the fixed list that is shipped with the package."""
    lines = (files("daguerre.train.corpus") / "heldout.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {normalize(name): split for name, split in pairs}


def normalize(name: str) -> str:
    """A distribution's name by PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _from_distribution(distribution: metadata.Distribution) -> Package | Skipped | None:
    meta = distribution.metadata
    if meta is None or not meta["Name"]:
        return None
    name, version = normalize(meta["Name"]), meta["Version"] or ""
    verdict = licenses.judge(meta)  # type: ignore[arg-type]
    if verdict.license is None:
        return Skipped(name, version, f"license {verdict.reason}")
    if distribution.files is None:
        return Skipped(name, version, "no list of its files (an editable or broken installation)")
    names = sorted(_python_files(map(str, distribution.files)))
    return Package(name, version, verdict.license, Path(str(distribution.locate_file(""))), tuple(names))


def _python_files(names: Iterable[str]) -> Iterator[str]:
    for name in {name.replace(os.sep, "/") for name in names}:
        parts = PurePosixPath(name).parts
        if name.endswith(".py") and ".." not in parts and not name.startswith("/") and "__pycache__" not in parts:
            yield name


def is_python(name: str) -> bool:
    return name.endswith(".py")


def walk(root: Path, excluded: frozenset[str], wanted: Callable[[str], bool] = is_python) -> Iterator[str]:
    """Files below `root` by their names, sorted, without the excluded and hidden folders; symbolic links are not
    followed.
    """
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in excluded and not name.startswith("."))
        for name in sorted(names):
            if wanted(name) and not os.path.islink(os.path.join(folder, name)):
                yield Path(folder, name).relative_to(root).as_posix()
