"""jupyter-ai's magics, in IPython: a question about a name of the notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tasks import ANSWER, PRICES, QUESTION
from wire import Wire

CELLS = """
get_ipython().run_line_magic("load_ext", "jupyter_ai_magics")
prices = open("prices.py").read()
say = get_ipython().run_cell_magic
answer = say("ai", "openai-chat-custom:coder -f text -m {{'temperature':0}}", '''{asked}''')
open("answer.txt", "w").write(answer.text if hasattr(answer, "text") else str(answer.data))
"""


def test_answers_about_a_name_of_the_notebook(
    program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]
) -> None:
    (home / "work" / "prices.py").write_text(PRICES)
    (home / "cells.ipy").write_text(CELLS.format(asked=f"{{prices}}\n\nThis was prices.py. {QUESTION}"))
    env = {"OPENAI_API_BASE": f"{wire.url}/v1", "IPYTHONDIR": str(home)}
    said = start(program("jupyter-ai/bin/ipython"), "--colors=NoColor", home / "cells.ipy", env=env)
    assert ANSWER in (home / "work" / "answer.txt").read_text(), said
