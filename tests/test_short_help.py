"""Helps that fit a screen, `run`, `doctor`, and the model that `chat` offers."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from commands import daguerre as command
from daguerre.commands import asking, doctor, machine
from daguerre.commands.group import prepare
from daguerre.commands.short_help import MOST_LINES
from daguerre.commands.table import RARE
from daguerre.errors import InputError
from daguerre.models.pulling.catalogue import entry_of
from test_cli import Called, assert_one_line, call, command_line

__all__ = ["call"]

ROOT = Path(__file__).parents[1]


def every(one: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """A command and those below it, each with a context."""
    yield one, context
    for name in one.list_commands(context) if hasattr(one, "list_commands") else ():
        below = one.commands[name]
        yield from every(below, typer.Context(below, info_name=name, parent=context))


def test_the_help_of_every_command_fits_a_screen(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    whole = command_line()
    for one, context in every(whole, typer.Context(whole, info_name="daguerre")):
        with subtests.test(context.command_path):
            lines = one.get_help(context).splitlines()
            assert len(lines) <= MOST_LINES and max(map(len, lines)) <= 80
            assert "--help-all" in lines[-2]
            shown = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", "\n".join(lines), flags=re.M))
            assert shown <= {name for option in one.get_params(context) for name in option.opts}


def test_a_long_help_has_what_people_use_and_the_other_has_everything(call: Callable[..., Called]) -> None:
    code, short, err = call("generate", "--help")
    assert code == 0, err
    assert all(f"{name} " in short for name in ("--model", "--max-tokens", "--temperature", "--schema", "--json"))
    assert not any(name in short for name in ("--rank-by", "--audit-key", "--revise"))
    code, everything, err = call("generate", "--help-all")
    assert code == 0, err
    assert all(name in everything for name in ("--rank-by", "--audit-key", "--revise", "--temperature"))
    assert "--revision" in call("pull", "--help")[1], "a short command shows all"


def test_rare_options_exist() -> None:
    whole = command_line()
    names = {option.name for one, context in every(whole, typer.Context(whole)) for option in one.get_params(context)}
    assert names >= RARE


def test_a_group_that_is_not_ours_can_be_made_short() -> None:
    app = typer.Typer()
    app.command("one")(lambda: None)
    app.command("two")(lambda: None)
    made = typer.main.get_command(app)
    prepare(made)
    assert re.search(r"^  two", made.get_help(typer.Context(made, info_name="x")), flags=re.M)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("pull", "smollm2", "--jsno"), "did you mean --json?"),
        (("generate", "x", "--treshold", "0.5"), "did you mean --threshold?"),
        (("modles",), "Did you mean 'models'?"),
        (("route", "analize"), "Did you mean 'analyze'?"),
        (("generate", "x", "--model", "qwen2.5-codr:1.5b"), "did you mean 'qwen2.5-coder:1.5b'?"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_near(
    words: tuple[str, ...], meant: str, call: Callable[..., Called]
) -> None:
    assert_one_line(call(*words), meant)


def test_run_answers_once_by_a_model_that_is_named_first(call: Callable[..., Called]) -> None:
    code, out, err = call("run", "default", "hello", "--max-tokens", "2")
    assert (code, out) == (2, ""), "it has no chat template"
    assert "chat" in err
    assert_one_line(call("run", "default", "hello", "--model", "concepts"), "two models are named")
    assert_one_line(call("run", "nothing-of-that-name", "hello"), "nothing-of-that-name", "check the path")


def test_a_conversation_without_a_model_says_which_is_offered(tmp_path: Path) -> None:
    environment = {"DAGUERRE_CACHE": str(tmp_path), "PATH": ""}
    done = command("chat", stdin="", env=environment)
    assert_one_line(
        (done.returncode, done.stdout, done.stderr), "`daguerre chat --model smollm2`", "98 MB", "Apache-2.0"
    )


def test_on_a_terminal_the_model_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path))
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    asked = list[str]()
    monkeypatch.setattr(typer, "confirm", lambda words, **_: asked.append(words) or True)
    assert asking.offered_model() == "smollm2"
    assert "98 MB, Apache-2.0" in asked[0]
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    with pytest.raises(InputError, match="name one with --model"):
        asking.offered_model()


def test_doctor_says_what_is_here(call: Callable[..., Called]) -> None:
    code, out, err = call("doctor", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert {
        "processor",
        "instruction_set",
        "memory",
        "compiler",
        "native",
        "extras",
        "pulled",
        "faster",
    } <= facts.keys()
    assert "numpy" not in facts["extras"] and "serve" in facts["extras"] + facts["not_installed"]
    assert call("doctor")[1].startswith("daguerre ")


def test_doctor_says_what_would_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("daguerre.models.contention.num_cpus", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr(doctor, "GPU", Path("/"))
    monkeypatch.setattr(doctor, "has_extra", lambda name: False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    advice = "\n".join(doctor.what_would_be_faster())
    for words in (
        "unset DAGUERRE_CACHE",
        "OMP_NUM_THREADS: it is 1, and 4",
        "9.0 want to compute on 4",
        "there is a GPU",
    ):
        assert words in advice


def test_extras_are_those_of_the_package() -> None:
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert doctor.EXTRAS.keys() == optional.keys() - {"litellm", "ray", "bench", "test", "dev"}


def test_a_forward_takes_as_long_as_what_is_slower() -> None:
    small, diffusion = entry_of("smollm2"), entry_of("llada:8b")
    assert small is not None and diffusion is not None
    slow_memory, slow_processor = machine.MachineSpeed(1e9, 1e15), machine.MachineSpeed(1e15, 1e9)
    assert slow_memory.forwards(small) == pytest.approx(1e9 / small.size)
    assert slow_processor.forwards(small) == pytest.approx(1e9 / (2 * small.parameters))
    assert slow_processor.forwards(diffusion) == pytest.approx(1e9 / (2 * diffusion.parameters * 512))
    measured = machine.measure_speed()
    assert 1e8 < measured.reading < 1e13 and 1e8 < measured.operations < 1e15
    assert machine.fits(small, small.memory) and not machine.fits(small, small.memory - 1)
