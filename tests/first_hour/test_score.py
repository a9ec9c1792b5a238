"""`daguerre score`: bits by line of a file that is longer than the context."""

from __future__ import annotations

import json
import json.decoder
from pathlib import Path

import pytest

from commands import Done, daguerre


def score(*arguments: str, stdin: str | None = None) -> Done:
    return daguerre("score", *arguments, stdin=stdin)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A module of the standard library with a line that no Python can read."""
    text = Path(json.decoder.__file__).read_text(encoding="utf-8")
    assert "        return obj\n" in text
    path = tmp_path / "decoder.py"
    path.write_text(text.replace("        return obj\n", "        retrun obj)(\n", 1), encoding="utf-8")
    return path


def test_each_line_has_its_bits_and_wrong_ones_are_marked(source: Path) -> None:
    done = score(str(source))
    lines, text = done.stdout.splitlines(), source.read_text().splitlines()
    number = text.index("        retrun obj)(") + 1

    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines) == len(text) + 2
    assert lines[number].split()[:2] == [str(number), "!"]
    assert "<- " in lines[number]
    assert f"for {source.stat().st_size:,} bytes" in lines[-1]
    assert "windows" in lines[-1]
    assert "\x1b" not in done.stdout


def test_json_and_standard_input(source: Path) -> None:
    body = json.loads(score("-", "--json", stdin=source.read_text()).stdout)

    assert sum(line["bits"] for line in body["lines"]) == pytest.approx(body["bits"])
    assert body["bits_per_byte"] == pytest.approx(body["bits"] / source.stat().st_size)
    assert body["windows"] > 1
    assert "".join(line["text"] + "\n" for line in body["lines"]) == source.read_text()
    most = score(str(source), "--surprising", "3").stdout.splitlines()
    assert len(most) == 5
    assert all(" ! " in line for line in most[1:4])


def test_a_bound_where_asked_and_one_line_for_mistakes(tmp_path: Path) -> None:
    short = tmp_path / "short.py"
    short.write_text("import os\n\nprint(os.getcwd())\n")
    assert "a bound; standard error" in score(str(short), "--kind", "elbo", "--samples", "4").stdout
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, words in (("empty", "is empty"), ("binary", "not UTF-8"), ("nothing", "No such file")):
        done = score(str(tmp_path / name))
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
