"""What was found once is right now: the corpus, as it is."""

from __future__ import annotations

import pytest

from fuzz.engine import CORPUS, Child, past
from fuzz.planted import PLANTED
from fuzz.targets import TARGETS


def test_what_was_found_once_ends_as_it_should(subtests: pytest.Subtests) -> None:
    names = [name for name in TARGETS if past(name)]
    assert names
    child = Child()
    try:
        for name in names:
            for path in past(name):
                with subtests.test(name, file=path.name):
                    found = child.run(name, path.read_bytes())
                    assert found is None, f"{found.kind}\n{found.why}"
    finally:
        child.close()


def test_there_is_a_target_for_everything_that_strangers_write() -> None:
    wanted = "schema pattern tools config published_config weights tokenizer template server batch route_config"
    assert {*wanted.split(), "route_answer", "ledger", "trace"} <= TARGETS.keys()
    assert PLANTED.name not in TARGETS


def test_the_corpus_has_a_target_for_each_folder() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= TARGETS.keys()
