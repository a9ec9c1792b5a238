"""Models by their name on a hub, over real sockets: a hub on this machine, asked by huggingface_hub."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

import daguerre
from commands import daguerre as command
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models import hub as hub_module
from daguerre.models.families import FAMILIES
from daguerre.models.hub import is_name, pull, pull_tokenizer
from daguerre.models.loading import load_folder, tokenizer_folder
from fake_hub import COMMIT, Hub, serving
from published import CASES, made
from test_cli import Called, assert_one_line, call

__all__ = ["call"]

NAME = "JetLM/SDAR-tiny"


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


def test_another_process_downloads_a_model_once_then_needs_no_network(folders: dict[str, Path], tmp_path: Path) -> None:
    """With the settings of huggingface_hub's own variables."""

    def run(**variables: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        asked = ("generate", "a", "--model", NAME, "--max-tokens", "4", "--backend", "torch", "--json")
        done = command(*asked, env=environment | variables)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["text"]

    with serving(Hub(folders)) as running:
        run(HF_ENDPOINT=running.url)
        asked = len(running.asked)
        assert asked
        run(HF_ENDPOINT=running.url, HF_HUB_OFFLINE="1")
        assert len(running.asked) == asked
    (snapshot,) = (tmp_path / "hf" / "hub" / "models--JetLM--SDAR-tiny" / "snapshots").iterdir()
    assert snapshot.name == COMMIT
    held = {path.name for path in snapshot.rglob("*")}
    assert {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors"} <= held
    assert load_folder(snapshot).family == "sdar"
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
    assert "GSAI-ML/LLaDA-8B-Base" in call("models", "--families")[1]
    code, out, err = call("inspect", NAME)
    assert code == 0, err
    assert ["family", "sdar"] in map(str.split, out.splitlines())
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
    said = "is not in the cache as a whole, the hub cannot be reached, and there is no such folder here"
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


def repository(folders: dict[str, Path], name: str, parent: Path, **files: str) -> None:
    """A repository with these small files."""
    folders[name] = parent / name.replace("/", "-")
    folders[name].mkdir()
    for file, content in files.items():
        (folders[name] / f"{file}.json").write_text(content)


def test_inspect_downloads_no_weights(hub: Hub, call: Callable[..., Called]) -> None:
    code, out, err = call("inspect", NAME)
    assert (code, "sdar" in out) == (0, True), err
    fetched = [path for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]
    assert any(path.endswith("config.json") for path in fetched)
    assert not any(path.endswith(".safetensors") for path in fetched)
    assert [*pull(NAME).glob("*.safetensors")]


def test_of_an_adapter_that_is_brought_along_inspect_takes_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(hub_module, "_download", lambda *given, **_: asked.append(given[2]) or Path("nowhere"))
    monkeypatch.setattr(hub_module, "read_json", lambda *_: {"model_type": "nemotron_labs_diffusion"})
    bundled = FAMILIES["nemotron"].bundled
    assert bundled is not None
    pull("owner/model", weights=False)
    assert f"{bundled.folder}/adapter_config.json" in asked[1]
    assert not any("safetensors" in pattern or pattern.endswith("adapter_*") for files in asked for pattern in files)
    pull("owner/model")
    assert f"{bundled.folder}/adapter_*" in asked[4]


def test_further_chat_templates_are_downloaded(hub: Hub, folders: dict[str, Path]) -> None:
    beside = folders[NAME] / "additional_chat_templates"
    beside.mkdir(exist_ok=True)
    (beside / "rag.jinja").write_text("RAG")
    for folder in (pull(NAME), pull_tokenizer(NAME)):
        assert (folder / beside.name / "rag.jinja").read_text() == "RAG"


def test_the_list_says_adapters_own_models_and_why_others_are_not_supported(
    hub: Hub, folders: dict[str, Path], tmp_path: Path, call: Callable[..., Called]
) -> None:
    repository(folders, "some/adapter", tmp_path, adapter_config='{"peft_type": "LORA"}')
    repository(folders, "some/own", tmp_path, config='{"weights_sha256": "0"}')
    for name in ("some/adapter", "some/own", "state/space"):
        with contextlib.suppress(UnsupportedError):
            pull(name)
    code, out, err = call("models")
    assert code == 0, err
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert ")  adapter  " in lines["some/adapter"]
    assert ")  daguerre  " in lines["some/own"]
    assert "not supported: MambaForCausalLM" in lines["state/space"]


def test_a_revision_that_names_nothing_is_refused(subtests: pytest.Subtests) -> None:
    for name, revision in [("o/m", ""), ("o/m@", None), ("o/m", 5)]:
        with subtests.test(name, revision=revision), pytest.raises(InputError, match="not a branch, tag or commit"):
            pull(name, revision)


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), NotADirectoryError(20, "no folder")])
def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=r"the cache cannot hold o/m .*set HF_HOME"):
        pull("o/m")
