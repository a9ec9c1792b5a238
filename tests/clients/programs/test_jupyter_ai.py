"""jupyter-ai's magics, in IPython: a question about a name of the notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tasks import AFTER, BEFORE
from wire import Wire

QUESTION = "{module}\n\nWhich function of this module subtracts the smallest value? Answer with its name."
"""No braces in what is asked about: jupyter-ai 2.31 formats a prompt twice."""
CELLS = '''
get_ipython().run_line_magic("load_ext", "jupyter_ai_magics")
module = open("module.py").read()
how = """openai-chat-custom:coder -f text -m {{"temperature":0}}"""
answer = get_ipython().run_cell_magic("ai", how, """{asked}""")
open("answer.txt", "w").write(answer.text if hasattr(answer, "text") else str(answer.data))
'''


def test_answers_about_a_name_of_the_notebook(
    program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]
) -> None:
    (home / "work" / "module.py").write_text(f"{BEFORE}return max(values){AFTER}")
    (home / "cells.ipy").write_text(CELLS.format(asked=QUESTION))
    env = {"OPENAI_API_BASE": f"{wire.url}/v1", "IPYTHONDIR": str(home)}
    said = start(program("jupyter-ai/bin/ipython"), "--colors=NoColor", home / "cells.ipy", env=env)
    assert "spread" in (home / "work" / "answer.txt").read_text(), said
