"""A corpus of a model's own text: what it writes, and what it is written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.errors import DataError, InputError
from daguerre.model import Model
from daguerre.train.commands import data_self
from daguerre.train.corpus import self_text
from daguerre.train.corpus.self_text import LOOP, loops, self_texts, write_self_text
from daguerre.train.shards import Shard, write_shards


def interrupt_now() -> None:
    raise KeyboardInterrupt


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
    shard, rng = Shard.open(corpus), np.random.default_rng(0)
    texts = self_texts(model, shard, temperature, 150, np.random.default_rng(0))
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
    summary = write_self_text(model, corpus, tmp_path / "own", 200, progress=lambda count, _: done.append(count))
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


def test_every_text_that_is_begun_is_finished(model: Model, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[int]] = []
    draw = self_text.draw_prompt

    def counted(shard: Shard, rng: np.random.Generator) -> list[int]:
        begun.append(draw(shard, rng))
        return begun[-1]

    monkeypatch.setattr(self_text, "draw_prompt", counted)
    monkeypatch.setattr(self_text, "SHORTEST", 0)
    texts = self_texts(model, Shard.open(corpus), 1.0, 300, np.random.default_rng(0))
    assert sorted(text.prompt for text in texts) == sorted(begun)


@pytest.mark.parametrize("stop", [0, 1, 3, 99])
def test_an_interrupted_run_goes_on_behind_the_last_finished_part(
    model: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Interrupted in part number `stop`, or behind all parts: the same files as of one run."""
    monkeypatch.setattr(self_text, "PART", 80)
    written: list[int] = []
    whole, own = tmp_path / "whole", tmp_path / "own"

    def count(*given: Any) -> list[self_text.SelfText]:
        written.append(given[3])
        return self_texts(*given)

    monkeypatch.setattr(self_text, "self_texts", count)
    summary = write_self_text(model, corpus, whole, 400)
    parts, stop = len(written), min(stop, len(written))
    assert parts > 4

    def interrupt(done: int, kept: int) -> None:
        if (len(written) == stop + 1 and done > kept) or kept == summary.new_tokens:
            raise KeyboardInterrupt

    written.clear()
    with pytest.raises(KeyboardInterrupt):
        write_self_text(model, corpus, own, 400, progress=interrupt)
    assert len(list((own / "parts").glob("*"))) == stop
    assert not (own / "meta.json").exists()
    written.clear()
    calls: list[tuple[int, int]] = []
    assert write_self_text(model, corpus, own, 400, progress=lambda *call: calls.append(call)) == summary
    assert len(written) == parts - stop
    assert [done == kept for done, kept in calls[: stop + 1]] == [True] * stop + [False] * (stop < parts)
    assert calls[-1] == (summary.new_tokens, summary.new_tokens)
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    assert {path.name: path.read_bytes() for path in own.iterdir()} == files


def test_parts_of_other_settings_or_damaged_ones_are_refused(
    model: Model, make_model: Callable[..., Model], corpus: Path, tokenizer: Any, tmp_path: Path
) -> None:
    own, text = tmp_path / "own", "def area(width, height):\n    return width * height\n" * 20
    with pytest.raises(KeyboardInterrupt):
        write_self_text(model, corpus, own, 100, progress=lambda done, kept: interrupt_now() if kept else None)
    (part,) = (own / "parts").iterdir()
    content = part.read_bytes()
    write_shards(tmp_path / "other", {"train": [text], "val": []}, tokenizer)
    with pytest.raises(InputError, match="another seed: remove this folder, or choose another"):
        write_self_text(model, corpus, own, 100, seed=1)
    with pytest.raises(InputError, match="another tokens and seed"):
        write_self_text(model, corpus, own, 101, seed=1)
    with pytest.raises(InputError, match="another model"):
        write_self_text(make_model(1, max_positions=96), corpus, own, 100)
    with pytest.raises(InputError, match="another corpus"):
        write_self_text(model, tmp_path / "other", own, 100)
    assert part.read_bytes() == content
    part.write_bytes(content[:-10])
    with pytest.raises(DataError, match="is damaged: remove it"):
        write_self_text(model, corpus, own, 100)


def test_an_interrupted_command_says_what_is_kept(
    model: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("daguerre.model.load", lambda name: model)
    said = []
    for name in ("self_texts", "write_corpus"):
        with monkeypatch.context() as patch:
            patch.setattr(self_text, name, lambda *_: interrupt_now())
            with pytest.raises(KeyboardInterrupt):
                data_self(tmp_path / "own", corpus, tokens=200)
        said.append(capsys.readouterr().err)
    assert "stopped early; nothing was kept yet" in said[0]
    assert f"tokens are kept; the same command goes on from {tmp_path / 'own' / 'parts'}" in said[1]
    data_self(tmp_path / "own", corpus, tokens=200)
    assert not (tmp_path / "own" / "parts").exists()


def test_what_cannot_be_written_is_refused(model: Model, corpus: Path, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 or more"):
        write_self_text(model, corpus, tmp_path / "own", 0)
    with pytest.raises(InputError, match="is the corpus itself"):
        write_self_text(model, corpus, corpus, 10)
    write_shards(tmp_path / "short", {"train": ["x = 1\n"], "val": []}, tokenizer)
    with pytest.raises(DataError, match="no texts of 20 tokens"):
        write_self_text(model, tmp_path / "short", tmp_path / "own", 10)
    assert not (tmp_path / "own").exists()
