"""The corpus: duplicates, splits, going on after a crash, what is shipped. Its rules are in test_corpus_rules.py."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from daguerre import heldout
from daguerre.errors import DataError, InputError
from daguerre.models.tokenizer import SPECIALS, Tokenizer
from daguerre.train import bpe
from daguerre.train.corpus import encode, harvest
from daguerre.train.corpus.collect import collect_python
from daguerre.train.corpus.dedup import NUM_PERM, NearIndex, best_bands, signature
from daguerre.train.corpus.document import CorpusDocument
from daguerre.train.corpus.parallel import WorkerPool
from daguerre.train.corpus.report import CorpusSummary
from daguerre.train.corpus.selection import cap_packages
from daguerre.train.corpus.sources import heldout_splits, standard_library
from daguerre.train.shards import Shard
from module_text import module_text


def install(
    site: Path, name: str, files: dict[str, str | bytes], license_line: str = "License-Expression: MIT"
) -> None:
    """Lay out an installed distribution as pip does."""
    record = []
    for file, content in files.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        record.append(f"{file},,")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{license_line}\n")
    (info / "RECORD").write_text("\n".join(record))


def collect(out: Path, *sources: Path, **options) -> CorpusSummary:
    options = {"workers": 1, "stdlib": False, "installed": False, "progress": False} | options
    return collect_python(out, sources, **options)


def manifest(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]


# --- duplicates and shares


def test_near_duplicates_are_found_and_others_are_not() -> None:
    index = NearIndex()
    assert index.find(signature(module_text("a"))) is None
    index.add(signature(module_text("a")))
    index.add(signature(module_text("b")))
    assert index.find(signature(module_text("b").replace("check_b(total_b, name_5_b)", "check_b()"))) == 1
    assert index.find(signature(module_text("c"))) is None


def test_a_signature_is_the_same_in_every_process() -> None:
    assert signature("one two three four five six").tolist() == signature("one two,three(four)\n\tfive six").tolist()
    assert signature("").shape == signature("a b").shape == (64,)


def test_a_bad_band_size_costs_more_than_the_one_chosen() -> None:
    assert best_bands(0.75) == (7, 9)
    assert best_bands(0.5)[1] < best_bands(0.75)[1] < best_bands(0.9)[1]
    assert all(rows * bands <= NUM_PERM for bands, rows in map(best_bands, (0.01, 0.5, 0.75, 1.0)))


def test_signatures_agree_in_about_the_share_that_the_sets_have_in_common() -> None:
    words = [f"word{i}" for i in range(12_000)]
    for common in (10_000, 8_000, 4_000):
        one, other = words[:10_000], words[10_000 - common : 20_000 - common]
        share = len(set(one) & set(other)) / len(set(one) | set(other))
        agree = np.mean(signature(" ".join(one)) == signature(" ".join(other)))
        assert abs(agree - share) < 0.2


def documents(package: str, count: int, size: int, spdx: str = "MIT") -> list[CorpusDocument]:
    return [CorpusDocument(package, "1", spdx, f"{i}.py", f"{package}{i:03}", size, "") for i in range(count)]


def test_a_large_package_is_cut_to_its_share() -> None:
    small = [document for i in range(49) for document in documents(f"small{i:02}", 1, 100)]
    kept = cap_packages([*documents("large", 100, 100), *small], 0.2)
    large = sum(document.package == "large" for document in kept)
    assert large == 12  # 12 / (12 + 49) <= 0.2 < 13 / (13 + 49)
    assert kept == cap_packages([*documents("large", 100, 100), *small], 0.2)


def test_few_packages_and_the_users_own_code_are_not_cut() -> None:
    assert len(cap_packages(documents("large", 100, 100), 0.01)) == 100
    users = documents("own", 500, 100, "user-provided")
    others = [document for i in range(60) for document in documents(f"p{i}", 1, 100)]
    assert len(cap_packages([*users, *others], 0.05)) == 560


# --- the whole


def test_a_corpus_is_split_by_package_and_accounted_for(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "alpha", {"alpha/one.py": module_text("one"), "alpha/two.py": module_text("two")})
    install(site, "Requests", {"requests/api.py": module_text("api")}, "License: Apache 2.0")
    install(site, "urllib3", {"urllib3/pool.py": module_text("pool")})
    install(site, "viral", {"viral/x.py": module_text("viral")}, "License-Expression: GPL-3.0-only")
    install(site, "nothing", {"nothing/x.py": module_text("nothing")}, "CorpusSummary: no license")
    copy = module_text("api").replace("right_3", "right")
    install(
        site,
        "copies",
        {"copies/api.py": copy, "copies/one.py": module_text("one"), "copies/new.py": module_text("new")},
    )

    summary = collect(tmp_path / "out", site)

    lines = manifest(tmp_path / "out")
    assert {(line["package"], line["file"], line["split"]) for line in lines} == {
        ("alpha", "alpha/one.py", "train"),
        ("alpha", "alpha/two.py", "train"),
        ("copies", "copies/new.py", "train"),
        ("requests", "requests/api.py", "test"),
        ("urllib3", "urllib3/pool.py", "val"),
    }
    assert lines[0].keys() == {"package", "version", "license", "file", "sha256", "bytes", "split"}
    assert summary.documents == {"train": 3, "val": 1, "test": 1}
    assert summary.dropped == {"near duplicate of a held-out file": 1, "exact duplicate": 1}
    assert set(summary.skipped) == {"viral", "nothing"}
    assert "GPL-3.0-only" in summary.skipped["viral"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["dropped"] == summary.dropped


def test_no_training_file_is_a_copy_of_the_frozen_sample_even_without_a_held_out_package(tmp_path: Path) -> None:
    one, other = [document.text for document in heldout.load_frozen() if len(document.text) > 5000][:2]
    users = tmp_path / "app"
    users.mkdir()
    files = {
        "copy.py": one,
        "near.py": other + "x = 1\n",
        "crlf.py": one.replace("\n", "\r\n"),
        "new.py": module_text("n"),
    }
    for name, text in files.items():
        (users / name).write_bytes(text.encode())
    summary = collect(tmp_path / "out", users)
    assert [line["file"] for line in manifest(tmp_path / "out")] == ["new.py"]
    assert summary.dropped == {"duplicate of a held-out file": 2, "near duplicate of a held-out file": 1}


def test_a_held_out_packages_own_copy_of_the_frozen_sample_stays_in_its_split(tmp_path: Path) -> None:
    document = next(document for document in heldout.load_frozen() if document.package == "requests")
    install(tmp_path / "site", "requests", {document.file: document.text})
    install(tmp_path / "site", "alpha", {"alpha/copy.py": document.text, "alpha/new.py": module_text("new")})
    summary = collect(tmp_path / "out", tmp_path / "site")
    assert {(line["file"], line["split"]) for line in manifest(tmp_path / "out")} == {
        (document.file, "test"), ("alpha/new.py", "train"),
    }  # fmt: skip
    assert summary.dropped == {"duplicate of a held-out file": 1}


def test_folders_of_one_name_are_all_kept_and_none_is_held_out_or_hides_a_package(tmp_path: Path) -> None:
    install(tmp_path / "site", "alpha", {"alpha/m.py": module_text("installed")})
    folders = [tmp_path / name for name in ("a/src", "b/src", "c/Flask", "d/alpha")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "m.py").write_text(module_text(f"of_{folder.parent.name}"))
    summary = collect(tmp_path / "out", *folders, tmp_path / "site")
    assert {line["package"] for line in manifest(tmp_path / "out")} == {"src", "src-2", "Flask-2", "alpha", "alpha-2"}
    assert summary.documents["train"] == 5


def test_the_manifest_names_the_documents_in_the_order_of_the_shards(tmp_path: Path) -> None:
    install(tmp_path / "site", "alpha", {f"alpha/m{i}.py": module_text(f"m{i}") for i in range(5)})
    summary = collect(tmp_path / "out", tmp_path / "site")
    shard, tokenizer = Shard.open(tmp_path / "out", "train"), Tokenizer.default("2k")
    texts = {f"alpha/m{i}.py": module_text(f"m{i}") for i in range(5)}
    for index, line in enumerate(manifest(tmp_path / "out")):
        assert tokenizer.decode(shard.document(index).tolist()) == texts[line["file"]]
        assert line["bytes"] == shard.doc_bytes[index]
    assert summary.tokens["train"] == shard.num_tokens


def test_bad_files_are_counted_listed_and_never_fatal(tmp_path: Path) -> None:
    files = {
        "a/good.py": module_text("good"),
        "a/latin.py": b"x = '\xe9'\n" * 40,
        "a/python2.py": "print 'a line of an older language'\n" * 20,
        "a/nul.py": b"x = 1\x00\n" * 40,
        "a/huge.py": "# comment line\n" * 100_000,
        "a/_vendor/b.py": module_text("vendored"),
        "a/empty.py": "",
    }
    install(tmp_path / "site", "a", files)
    with (tmp_path / "site" / "a-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("\na/absent.py,,\n../../outside.py,,\n/etc/absolute.py,,")
    (tmp_path / "site" / "a" / "folder.py").mkdir()
    summary = collect(tmp_path / "out", tmp_path / "site")
    assert summary.documents["train"] == 1
    assert summary.dropped == {
        "does not decode": 1, "data": 1, "too large": 1, "vendored": 1, "tiny": 1, "unreadable": 1,
        "does not parse": 1,
    }  # fmt: skip
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["bad_files"]["a"] == {
        "a/absent.py": "unreadable", "a/latin.py": "does not decode", "a/python2.py": "does not parse",
    }  # fmt: skip


def test_any_other_folder_is_the_users_own_code(tmp_path: Path) -> None:
    users = tmp_path / "my_app"
    (users / ".venv" / "lib").mkdir(parents=True)
    (users / ".venv" / "lib" / "hidden.py").write_text(module_text("hidden"))
    (users / "app.py").write_text(module_text("app"))
    collect(tmp_path / "out", users)
    (line,) = manifest(tmp_path / "out")
    assert (line["package"], line["license"], line["file"]) == ("my_app", "user-provided", "app.py")


def test_two_processes_give_what_one_gives(tmp_path: Path, preloaded: None) -> None:
    for name in ("alpha", "beta", "requests"):
        install(tmp_path / "site", name, {f"{name}/m.py": module_text(name)})
    collect(tmp_path / "one", tmp_path / "site", workers=1)
    collect(tmp_path / "two", tmp_path / "site", workers=2)
    for name in ("manifest.jsonl", "meta.json", "train.bin", "test.bin", "train.starts.npy", "train.bytes.npy"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    install(tmp_path / "site", "viral", {"viral/x.py": module_text("viral")}, "License: GPL")
    install(tmp_path / "site", "alpha", {"alpha/x.py": "x\n"})
    with pytest.raises(DataError, match=r"no file left: 1 seen, 1 tiny, 1 packages skipped .license.*; pass --source"):
        collect(tmp_path / "out", tmp_path / "site")
    assert not (tmp_path / "out" / "meta.json").exists()


def test_a_source_or_out_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        collect(tmp_path / "out", tmp_path / "absent")
    install(tmp_path / "site", "alpha", {"alpha/x.py": module_text("x")})
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        collect(tmp_path / "file", tmp_path / "site")


@pytest.mark.parametrize("options", [{"workers": 0}, {"max_share": 0}, {"near_duplicates": 1.5}, {"tokenizer": "4k"}])
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict) -> None:
    with pytest.raises(InputError):
        collect(tmp_path / "out", tmp_path, **options)


# --- going on after a crash


def test_finished_packages_are_not_read_again_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alpha", "beta", "gamma", "delta"):
        install(tmp_path / "site", name, {f"{name}/m.py": module_text(name)})
    read: list[str] = []
    original = harvest.harvest

    def crash_at_the_third(package):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(package.name)
        return original(package)

    monkeypatch.setattr(harvest, "harvest", crash_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "out", tmp_path / "site")
    finished = set(read)
    read.clear()

    def record(package):
        read.append(package.name)
        return original(package)

    monkeypatch.setattr(harvest, "harvest", record)
    summary = collect(tmp_path / "out", tmp_path / "site")
    assert set(read) == {"alpha", "beta", "gamma", "delta"} - finished
    assert summary.documents["train"] == 4
    monkeypatch.undo()
    collect(tmp_path / "fresh", tmp_path / "site")
    assert (tmp_path / "out" / "train.bin").read_bytes() == (tmp_path / "fresh" / "train.bin").read_bytes()


def test_finished_chunks_are_not_tokenized_again_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "alpha", {f"alpha/m{i}.py": module_text(f"m{i}") for i in range(4)})
    monkeypatch.setattr(encode, "CHUNK_BYTES", 1)
    done: list[Path] = []
    original = encode.encode_chunk

    def crash_at_the_third(chunk):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(chunk.path)
        original(chunk)

    monkeypatch.setattr(encode, "encode_chunk", crash_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "out", tmp_path / "site")
    done[0].write_bytes(done[0].read_bytes()[:50])  # a damaged file is made again
    again: list[Path] = []
    monkeypatch.setattr(encode, "encode_chunk", lambda chunk: (again.append(chunk.path), original(chunk)))
    collect(tmp_path / "out", tmp_path / "site")
    assert len(again) == 3
    assert done[0] in again
    assert done[1] not in again


def test_a_package_that_changed_is_read_again(tmp_path: Path) -> None:
    install(tmp_path / "site", "alpha", {"alpha/m.py": module_text("old")})
    collect(tmp_path / "out", tmp_path / "site")
    (tmp_path / "site" / "alpha" / "m.py").write_text(module_text("renewed"))
    collect(tmp_path / "out", tmp_path / "site")
    assert manifest(tmp_path / "out")[0]["bytes"] == len(module_text("renewed"))


def kill_this_process(item: int) -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_an_error_that_says_what_to_do(preloaded: None) -> None:
    with pytest.raises(DataError, match="fewer workers"):
        WorkerPool(2, progress=False).map(kill_this_process, [1, 2], "kill")


# --- what is shipped


def test_the_held_out_list_is_sound() -> None:
    splits = heldout_splits()
    assert set(splits.values()) == {"test", "val"}
    assert sum(split == "test" for split in splits.values()) >= 20
    assert all(name == name.lower() and "_" not in name for name in splits)


def test_the_standard_library_is_found_without_its_tests() -> None:
    package = standard_library()
    assert {"json/decoder.py", "ast.py", "idlelib/config.py"} <= set(package.files)
    assert not [file for file in package.files if {"test", "tests", "site-packages"} & set(PurePosixPath(file).parts)]


def test_the_frozen_sample_is_the_published_one() -> None:
    sample = heldout.load_frozen()
    splits = heldout_splits()
    assert {splits[document.package] for document in sample} == {"test"}
    assert 1_000_000 <= sum(len(document.text.encode()) for document in sample) <= 2_000_000
    assert len({document.package for document in sample}) >= 20
    assert all(not document.file.startswith("/") for document in sample)


def test_an_altered_sample_is_refused() -> None:
    with pytest.raises(DataError, match="reinstall"):
        heldout.parse_sample('{"text": ""}\n', heldout.SAMPLE_SHA256)


@pytest.mark.parametrize(("name", "smallest"), [("2k", 2.85), ("8k", 3.5)])
def test_the_vocabularies_are_compact_on_held_out_files(name: str, smallest: float) -> None:
    tokenizer = Tokenizer.default(name)
    texts = [document.text for document in heldout.load_frozen()][::5]
    tokens = sum(len(tokenizer.encode(text)) for text in texts)
    assert sum(len(text.encode()) for text in texts) / tokens >= smallest


def test_a_vocabulary_has_what_its_texts_repeat_and_no_special_token_is_written() -> None:
    tokenizer = bpe.train_bpe([module_text("zebra")], 300)
    assert tokenizer.vocab_size == 300
    assert any(b"zeb" in tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size))
    assert tokenizer.encode(SPECIALS[3]) != [3]


@pytest.mark.parametrize(("size", "message"), [(100, "from 272"), (5000, "give more text")])
def test_an_impossible_vocabulary_size_is_refused(size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bpe.train_bpe([module_text("few")], size)
