"""Text that commands show while it is written, and completions in files that are one statement."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commands import daguerre
from daguerre.commands.writing import statement_end
from daguerre.model import Model, load

FUNCTION = "def f():\n    '''a (\n  b'''\n    return (1,\n2)"
STATEMENTS: list[tuple[str, str, str | None]] = [
    # before, what is written, the statement
    ("x = 1\n", "y = 2\nz = 3\n", "y = 2"),
    ("def f(x):\n", "    return x\n\ndef g():\n", "    return x"),
    ("", "def f(x):\n    return x\n\n\ny = f(1)", "def f(x):\n    return x"),
    ("if a:\n    x = ", "[1,\n  2]\n    y\n", "[1,\n  2]"),
    ("x = foo(", "1, 2)\ny", "1, 2)"),
    ("x = 1\n", f"{FUNCTION}\n\nz", FUNCTION),
    ("return x", "\n\ny = 1\nz", "\n\ny = 1"),
    ("x\n", "@a\ndef f():\n    pass\nx", "@a\ndef f():\n    pass"),
    ("", "for (int i = 0; i < n; i++) {\n  a();\n}\nb();\n", "for (int i = 0; i < n; i++) {\n  a();\n}"),
    ("", "s = 'a(b'  # (\nt", "s = 'a(b'  # ("),
    ("    if x:", "\n        return 1\n    y\n", "\n        return 1"),
    ("", "y = 2", None),
    ("", "def f():\n    return", None),
    ("", "def f():\n    return 1\n", None),
    ("", "x = [1,\n", None),
]


def test_a_statement_is_a_line_or_a_block_that_its_indentation_closes(subtests: pytest.Subtests) -> None:
    for before, written, statement in STATEMENTS:
        with subtests.test(written, before=before):
            end = statement_end(before, written)
            assert (None if end is None else written[:end]) == statement
            if end is not None:  # nothing that follows changes it
                assert all(statement_end(before, written[:num]) in (None, end) for num in range(len(written)))


@pytest.fixture(scope="module")
def default() -> Model:
    return load()


def test_text_is_shown_as_the_library_writes_it(default: Model, tmp_path: Path) -> None:
    prompt = "import os\n\n\ndef "
    done = daguerre("generate", prompt, "--max-tokens", "40")
    assert done.stdout == default.generate(prompt, 40).text + "\n"
    file = tmp_path / "a.py"
    file.write_text("import os\n\n\ndef area(width, height):\n    return width * height\n")
    whole = default.generate(file.read_text(), 256).text
    statement = whole[: statement_end(file.read_text(), whole)]
    assert 0 < len(statement) < len(whole)
    for mode in ((), ("--mode", "ar")):  # which knows the end only lines later
        assert daguerre("complete", str(file), *mode).stdout == statement + "\n"
    plain = daguerre("complete", str(file), "--no-statement", "--max-tokens", "9")
    assert plain.stdout == default.generate(file.read_text(), 9).text + "\n"
    behind = daguerre("complete", f"{file}:1", "--diff").stdout.splitlines()
    assert behind[3] == " import os" and behind[4].startswith("+")
    for more in (("--stop", "x"), ("--explain",), ("--watch",)):
        refused = daguerre("complete", str(file), "--statement", *more)
        assert refused.returncode == 2 and f"leave out {more[0]}" in refused.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_leaves_what_was_written(default: Model) -> None:
    prompt, options = "import os\n", ("--max-tokens", "900", "--no-stop-loops", "--mode", "ar")
    command = [sys.executable, "-m", "daguerre", "generate", prompt, *options]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, a child would ignore it, too
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        begun = process.stdout.read(8)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=120)
    text = (begun + rest).decode()
    assert process.returncode == 130, said
    assert text.endswith("\n") and default.generate(prompt, 900, mode="ar", stop_loops=False).text.startswith(text[:-1])
