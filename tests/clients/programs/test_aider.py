"""aider: edits of files in a git repository."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tasks import ANSWER, PRICES, QUESTION, RENAME, RENAMED, holds
from wire import Wire

SETTINGS = """
model: openai/coder
openai-api-base: {url}/v1
openai-api-key: none
show-model-warnings: false
analytics-disable: true
check-update: false
pretty: false
map-tokens: 0
yes-always: true
"""
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
MODEL = """
- name: openai/coder
  edit_format: whole
  use_temperature: 0
"""


def git(home: Path, *words: str) -> str:
    """What git says in the folder `work`."""
    return subprocess.run(["git", *words], cwd=home / "work", check=True, capture_output=True, text=True).stdout


@pytest.fixture
def aider(program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]) -> Callable[..., str]:
    """The command, with its settings, in a repository of one file."""
    (home / ".aider.conf.yml").write_text(SETTINGS.format(url=wire.url))
    (home / "work" / "prices.py").write_text(PRICES)
    (home / ".aider.model.settings.yml").write_text(MODEL)
    git(home, "init", "-q")
    git(home, "add", ".")
    git(home, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "Prices")
    return lambda *words: start(program("aider/bin/aider"), *words, env=OFFLINE)


def test_renames_across_a_file(aider: Callable[..., str], home: Path) -> None:
    said = aider("prices.py", "--message", RENAME)
    text = (home / "work" / "prices.py").read_text()
    assert text == PRICES.replace("calc(", "total_price("), said
    assert holds(text, RENAMED)
    assert "prices.py" in git(home, "show", "--stat"), "aider commits what it edits, with a message by the model"


def test_answers_about_a_file(aider: Callable[..., str], home: Path) -> None:
    assert ANSWER in aider("prices.py", "--chat-mode", "ask", "--message", QUESTION)
    assert (home / "work" / "prices.py").read_text() == PRICES
