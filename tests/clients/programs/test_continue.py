"""Continue's command line, `cn`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tasks import PRICES
from wire import Wire

CONFIG = """
name: Daguerre
version: 1.0.0
schema: v1
models:
  - name: coder
    provider: openai
    model: coder
    apiBase: {url}/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 16384
      maxTokens: 512
      temperature: 0
"""
TOOLS = "AskQuestion Bash Checklist Diff Edit Fetch List MultiEdit Search Skills Status Subagent UploadArtifact Write"
"""Left out: a small model chooses best among few."""


@pytest.fixture
def cn(program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]) -> Callable[[str], str]:
    """The command, with its settings, in a folder of one file."""
    (home / "config.yaml").write_text(CONFIG.format(url=wire.url))
    (home / "work" / "prices.py").write_text(PRICES)
    excluded = [word for tool in TOOLS.split() for word in ("--exclude", tool)]
    command = program("continue/node_modules/.bin/cn")
    return lambda asked: start(
        command, "--config", home / "config.yaml", "--allow", "Read", *excluded, "--print", asked,
        env={"CONTINUE_GLOBAL_DIR": str(home / "continue"), "CONTINUE_METRICS_ENABLED": "0"},
    )  # fmt: skip


def test_reads_a_file_by_a_tool_and_answers(cn: Callable[[str], str], wire: Wire, home: Path) -> None:
    said = cn("Read prices.py. What does its function cheaper do?")
    assert any(one["role"] == "tool" for one in wire.asked("/chat/completions")[-1].asked["messages"]), said
    assert "less" in said or "cheaper" in said.lower()
