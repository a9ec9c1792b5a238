"""The wheel with compiled libraries, alone in a new environment: no PyTorch, no compiler, and no OpenMP runtime of the
system's. The README runs, a server answers, and so does the part of the suite that needs no PyTorch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from backends import needs_compiler
from daguerre.models import prebuilt, processor
from test_documents import README, fenced

pytestmark = [
    pytest.mark.slow,
    needs_compiler,
    pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in prebuilt.LEVELS, reason="has no wheel"),
]
ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 200e6
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "httpx2", "jsonschema", "packaging", "matplotlib")
"""What the tests need beside the extras below."""
EXTRAS = ("serve", "route", "gguf", "audit")
LEFT_OUT = (
    *(
        "attacks",
        "audit",
        "emulated",
        "evals",
        "families",
        "faults",
        "first_hour",
        "fuzz",
        "gpu",
        "models",
        "real",
        "router",
    ),
    *("train", "test_house.py", "test_imports.py", "test_packaging.py", "test_parts.py", "test_deploy.py"),
)
"""Of the suite: what needs PyTorch for the most part, what takes long, and what tests the sources of the checkout. The
rest takes some three minutes.
"""
LEAST_TESTS = 900
"""How many of them run at least: the others need PyTorch."""
HIDING = """
for lib in $(find -L /lib /lib64 /usr/lib /usr/local/lib -name 'libgomp.so*' 2>/dev/null); do
    mount --bind /dev/null "$lib" || exit 1
done
exec "$@"
"""
"""A program for the shell that runs its arguments where no library of the system's is GNU's OpenMP runtime."""
RUNTIMES = """
from pathlib import Path
print({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line})
"""


@dataclass(frozen=True)
class Bare:
    """An environment with the wheel and what that asks for, and a folder to run in."""

    programs: Path
    folder: Path
    wheel: Path

    @property
    def environment(self) -> dict[str, str]:
        """No compiler is found, nobody's cache, and no package of the environment that runs the tests."""
        own = {"PATH": str(self.programs), "HOME": str(self.folder), "DAGUERRE_CACHE": str(self.folder / "cache")}
        return own | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(self, program: str, *arguments: str, before: Sequence[str] = ()) -> str:
        """What a program of the environment prints; `before`: a command that runs it."""
        command = [*before, str(self.programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, *what: str) -> float:
        """Install packages with the pip of this environment; returns the seconds that it took."""
        own = (sys.executable, "-m", "pip", "--python", str(self.programs / "python"), "--disable-pip-version-check")
        start = time.perf_counter()
        command = [*own, "install", "--quiet", "--compile", "--constraint", str(ROOT / "constraints.txt"), *what]
        subprocess.run(command, cwd=self.folder, check=True)
        return time.perf_counter() - start


def make_bare(folder: Path) -> Bare:
    """With libraries for this processor's level alone: each takes as long to compile."""
    level = f"{platform.machine()}:{processor.instruction_set()}"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, env=os.environ | {"DAGUERRE_PREBUILT": level}, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    return Bare(folder / "environment" / "bin", folder, wheel)


def whole_size(environment: Path) -> int:
    """Bytes of the files of an environment, as if its wheel had libraries for every level: they are of about a size."""
    files = [path for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    libraries = [path for path in files if path.parent.name == "prebuilt" and path.suffix == ".so"]
    assert len(libraries) == len(prebuilt.SOURCES)
    more = len(prebuilt.levels(platform.machine())) - 1
    return sum(path.stat().st_size for path in files) + more * sum(path.stat().st_size for path in libraries)


def check_size(bare: Bare) -> str:
    """Its files with compiled Python are small. Returns what it took, in words: a time is said, not asserted."""
    seconds = bare.install(str(bare.wheel))
    size = whole_size(bare.programs.parent)
    assert any(bare.programs.parent.rglob("*.pyc"))
    assert 100e6 < size <= MOST_BYTES
    return f"installed in {seconds:.0f} s, {size / 1e6:.1f} MB with the libraries of every level"


def check_readme(bare: Bare) -> None:
    """It prints what it says, where the system has no OpenMP runtime."""
    (code,), (output,) = fenced(README, "python"), fenced(README, "text")
    printed, runtimes = bare.run("python", "-c", code + RUNTIMES, before=hidden()).rstrip().rsplit("\n", 1)
    assert printed.rstrip() == output.rstrip()
    (site,) = bare.programs.parent.glob("lib/python*/site-packages")
    assert runtimes == str({str(site / "daguerre" / "prebuilt" / prebuilt.OPENMP)})
    assert not (bare.folder / "cache" / "compiled").exists()


def hidden() -> list[str]:
    """What runs a command without the OpenMP runtimes of the system; nothing where that is not allowed."""
    command = ["/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "unshare", "--mount", "sh", "-c", HIDING, "sh"]
    able = (
        shutil.which("unshare") and not subprocess.run([*command, "true"], check=False, capture_output=True).returncode
    )
    return command if able else []


def check_commands(bare: Bare) -> None:
    assert bare.run("daguerre", "--version").startswith("daguerre ")
    assert "generate" in bare.run("daguerre", "--help")
    code = "import daguerre; print(daguerre.load().generate('def f', max_tokens=16).text)"
    assert bare.run("daguerre", "generate", "def f", "--max-tokens", "16") == bare.run("python", "-c", code)
    command = [str(bare.programs / "daguerre"), "train", "tiny", str(ROOT / "src")]
    done = subprocess.run(command, cwd=bare.folder, env=bare.environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "daguerre: torch is not installed: run `pip install 'daguerre[torch]'`\n",
    )


def check_server(bare: Bare) -> None:
    command = [str(bare.programs / "daguerre"), "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=bare.folder, env=bare.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = (re.search(r"http://[\w.]+:\d+", line) for line in process.stdout)
            address = next(found[0] for found in lines if found)
            body = json.dumps({"prompt": "def f", "max_tokens": 8}).encode()
            asked = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert json.load(answer)["choices"][0]["text"]
        finally:
            process.terminate()


def check_suite(bare: Bare) -> str:
    """Against the installed wheel; what needs PyTorch is skipped. Returns pytest's last line."""
    assert "torch" not in bare.run("python", "-c", "import sys, pytest, daguerre.model; print(*sys.modules)").split()
    own = bare.environment | {"PATH": f"{bare.programs}:{os.environ['PATH']}"}
    options = shlex.split("-m pytest -q --numprocesses auto --dist worksteal -p no:cacheprovider -m 'not slow'")
    left_out = [f"--ignore={ROOT / 'tests' / name}" for name in LEFT_OUT]
    command = [str(bare.programs / "python"), *options, *left_out, str(ROOT / "tests")]
    done = subprocess.run(command, cwd=ROOT, env=own, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found and int(found[1]) >= LEAST_TESTS, done.stdout[-1000:]
    return done.stdout.splitlines()[-1]


def test_the_bare_wheel(tmp_path: Path, subtests: pytest.Subtests, capfd: pytest.CaptureFixture[str]) -> None:
    """One test, whose parts share an environment."""
    bare = make_bare(tmp_path)
    took = check_size(bare)
    for check in (check_readme, check_commands):
        with subtests.test(check.__name__):
            check(bare)
    bare.install(f"{bare.wheel}[{','.join(EXTRAS)}]", *TOOLS)
    with subtests.test("server"):
        check_server(bare)
    with capfd.disabled():
        sys.stderr.write(f"\nthe bare wheel: {took}; tests without PyTorch: {check_suite(bare)}\n")
