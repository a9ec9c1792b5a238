"""What is compiled is kept on disk: found again, bounded, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from daguerre.files import CACHE, cache_folder
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling import constrained
from daguerre.sampling.constraints import TokenAutomaton, compile_regex, compile_schema, store
from daguerre.sampling.constraints.tokens import FIELDS, PAIRS


def same(a: TokenAutomaton, b: TokenAutomaton) -> bool:
    fields = [(getattr(a, name), getattr(b, name)) for name in (*FIELDS, "ignored")]
    fields += [(getattr(a.pairs, name), getattr(b.pairs, name)) for name in PAIRS]
    return all(np.array_equal(first, second) for first, second in fields)


def test_what_was_compiled_is_kept_by_constraint_and_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "made_up": 1}
    made = compile_schema(schema, tokenizer, lenient=True, folder=tmp_path / "new")
    (path,) = (tmp_path / "new").iterdir()
    before = path.read_bytes()

    again = compile_schema(schema, tokenizer, lenient=True, folder=tmp_path / "new")

    assert same(made, again) and path.read_bytes() == before
    assert again.ignored == ("keyword 'made_up' at #",)
    compile_regex("a+", tokenizer, folder=tmp_path / "new")
    compile_regex("a+", Tokenizer.default("8k"), folder=tmp_path / "new")
    assert len(list((tmp_path / "new").iterdir())) == 3


def test_a_damaged_file_is_compiled_anew(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = compile_regex("a+", tokenizer, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])

    assert same(compile_regex("a+", tokenizer, folder=tmp_path), made)
    assert same(TokenAutomaton.load(path), made)


def test_a_folder_that_cannot_be_written_is_no_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    assert compile_regex("a+", tokenizer, folder=tmp_path / "file" / "below").accepts(tokenizer.encode("aaa"))


def test_what_was_used_least_recently_goes_first(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.npz"
    mine.write_bytes(b"another's file")
    paths = []
    for number, pattern in enumerate(("a+", "b+", "c+")):
        compile_regex(pattern, tokenizer, folder=tmp_path)
        paths += [path for path in tmp_path.glob(store.NAME) if path not in paths]
        os.utime(paths[-1], (number, number))
    compile_regex("a+", tokenizer, folder=tmp_path)  # now the last one used
    monkeypatch.setattr(store, "MAX_BYTES", 100 + sum(path.stat().st_size for path in paths))

    compile_regex("d+", tokenizer, folder=tmp_path)

    assert [path.exists() for path in [*paths, mine]] == [True, False, True, True]


def test_another_version_of_the_compiler_finds_nothing(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_regex("a+", tokenizer, folder=tmp_path)
    monkeypatch.setattr(store, "compiler", lambda: "another")
    compile_regex("a+", tokenizer, folder=tmp_path)

    assert len(list(tmp_path.iterdir())) == 2


def test_the_folder_is_the_variables_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for value in ("off", "", "/elsewhere"):
        monkeypatch.setenv(CACHE, value)
        found[value] = cache_folder()
    assert found == {"off": None, "": None, "/elsewhere": Path("/elsewhere")}

    monkeypatch.delenv(CACHE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == tmp_path / ".cache" / "daguerre"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "daguerre"


def test_a_request_compiles_once_for_all_processes_what_takes_long(
    causal: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(constrained, "WORTH", 0.0)
    constrained._compiled.cache_clear()
    options = {"regex": "[a-z]{3}-[0-9]+", "keywords": ["x-"], "logit_bias": {causal.tokenizer.encode("9")[0]: -np.inf}}
    first = causal.generate("a ", 8, **options)
    constrained._compiled.cache_clear()
    monkeypatch.setattr(constrained, "compile_wording", None)  # nothing is compiled again

    assert causal.generate("a ", 8, **options).text == first.text
    assert len(list((tmp_path / "constraints").glob(store.NAME))) == 1

    monkeypatch.setenv(CACHE, "off")
    constrained._compiled.cache_clear()
    with pytest.raises(TypeError):
        causal.generate("a ", 8, **options)
    constrained._compiled.cache_clear()


def test_what_compiles_fast_is_not_kept(causal: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(constrained, "WORTH", 1e9)
    constrained._compiled.cache_clear()

    causal.generate("a ", 4, regex="[a-z]{2}")

    assert not list(tmp_path.rglob("*"))
