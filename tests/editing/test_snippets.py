"""Snippets that leave lines out, merged by their text alone where it leaves no choice."""

from __future__ import annotations

import pytest

from daguerre.editing.snippets import merged_by_lines, replaced_definition

TEXT = "import os\n\n\ndef f(x):\n    y = x\n    return y\n\n\ndef g(x):\n    y = 2\n    return y\n"
GAP = "# ... existing code ..."


@pytest.mark.parametrize(
    ("snippet", "made"),
    [
        (f"{GAP}\ndef g(x):\n    y = 3\n    return y\n", TEXT.replace("y = 2", "y = 3")),  # to the end
        (f"import os\nimport re\n{GAP}\n", None),
        (f"import os\nimport re\n\n\ndef f(x):\n{GAP}\n", TEXT.replace("import os\n", "import os\nimport re\n")),
        (f"{GAP}\ndef f(x):\n    z = 0\n    y = x\n{GAP}\n", TEXT.replace("    y = x", "    z = 0\n    y = x")),
        ("def f(x):\n    z = 0\n    y = x\n", TEXT.replace("    y = x", "    z = 0\n    y = x")),
        (f"{GAP}\n    y = x\n\ndef g(x):\n{GAP}\n    y = 2\n", TEXT.replace("    return y\n\n\ndef", "\ndef", 1)),
        (f"{GAP}\ndef g(x):\n{GAP}\ndef f(x):\n{GAP}\n", None),  # in another order
        (f"{GAP}\ndef h(x):\n{GAP}\n", None),
        (f"{GAP}\n    return y\n    z = 1\n{GAP}\n", None),
        ("x = 1\n", None),
    ],
)
def test_a_snippet_is_merged_where_its_lines_are_there_once(snippet: str, made: str | None) -> None:
    found = merged_by_lines(TEXT, snippet)
    if made is not None:
        assert found == made
        crlf = merged_by_lines(TEXT.replace("\n", "\r\n"), snippet)
        assert crlf == made.replace("\n", "\r\n")
        assert merged_by_lines(TEXT.removesuffix("\n"), snippet) == made.removesuffix("\n")
    else:
        assert found is None


def test_more_lines_than_letters_are_merged() -> None:
    new = "".join(f"    z = {n}\n" for n in range(100))
    assert merged_by_lines(TEXT, f"{GAP}\ndef f(x):\n{new}    y = x\n{GAP}\n") == TEXT.replace(
        "    y = x", f"{new}    y = x"
    )
    long = "x\n" * 10_000 + "y\n" + "x\n" * 9_000
    assert merged_by_lines(long, f"{GAP}\ny\nz\n{GAP}") is None
    assert merged_by_lines("x\n" * 30_000, GAP) is None


def test_a_definition_takes_the_place_of_that_of_its_name() -> None:
    assert replaced_definition(TEXT, "def f(a):\n    return a\n") == TEXT.replace(
        "def f(x):\n    y = x\n    return y", "def f(a):\n    return a"
    )
    decorated = "@a\n@b\ndef f(): pass\nx = 1\n"
    assert replaced_definition(decorated, "class f: pass\n") == "class f: pass\nx = 1\n"
    for text, snippet in (
        (TEXT, "def h(): pass"),
        (TEXT, "x = 1"),
        (TEXT, f"def f(x):\n    {GAP}\n    return 1\n"),
        (TEXT + TEXT, "def f(): pass"),
        ("no python", "def f(): pass"),
        (TEXT, "def f("),
    ):
        assert replaced_definition(text, snippet) is None
