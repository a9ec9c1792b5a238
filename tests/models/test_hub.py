"""Models by their name on a hub, over real sockets: a hub on this machine, asked by huggingface_hub."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

import daguerre
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models import hub as hub_module
from daguerre.models.hub import is_name, pull, pull_tokenizer
from daguerre.models.loading import load_folder, tokenizer_folder
from fake_hub import COMMIT, Hub, serving
from published import CASES, made
from test_cli import Called, assert_one_line, call

__all__ = ["call"]

NAME = "JetLM/SDAR-tiny"
LOAD = (
    "import sys, daguerre\n"
    "model = daguerre.load(sys.argv[1], dtype='float32', backend='torch')\n"
    "print(model.family, model.defaults.get('policy'), model.generate('a', 4).usage.completion_tokens > 0)\n"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("hub")
    sdar = CASES["sdar"].write(parent / "one", made("sdar"))
    (sdar / "modeling_sdar.py").write_text("raise SystemExit('this was run')")
    (sdar / "original").mkdir()
    (sdar / "original" / "consolidated.safetensors").write_bytes(b"large")
    (sdar / "pytorch_model.bin").write_bytes(b"pickle")
    strange = parent / "two"
    strange.mkdir()
    (strange / "config.json").write_text('{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}')
    (strange / "model.safetensors").write_bytes(b"\0" * 100)
    return {NAME: sdar, "state/space": strange}


@pytest.fixture
def hub(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The only hub of this process, with an empty cache."""
    with serving(Hub(folders, gated={"meta/gated"})) as running:
        asking = functools.partial(huggingface_hub.snapshot_download, endpoint=running.url)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", asking)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
        yield running


@pytest.mark.slow
def test_another_process_downloads_a_model_once_then_needs_no_network(folders: dict[str, Path], tmp_path: Path) -> None:
    """With the settings of huggingface_hub's own variables, through the Python interface."""

    def run(**variables: str) -> list[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-c", LOAD, NAME]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment | variables, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    with serving(Hub(folders)) as running:
        assert run(HF_ENDPOINT=running.url) == ["sdar", "threshold", "True"]
        asked = len(running.asked)
        assert run(HF_ENDPOINT=running.url, HF_HUB_OFFLINE="1") == ["sdar", "threshold", "True"]
        assert len(running.asked) == asked
    (snapshot,) = (tmp_path / "hf" / "hub" / "models--JetLM--SDAR-tiny" / "snapshots").iterdir()
    assert snapshot.name == COMMIT
    held = {path.name for path in snapshot.rglob("*")}
    assert {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors"} <= held
    assert not held & {"modeling_sdar.py", "pytorch_model.bin", "original", "consolidated.safetensors"}


def test_a_revision_can_be_pinned_both_ways(hub: Hub) -> None:
    assert pull(f"{NAME}@v1") == pull(NAME, "v1") == pull(NAME, COMMIT)
    assert any(path.endswith("/revision/v1") for _, path, _ in hub.asked)
    with pytest.raises(InputError, match="no revision 'v9'"):
        pull(NAME, "v9")


def test_a_download_that_was_cut_is_continued(hub: Hub) -> None:
    hub.cut.add("model-00002-of-00002.safetensors")
    folder = pull(NAME)
    assert not hub.cut
    parts = [part for _, path, part in hub.asked if path.endswith("model-00002-of-00002.safetensors") and part]
    assert any(int(part.removeprefix("bytes=").split("-")[0]) > 1000 for part in parts)
    assert load_folder(folder).family == "sdar"


def test_the_commands_say_what_was_downloaded_and_what_is_there(hub: Hub, call: Callable[..., Called]) -> None:
    code, out, err = call("models")
    assert (code, "nothing" in out) == (0, True), err
    code, out, err = call("pull", NAME)
    assert code == 0, err
    assert "sdar" in out
    assert COMMIT in out
    code, out, err = call("models")
    assert code == 0, err
    line = next(line for line in out.splitlines() if NAME in line)
    assert "sdar" in line
    assert "kB" in line
    assert "GSAI-ML/LLaDA-8B-Base" in out
    code, out, err = call("inspect", NAME)
    assert code == 0, err
    assert out.splitlines()[0].split() == ["family", "sdar"]
    code, out, err = call("generate", "a", "--model", NAME, "--max-tokens", "4", "--backend", "torch", "--json")
    assert code == 0, err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meta/gated", "meta/gated is gated: accept its terms"),
        ("nobody/nothing", "the hub has no model 'nobody/nothing' that you may see"),
        ("state/space", "MambaForCausalLM (model_type 'mamba') is not supported"),
        (f"{NAME}@v9", "no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line(hub: Hub, call: Callable[..., Called], name: str, words: str) -> None:
    code, out, err = call("pull", name)
    assert (code, out) == (2, "")
    (line,) = (line for line in err.splitlines() if line.startswith("daguerre: "))
    assert words in line
    assert not any(path.endswith(".safetensors") for _, path, _ in hub.asked)


def test_without_a_network_the_line_says_what_to_do(
    hub: Hub, call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "is not in the cache as a whole, and the hub cannot be reached"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_one_line(call("generate", "a", "--model", NAME), NAME, said)
    asked = len(hub.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    pull(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    downloaded = len(hub.asked)
    assert asked < downloaded
    assert daguerre.load(NAME, dtype="float32", backend="torch").family == "sdar"
    assert len(hub.asked) == downloaded


def test_a_tokenizer_comes_from_another_name(hub: Hub, tmp_path: Path) -> None:
    folder = pull_tokenizer(NAME)
    assert not [*folder.glob("*.safetensors")]
    assert tokenizer_folder(tmp_path, NAME) == folder
    assert tokenizer_folder(pull(NAME)) is None


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(CheckpointError, match="no space is left to download owner/model"):
        pull("owner/model")
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **__: (_ for _ in ()).throw(ValueError("odd\nx"))
    )
    with pytest.raises(CheckpointError, match=r"owner/model cannot be downloaded \(odd\)"):
        pull("owner/model")


def test_names_are_told_from_paths() -> None:
    assert all(map(is_name, ("owner/model", "Owner-1/model.v2_x@main", "a/b@refs/pr/1")))
    assert not any(map(is_name, ("model", "a/b/c", "./model", "/abs/model", "~/model", "../model", "C:\\model", "")))
    with pytest.raises(InputError, match="is not a name on a hub"):
        pull("model")
    with pytest.raises(InputError, match="names another revision than 'v2'"):
        pull("owner/model@v1", "v2")


def test_every_file_of_a_model_is_asked_for_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The patterns: what a snapshot may contain."""
    from huggingface_hub.utils import filter_repo_objects

    wanted = ["config.json", "model-1.safetensors", "tokenizer.model", "qwen.tiktoken", "chat_template.jinja"]
    others = ["modeling.py", "pytorch_model.bin", "onnx/model.onnx", "original/params.json", "consolidated.safetensors"]
    found = filter_repo_objects(
        [*wanted, *others], allow_patterns=[*hub_module.FILES], ignore_patterns=[*hub_module.OTHERS]
    )
    assert [*found] == wanted
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(UnsupportedError, match="mamba"):
        pull("owner/model")
