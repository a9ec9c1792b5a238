"""The built wheel: complete, of one version, and able to start."""

from __future__ import annotations

import ast
import configparser
import email.message
import email.parser
import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package_files() -> dict[str, int]:
    """Every file of the package, as a wheel names it, with its size; recipes lie outside `src`, and those that commands
    know by name go into it, without the folders of experiments.
    """
    files = [path for path in (SOURCE / "daguerre").rglob("*") if path.is_file()]
    kept = [path for path in files if path.suffix != ".pyc" and path.name[0] != "."]
    return {path.relative_to(SOURCE).as_posix(): path.stat().st_size for path in kept} | {
        f"daguerre/{path.relative_to(ROOT).as_posix()}": path.stat().st_size
        for path in (ROOT / "recipes").glob("*.toml")
    }


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from the source distribution, so that what that one lacks is missed here too."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        yield file


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def headers(wheel: zipfile.ZipFile) -> email.message.Message:
    return email.parser.Parser().parsestr(metadata(wheel, "METADATA"))


def test_the_wheel_holds_every_module_and_asset_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    held = {info.filename: info.file_size for info in wheel.infolist() if ".dist-info/" not in info.filename}

    assert held == package_files()


def test_the_wheel_holds_files_of_every_kind_that_the_package_reads(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()

    assert "daguerre/py.typed" in names
    for asset in ("tokenizer-2k.json", "tokenizer-8k.json", "heldout/sample.jsonl", "heldout/LICENSES.txt"):
        assert f"daguerre/assets/{asset}" in names
    for part in ("config.json", "model.safetensors", "tokenizer.json"):
        assert f"daguerre/assets/default/{part}" in names
        assert f"daguerre/assets/concepts-model/{part}" in names
    assert "daguerre/assets/concepts-model/concepts.json" in names
    assert "daguerre/train/corpus/heldout.txt" in names
    assert "daguerre/recipes/small.toml" in names
    for source in (
        "forward.cpp",
        *(f"{name}.h" for name in "answers attention draws hidden model products vectors".split()),
    ):
        assert f"daguerre/models/backends/native/{source}" in names


def test_the_wheel_has_the_version_license_and_command_of_the_project(wheel: zipfile.ZipFile) -> None:
    scripts = configparser.ConfigParser()
    scripts.read_string(metadata(wheel, "entry_points.txt"))

    assert headers(wheel)["Version"] == PROJECT["version"]
    assert headers(wheel)["License-Expression"] == "Apache-2.0"
    assert dict(scripts["console_scripts"]) == {"daguerre": "daguerre.cli:main"}
    assert metadata(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_command_of_the_unpacked_wheel_starts(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = "import sys; sys.path.insert(0, '.'); from daguerre import cli; print(cli.__file__, callable(cli.main))"

    assert run("-c", script, cwd=tmp_path).split() == [str(tmp_path / "daguerre" / "cli.py"), "True"]


def test_the_version_is_written_in_one_place() -> None:
    written = re.compile(r"""version\S*\s*=\s*["']\d+\.\d+""", re.IGNORECASE)
    texts = {path: path.read_text(encoding="utf-8") for path in (SOURCE / "daguerre").rglob("*.py")}

    assert [path.name for path, text in texts.items() if written.search(text)] == []


def test_every_missing_extra_names_an_extra_that_brings_the_package() -> None:
    extras = {
        extra: {Requirement(line).name for line in lines} for extra, lines in PROJECT["optional-dependencies"].items()
    }
    texts = {path: path.read_text(encoding="utf-8") for path in (SOURCE / "daguerre").rglob("*.py")}
    raising = {path: text for path, text in texts.items() if "MissingExtra(" in text}
    assert len(raising) > 5
    for path, text in raising.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "MissingExtra":
                package, extra = (ast.literal_eval(argument) for argument in node.args)
                assert package in extras[extra], f"{path.name}:{node.lineno}"


def pins(name: str) -> dict[str, SpecifierSet]:
    """The versions of a file of constraints, by package."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name.lower().replace("_", "-"): pin.specifier for pin in found}


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    """Those of the extra `litellm`, which contradict our pins, in the constraints of the clients."""
    pinned, apart = pins("constraints.txt"), pins("constraints-clients.txt")
    extras = dict(PROJECT["optional-dependencies"])
    for line in extras.pop("litellm"):
        requirement = Requirement(line)
        assert requirement.name == PROJECT["name"] or requirement.name in apart
    for requirement in map(Requirement, [*PROJECT["dependencies"], *itertools.chain.from_iterable(extras.values())]):
        if requirement.name != PROJECT["name"]:
            (pin,) = pinned[requirement.name.lower().replace("_", "-")]
            assert pin.operator == "=="
            assert requirement.specifier.contains(pin.version), requirement
