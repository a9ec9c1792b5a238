"""Files that a configuration names: one that cannot be used is an error with the line of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from daguerre.cli import app
from daguerre.errors import DataError
from daguerre.http.settings import hash_of
from daguerre.router.config import read_config

TEXT = """\
quality_model = "{quality}"

[server]
keys_file = "{keys}"

[[backends]]
name = "a"
url = "http://127.0.0.1:1/v1"
model = "m"

[[backends]]
name = "b"
url = "http://127.0.0.1:2/v1"
model = "m"
key_file = "{key}"
"""


def written(folder: Path, **names: str) -> Path:
    """A configuration in which all files are as they should be but for those that are named."""
    (folder / "keys").write_text(hash_of("sk-client") + "\n")
    (folder / "empty").write_text("")
    (folder / "key").write_text("sk-1")
    text = TEXT.format(quality="Q", **{name: folder / names.get(name, name) for name in ("keys", "key")})
    line = f'quality_model = "{folder / names["quality"]}"' if "quality" in names else ""
    path = folder / "route.toml"
    path.write_text(text.replace('quality_model = "Q"', line))
    return path


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"quality": "none.npz"}, r"route.toml, line 1: quality_model: cannot read .*none.npz: No such file"),
        ({"quality": "key"}, r"line 1: quality_model: .*key is no file of `daguerre route fit`"),
        ({"keys": "none"}, r"line 4: server.keys_file: cannot read the file of keys .*none"),
        ({"keys": "key"}, r"line 4: server.keys_file: line 1 of .*key has no SHA-256 hash"),
        ({"key": "none"}, r"line 15: backends.1.key_file: backend 'b': cannot read its key from .*none"),
        ({"key": "empty"}, r"line 15: backends.1.key_file: backend 'b': .*empty is empty"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, names: dict[str, str], said: str) -> None:
    path = written(tmp_path, **names)
    with pytest.raises(DataError, match=said) as caught:
        read_config(path)
    assert "\n" not in str(caught.value) and "sk-1" not in str(caught.value)
    assert len(read_config(path, files=False).backends) == 2


def test_files_that_can_be_used_are_no_error_and_the_command_says_the_others(tmp_path: Path) -> None:
    assert len(read_config(written(tmp_path)).backends) == 2
    ran = CliRunner().invoke(app, ["route", "--check", "--config", str(written(tmp_path, quality="none.npz"))])
    assert ran.exit_code == 1 or isinstance(ran.exception, DataError)
    assert "line 1: quality_model" in str(ran.exception) + ran.output
