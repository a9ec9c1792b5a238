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
from daguerre.decoding.options import CALLS, ELSEWHERE
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
    with pytest.raises(InputError, match=f"^unknown option '{theirs}': did you mean '{ours}'\\?$"):
        daguerre.load().generate("import os", **{theirs: 5})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("--max-new-tokens", "--max-tokens"), ("--num-return-sequences", "--n"), ("--stop-strings", "--stop")],
)
def test_a_name_that_is_not_ours_is_answered_on_the_command_line_too(theirs: str, ours: str) -> None:
    ran = subprocess.run(
        [PROGRAM, "generate", "x", theirs, "5"], check=False, capture_output=True, text=True, timeout=60
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"daguerre: No such option: {theirs}: did you mean {ours}? (see --help)\n"


def test_names_of_others_are_none_of_ours_and_lead_to_one() -> None:
    options = set(Decode.__dataclass_fields__)

    assert not (options | set(CALLS)) & ELSEWHERE.keys()
    assert set(ELSEWHERE.values()) <= options | set(CALLS)
    assert not options & set(CALLS)


def test_an_argument_of_another_call_is_named_as_one() -> None:
    with pytest.raises(InputError, match="mark is an argument of other calls, and no option"):
        daguerre.load().generate("import os", mark="@")


@pytest.mark.parametrize("program", [[PROGRAM], [sys.executable, "-m", "daguerre"]])
def test_the_version(program: list[str]) -> None:
    ran = subprocess.run([*program, "--version"], check=False, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"daguerre {daguerre.__version__}\n", "")


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> set[str]:
        asks = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_DAGUERRE_COMPLETE": "complete_bash"}
        ran = subprocess.run([PROGRAM], env=os.environ | asks, check=False, capture_output=True, text=True, timeout=60)
        return set(ran.stdout.split())

    assert {"infill", "inspect"} <= completed("daguerre in")
    assert "--max-tokens" in completed("daguerre generate --max-t")
    asks = [PROGRAM, "--show-completion", "bash"]
    script = subprocess.run(asks, check=False, capture_output=True, text=True, timeout=60).stdout
    assert "_DAGUERRE_COMPLETE=complete_bash" in script


def test_a_printed_result_is_its_text_and_its_line_says_how_it_was_made() -> None:
    model = daguerre.load()
    short, long = (model.generate("import os\n", max_tokens=most, mode="ar", n=n) for most, n in ((4, 1), (60, 2)))

    assert str(short) == short.text and f"{long}" == long.text
    assert repr(short) == f"Result({short.text!r}, 4 tokens in {short.usage.forwards} forwards, ar, length)"
    assert repr(long).endswith(", 2 choices)") and "…" in repr(long)
    assert "\n" not in repr(long) and len(repr(long)) < 200


@pytest.mark.parametrize("command", [["generate"], ["infill"], ["decide"]])
def test_a_path_where_a_text_is_meant_is_noticed(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os\n")
    more = {"generate": [], "infill": ["x"], "decide": ["--yes", "a", "--no", "b"]}[command[0]]
    ran = command_line(*command, "app.py", *more, *([] if more[1:] else ["--max-tokens", "2"]), cwd=tmp_path)
    word = command_line("generate", "import os.path", "--max-tokens", "2", cwd=tmp_path)

    said = "daguerre: app.py is taken as the text itself, and not read: for the file's text use - < app.py"
    assert said in ran.stderr.splitlines()
    assert word.returncode == 0 and "taken as" not in word.stderr
