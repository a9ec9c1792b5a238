"""Installed from a wheel and from git, the command starts, writes, and compiles its native code where it lies.

The dependencies are those of this interpreter, linked into each fresh environment: fetching PyTorch again would test
the network alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import daguerre

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PIP = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> Path:
    """A fresh environment with the dependencies of this one and without Daguerre; returns its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return programs


def install(programs: Path, what: str | Path, cwd: Path) -> None:
    """Install into an environment, with the pip of this one."""
    run(sys.executable, "-m", "pip", "--python", programs / "python", *PIP, what, cwd=cwd)


def check(programs: Path, folder: Path, cache: Path, *more: str) -> None:
    """The program starts from this environment, and writes, also with each of `more` backends. cache: what is compiled
    in it once for equal sources.
    """
    where = run(programs / "python", "-c", "import daguerre; print(daguerre.__file__)", cwd=folder).strip()
    assert Path(where).is_relative_to(programs.parent), "the checkout's package was found, not the installed one"
    assert run(programs / "daguerre", "--version", cwd=folder) == f"daguerre {daguerre.__version__}\n"
    asked = ("generate", "def fib(n):\n    if n", "--max-tokens", "4")
    first = run(programs / "daguerre", *asked, cwd=folder, DAGUERRE_CACHE=str(cache))
    assert first.strip()
    for backend in more:
        assert run(programs / "daguerre", *asked, "--backend", backend, cwd=folder, DAGUERRE_CACHE=str(cache)) == first
    if shutil.which("g++") or shutil.which("clang++"):
        (library,) = cache.rglob("*.so")  # whose name is a hash of the installed sources
        assert library.stat().st_size, "the native code was compiled from the installed sources"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder: what is compiled comes from installed sources."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_from_a_wheel(wheel: Path, tmp_path: Path, cache: Path) -> None:
    assert wheel.name == f"daguerre-{daguerre.__version__}-py3-none-any.whl"  # any platform, C++ as sources
    programs = environment(tmp_path / "environment")
    install(programs, wheel, tmp_path)
    check(programs, tmp_path, cache, "torch")


def repository(folder: Path) -> Path:
    """The files of this checkout in a repository of one commit. This checkout itself may be a shallow clone, of which
    git makes no partial clone, as pip asks for: it waits for ever, whatever the project.
    """
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "-A"), (*named, "commit", "-q", "--no-gpg-sign", "-m", "one")):
        run("git", *command, cwd=folder)
    return folder


def test_from_git(tmp_path: Path, cache: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    programs = environment(tmp_path / "environment")
    install(programs, f"git+file://{repository(tmp_path / 'repository')}", tmp_path)
    check(programs, tmp_path, cache)
