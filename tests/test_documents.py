"""The documents are true: names exist, the README's Python runs, its commands are commands."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from daguerre.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "MODEL_CARD.md", "CHANGELOG.md", "docs/log.md"]


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def resolves(name: str) -> bool:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            place = importlib.import_module(".".join(["daguerre", *parts[:split]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            if not hasattr(place, attribute):
                return False
            place = getattr(place, attribute)
        return True
    return False


def dotted_names(text: str) -> list[str]:
    return sorted(
        {n for n in re.findall(r"`([a-z_]+(?:\.\w+)+)`", text) if not n.endswith((".py", ".md", ".json", ".toml"))}
    )


def test_the_name_check_catches_a_wrong_name() -> None:
    assert resolves("generate.denoise")
    assert not resolves("generate.denoised")
    assert not resolves("nowhere.denoise")


@pytest.mark.parametrize("name", dotted_names((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
def test_a_name_of_the_architecture_exists(name: str) -> None:
    assert resolves(name)


def test_the_architecture_names_many_things() -> None:
    assert len(dotted_names((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))) > 20


def test_the_python_of_the_readme_runs() -> None:
    (code,) = fenced(README, "python")
    exec(compile(code, "README.md", "exec"), {})


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in fenced(README, "") for line in block.splitlines()]
    return [line for line in lines if line.startswith("daguerre ")]


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_readme_parses(line: str) -> None:
    arguments = shlex.split(line.replace("$'", "'"))[1:]
    group = typer.main.get_command(app)
    context = group.make_context("daguerre", list(arguments), resilient_parsing=False)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
    if hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
    assert command.make_context(name, list(rest), parent=context)


def test_the_readme_shows_its_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_a_document_lead_to_files(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / name).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_a_recipe_says_what_it_is_for(recipe: Path) -> None:
    assert recipe.read_text(encoding="utf-8").startswith("# ")
    assert tomllib.loads(recipe.read_text(encoding="utf-8"))["name"] == recipe.stem
