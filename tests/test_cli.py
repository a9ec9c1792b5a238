"""The command line as a user meets it: the default model, one line and status 2 for every mistake.

What depends on the process (standard input, a whole run) starts one; the many mistakes are called in this one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daguerre.cli import main
from daguerre.models.loading import model_folder

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def daguerre(*arguments: str, stdin: bytes | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from daguerre.cli import main; main()", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, env=ENV, cwd=cwd, timeout=300, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


Called = tuple[int, str, str]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """`daguerre ARGUMENTS` in this process: (exit status, standard output, standard error)."""

    def run(*arguments: str) -> Called:
        monkeypatch.setattr(sys, "argv", ["daguerre", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capfd.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


def assert_one_line(called: Called, *words: str) -> None:
    code, out, err = called
    assert code == 2, err
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("daguerre: ")
    for word in words:
        assert word in err


def test_generate_continues_the_prompt_and_says_what_it_took(call: Callable[..., Called]) -> None:
    code, out, err = call("generate", "import os\nimport ", "--max-tokens", "8", "--json")
    assert code == 0, err
    body = json.loads(out)
    assert set(body) == {"text", "finish_reason", "usage"}
    assert 0 < body["usage"]["completion_tokens"] <= 8


def test_infill_with_whole_prints_both_sides_verbatim(call: Callable[..., Called]) -> None:
    before, after = "def add(a, b):\n    return ", "\n\n\nprint(add(1, 2))\n"
    code, out, err = call("infill", before, after, "--max-tokens", "6", "--whole")
    assert code == 0, err
    assert out.startswith(before)
    assert out.endswith(after + "\n")


def test_standard_input_is_read_for_a_dash() -> None:
    done = daguerre("generate", "-", "--max-tokens", "4", "--mode", "ar", stdin=b"import sys\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "x", "--mode", "bloc"), ("mode", "'block'")),
        (("generate", "x", "--policy", "treshold"), ("policy", "'threshold'")),
        (("generate", "x", "--max-tokens", "0"), ("max_tokens",)),
        (("generate", "x" * 9000), ("positions", "shorten")),
        (("generate", "x", "--steps", "4"), ("steps", "threshold")),
        (("generate", "x", "--temperature", "-1"), ("temperature",)),
        (("generate", "x", "--model", "nowhere"), ("nowhere",)),
        (("infill", "a", "b", "--mode", "ar"), ("ar", "suffix")),
        (("train",), ("recipe",)),
        (("train", "smal"), ("'small'",)),
        (("train", "small", "--set", "optim.muon_lrr=1", "--data", "."), ("muon_lr",)),
        (("train", "small", "--data", "nowhere"), ("nowhere",)),
        (("train", "--from", "default", "--data", ".", "--max-minutes", "0"), ("max-minutes",)),
        (("eval", "nowhere"), ("nowhere",)),
        (("inspect", "nowhere"), ("nowhere",)),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    call: Callable[..., Called],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(call(*arguments), *words)
    assert list(tmp_path.iterdir()) == [], "nothing is written"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("generate", "x", "--treshold", "0.5"), "--threshold"),
        (("generate", "x", "--max-tokens", "many"), "--max-tokens"),
        (("generat", "x"), "'generate'"),
        (("generate",), "prompt"),
    ],
)
def test_a_wrong_argument_is_one_line_too(arguments: tuple[str, ...], word: str, call: Callable[..., Called]) -> None:
    assert_one_line(call(*arguments), word, "--help")


def test_text_that_is_not_utf8_is_refused() -> None:
    done = daguerre("generate", "-", stdin=b"caf\xe9 = 1\n")
    assert_one_line((done.returncode, done.stdout, done.stderr), "UTF-8")


@pytest.mark.parametrize("fault", ["truncated", "altered", "missing tensor", "another vocabulary", "no weights"])
def test_a_damaged_checkpoint_is_refused(fault: str, call: Callable[..., Called], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder("default"), folder)
    weights = folder / "model.safetensors"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif fault == "altered":
        content = bytearray(weights.read_bytes())
        content[-5] ^= 1
        weights.write_bytes(bytes(content))
    elif fault == "missing tensor":
        _drop_a_tensor(folder)
    elif fault == "another vocabulary":
        shutil.copy(model_folder("default").parent / "tokenizer-8k.json", folder / "tokenizer.json")
    else:
        weights.unlink()
    assert_one_line(call("generate", "x", "--model", str(folder)), "model")


def _drop_a_tensor(folder: Path) -> None:
    import hashlib

    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("layers.0.mlp.down.weight")
    save_file(tensors, path)
    config = json.loads((folder / "config.json").read_text())
    config["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


def test_adapting_to_a_folder_of_source_writes_a_model_that_generates(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in "abc":
        body = "".join(f"def {name}_{i}(value):\n    return value + {i}\n\n\n" for i in range(60))
        (source / f"{name}.py").write_text(body)
    done = daguerre(
        "train", "--from", "default", "--data", str(source), "--max-minutes", "0.1", "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    code, _, err = call("generate", "def a_1(", "--model", str(tmp_path / "run" / "model"), "--max-tokens", "6")
    assert code == 0, err
