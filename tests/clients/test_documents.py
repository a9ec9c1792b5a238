"""The examples of docs/clients.md run against a server, as they are but for the address."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from served import Served

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8").replace("\\\n", "")
ADDRESS = "http://127.0.0.1:8000"


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


CURLS = [line for block in fenced("") for line in block.splitlines() if line.startswith("curl ")]


@pytest.mark.parametrize("number", range(len(fenced("python"))))
def test_a_python_example_runs(served: Served, number: int) -> None:
    code = fenced("python")[number].replace(ADDRESS, served.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("number", range(len(CURLS)))
def test_a_line_of_curl_runs(served: Served, number: int) -> None:
    line = CURLS[number].replace("curl", "curl --fail --silent", 1).replace(ADDRESS, served.url)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stdout
    assert '"choices"' in done.stdout or '"embedding"' in done.stdout


def test_settings_of_editors_are_json_and_yaml_and_name_the_server() -> None:
    blocks = [json.loads(block) for block in fenced("json")] + [yaml.safe_load(block) for block in fenced("yaml")]
    assert len(blocks) == 3
    assert all(ADDRESS in json.dumps(block) for block in blocks)


def test_there_are_examples() -> None:
    assert len(fenced("python")) == 3
    assert len(CURLS) == 4
