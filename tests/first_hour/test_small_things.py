"""Small things that would send a newcomer away: options by the names of other libraries, the version, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import daguerre
from commands import PROGRAM
from commands import daguerre as command_line
from daguerre import Decode
from daguerre.decoding.request import CALLS, ELSEWHERE
from daguerre.errors import InputError


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("max_new_tokens", "max_tokens"),
        ("max_length", "max_tokens"),
        ("num_return_sequences", "n"),
        ("stop_strings", "stop"),
        ("max_token", "max_tokens"),
        ("sufix", "suffix"),
        ("temprature", "temperature"),
    ],
)
def test_a_name_that_is_not_ours_is_answered_with_ours(theirs: str, ours: str) -> None:
    with pytest.raises(InputError, match=f"'{theirs}'.*'{ours}'"):
        daguerre.load().generate("import os", **{theirs: 5})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("--max-new-tokens", "--max-tokens"), ("--num-return-sequences", "--n"), ("--stop-strings", "--stop")],
)
def test_a_name_that_is_not_ours_is_answered_on_the_command_line_too(theirs: str, ours: str) -> None:
    ran = command_line("generate", "x", theirs, "5")

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert theirs in ran.stderr and f"{ours}?" in ran.stderr


def test_names_of_others_are_none_of_ours_and_lead_to_one() -> None:
    options = set(Decode.__dataclass_fields__)

    assert not (options | set(CALLS)) & ELSEWHERE.keys()
    assert set(ELSEWHERE.values()) <= options | set(CALLS)
    assert not options & set(CALLS)


def test_an_argument_of_another_call_is_named_as_one() -> None:
    with pytest.raises(InputError, match="mark is an argument of other calls"):
        daguerre.load().generate("import os", mark="@")


@pytest.mark.parametrize("program", [[PROGRAM], [sys.executable, "-m", "daguerre"]])
def test_the_version(program: list[str]) -> None:
    ran = subprocess.run([*program, "--version"], check=False, capture_output=True, text=True, timeout=240)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"daguerre {daguerre.__version__}\n", "")


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> set[str]:
        asks = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_DAGUERRE_COMPLETE": "complete_bash"}
        ran = subprocess.run([PROGRAM], env=os.environ | asks, check=False, capture_output=True, text=True, timeout=240)
        return set(ran.stdout.split())

    assert {"infill", "inspect"} <= completed("daguerre in")
    assert "--max-tokens" in completed("daguerre generate --max-t")
    named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # or the shell above would decide
    asks = [PROGRAM, "--show-completion", "bash"]
    script = subprocess.run(asks, check=False, env=named, capture_output=True, text=True, timeout=240).stdout
    assert "_DAGUERRE_COMPLETE=complete_bash" in script


def test_a_printed_result_is_its_text_and_its_line_says_how_it_was_made() -> None:
    model = daguerre.load()
    short, long = (model.generate("import os\n", max_tokens=most, mode="ar", n=n) for most, n in ((4, 1), (60, 2)))

    assert str(short) == short.text and f"{long}" == long.text
    assert repr(short) == f"Result({short.text!r}, 4 tokens in {short.usage.forwards} forwards, ar, length)"
    assert repr(long).endswith(", 2 choices)") and "…" in repr(long)
    assert "\n" not in repr(long) and len(repr(long)) < 200


def test_a_path_where_a_text_is_meant_is_noticed(subtests: pytest.Subtests, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os\n")
    short = ("--max-tokens", "2")
    for command in (
        ("generate", "app.py", *short),
        ("infill", "app.py", "x", *short),
        ("decide", "app.py", "--yes", "a", "--no", "b"),
    ):
        with subtests.test(command[0]):
            ran = command_line(*command, cwd=tmp_path)
            assert any("app.py" in line and "taken as" in line for line in ran.stderr.splitlines())
    word = command_line("generate", "import os.path", *short, cwd=tmp_path)
    assert word.returncode == 0 and "taken as" not in word.stderr
