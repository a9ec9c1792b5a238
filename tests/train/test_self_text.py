"""A corpus of a model's own text: what it writes, and what it is written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.errors import DataError, InputError
from daguerre.model import Model
from daguerre.train.corpus import self_text
from daguerre.train.corpus.self_text import LOOP, loops, self_texts, write_self_text
from daguerre.train.shards import Shard, write_shards


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(max_positions=96)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_text, "PROMPT", (12, 20))
    monkeypatch.setattr(self_text, "LONGEST", 60)
    monkeypatch.setattr(self_text, "TOGETHER", 5)


def test_a_run_of_tokens_that_stood_before_is_a_loop() -> None:
    run = list(range(LOOP))
    assert loops([*run, 50, *run])
    assert not loops([*run, 50, *run[:-1]])
    assert not loops([*run, 50, *run, 51])
    assert loops([7] * (LOOP + 1))
    assert not loops([7] * LOOP)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_what_the_model_writes_after_prompts_of_the_corpus(
    model: Model, corpus: Path, temperature: float
) -> None:
    """As `generate` writes them alone, with the same seed; greedy ones end before the first loop."""
    shard, rng = Shard.open(corpus), np.random.default_rng([0, round(1000 * temperature)])
    texts = self_texts(model, shard, temperature, 150, 0, lambda done: None)
    assert sum(len(text.new) for text in texts) >= 150
    first: dict[tuple[int, ...], int] = {}
    for _ in range(5):
        prompt = self_text.draw_prompt(shard, rng)
        assert 12 <= len(prompt) <= 20
        first[tuple(prompt)] = int(rng.integers(2**62))
    found = {tuple(text.prompt): text.new for text in texts}
    compared = 0
    for prompt, seed in first.items():
        if prompt not in found:
            continue
        options = {"mode": "ar", "temperature": temperature, "seed": seed, "max_tokens": 60 - len(prompt)}
        alone = [t.id for t in model.generate(list(prompt), heal=False, **options).tokens]
        expected = [token for token in alone if token >= 16]
        if temperature == 0:
            ends = [end for end in range(len(expected) + 1) if loops(expected[:end])]
            expected = expected[: ends[0] - LOOP] if ends else expected
        assert found[prompt] == expected
        compared += 1
    assert compared > 1


def test_the_corpus_holds_as_much_of_each_and_says_what_was_given(model: Model, corpus: Path, tmp_path: Path) -> None:
    done: list[int] = []
    summary = write_self_text(model, corpus, tmp_path / "own", 200, progress=done.append)
    shard, source = Shard.open(tmp_path / "own"), Shard.open(corpus)
    assert done == sorted(done)
    assert done[-1] == summary.new_tokens >= 200
    assert shard.given is not None
    own = shard.given > 0
    assert own.sum() == summary.texts
    lengths = np.diff(shard.starts)
    assert lengths[own].sum() - 2 * summary.texts == summary.new_tokens + shard.given.sum()
    assert lengths[~own].sum() == summary.corpus_tokens >= lengths[own].sum() - 2 * summary.texts
    of_corpus = {source.document(i).tobytes() for i in range(source.num_documents)}
    assert {shard.document(int(i)).tobytes() for i in np.flatnonzero(~own)} <= of_corpus
    text = shard.document(int(np.flatnonzero(own)[0]))
    given = int(shard.given[np.flatnonzero(own)[0]])
    prompt = " ".join(map(str, text[1 : 1 + given].tolist()))
    assert any(prompt in " ".join(map(str, source.document(i).tolist())) for i in range(source.num_documents))
    val, before = Shard.open(tmp_path / "own", "val"), Shard.open(corpus, "val")
    assert np.array_equal(val.tokens, before.tokens)
    again = write_self_text(model, corpus, tmp_path / "again", 200)
    assert again == summary
    assert (tmp_path / "again" / "train.bin").read_bytes() == (tmp_path / "own" / "train.bin").read_bytes()


def test_what_cannot_be_written_is_refused(model: Model, corpus: Path, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 or more"):
        write_self_text(model, corpus, tmp_path / "own", 0)
    with pytest.raises(InputError, match="is the corpus itself"):
        write_self_text(model, corpus, corpus, 10)
    write_shards(tmp_path / "short", {"train": ["x = 1\n"], "val": []}, tokenizer)
    with pytest.raises(DataError, match="no texts of 20 tokens"):
        write_self_text(model, tmp_path / "short", tmp_path / "own", 10)
    assert not (tmp_path / "own").exists()
