"""Windows, cuts and gaps: text stays exact, shares hold, and a micro-batch is a function of seed and index alone."""

from __future__ import annotations

import os
import signal
import struct
from concurrent.futures import wait
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.errors import DataError, InputError, TrainingError
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch
from daguerre.train.data import (
    GOLDEN,
    MAX_GAP,
    Cutter,
    MicroBatches,
    ObjectiveMixture,
    TextWindows,
    character_gaps,
    line_gaps,
)
from daguerre.train.examples import LAYOUTS, make_example
from daguerre.train.feed import Feed
from daguerre.train.noising import Source
from daguerre.train.objectives import Objective
from daguerre.train.recipe import load_recipe
from daguerre.train.shards import Shard, write_shards
from daguerre.train.stage import MIN_WINDOW, Stage

LENGTH = 96


def draw(windows: TextWindows, tokenizer: Tokenizer, layout: str, seed: int, length: int = LENGTH):  # type: ignore[no-untyped-def]
    """(window, source) of one draw."""
    rng = np.random.default_rng(seed)
    window = windows.draw(length, rng)
    return window, Cutter(tokenizer).source(window, layout, rng)


# ---- windows ------------------------------------------------------------------------------------------------------


def test_a_window_is_the_beginning_of_text_and_then_a_piece_of_one_document(windows: TextWindows) -> None:
    shard, rng = windows.shard, np.random.default_rng(0)
    bodies = [shard.document(i)[1:].tobytes() for i in range(shard.num_documents)]
    for _ in range(200):
        window = windows.draw(LENGTH, rng)
        assert window[0] == windows.bos_id
        assert 2 <= len(window) <= LENGTH
        assert window.dtype == np.int64
        assert any(window[1:].astype("<u2").tobytes() in body for body in bodies)
        assert windows.bos_id not in window[1:]


def test_a_short_document_gives_all_of_itself_and_a_long_one_full_windows(windows: TextWindows) -> None:
    rng = np.random.default_rng(1)
    whole = [windows.shard.document(i) for i in range(windows.shard.num_documents)]
    lengths = {len(windows.draw(LENGTH, rng)) for _ in range(3000)}
    assert lengths == {min(LENGTH, len(document)) for document in whole}


def test_both_ends_of_a_document_are_seen_half_as_often_as_its_middle(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_shards(tmp_path, {"train": ["".join(f"value_{i} = {i}\n" for i in range(300))]}, tokenizer)
    windows, rng = TextWindows(Shard.open(tmp_path), tokenizer.bos_id), np.random.default_rng(0)
    document = windows.shard.document(0)
    num, seen = len(document), np.zeros(len(document))
    flat = document.astype("<u2").tobytes()
    for _ in range(2000):
        window = windows.draw(65, rng)
        start = flat.index(window[1:].astype("<u2").tobytes()) // 2
        seen[start : start + len(window) - 1] += 1
    middle = seen[num // 4 : -num // 4].mean()
    assert 0.3 * middle < seen[1] < 0.8 * middle
    assert 0.3 * middle < seen[-1] < 0.8 * middle


# ---- cuts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["canvas", "drafts", "full_suffix", "infill"])
def test_a_source_is_the_window_s_text_up_to_its_crop(windows: TextWindows, tokenizer: Tokenizer, layout: str) -> None:
    whole = 0
    for seed in range(150):
        window, source = draw(windows, tokenizer, layout, seed)
        text, cut = tokenizer.decode_bytes(window.tolist()), tokenizer.decode_bytes(source.tokens.tolist())
        assert text.startswith(cut)
        assert len(source.tokens) <= len(window)
        assert source.tokens[0] == windows.bos_id
        whole += text == cut
        if len(cut) < len(text):
            assert len(source.tokens) == len(window)
        elif len(source.tokens) < len(window):
            assert (source.tokens[-1] == tokenizer.eos_id) == (window[-1] == tokenizer.eos_id)
    assert whole > 20


@pytest.mark.parametrize("layout", ["drafts", "infill", "suffix"])
def test_a_text_that_is_cut_at_characters_still_ends(tokenizer: Tokenizer, layout: str) -> None:
    """One token a byte: encoded again the text is shorter, so its end is not cropped."""
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1}
    text = "for value in range(10):\n    print(value)\n" * 2
    window = np.array([tokenizer.bos_id, *(single[bytes([byte])] for byte in text.encode()), tokenizer.eos_id])
    shorter = 0
    for seed in range(20):
        source = Cutter(tokenizer).source(window, layout, np.random.default_rng(seed))
        shorter += len(source.tokens) < len(window)
        assert source.tokens[-1] == tokenizer.eos_id
        assert tokenizer.decode(source.tokens.tolist()) == text
    assert 3 < shorter < 17


@pytest.mark.parametrize("layout", ["next_token", "blocks", "suffix", "full_gap", "infill"])
def test_starts_and_gaps_lie_inside_the_source_in_order_and_apart(
    windows: TextWindows, tokenizer: Tokenizer, layout: str
) -> None:
    empty = 0
    for seed in range(150):
        source = draw(windows, tokenizer, layout, seed)[1]
        num = len(source.tokens)
        assert all(1 <= start < num - 1 for start in source.starts)
        assert list(source.starts) == sorted(set(source.starts))
        assert bool(source.gaps) == (layout == "infill")
        ends = [0]
        for start, end in source.gaps:
            assert 1 <= start <= end < num
            assert start > ends[-1]
            assert end - start <= MAX_GAP
            empty += start == end
            ends.append(end)
    assert (0 < empty < 20) == (layout == "infill"), "a few gaps are empty"


@pytest.mark.parametrize("layout", ["drafts", "blocks", "suffix"])
def test_half_of_the_spans_begin_where_a_character_was_cut(
    windows: TextWindows, tokenizer: Tokenizer, layout: str
) -> None:
    """Counted over spans, not windows: a span that begins at none of the cuts begins at a bound of plain tokens."""
    objective, cut, total, inside = Objective(layout=layout), 0, 0, 0
    for seed in range(220):
        window, source = draw(windows, tokenizer, layout, seed)
        if len(window) < LENGTH:
            continue
        example = make_example(source, objective, 0.5, np.random.default_rng(seed), LENGTH)
        spans = example.span[example.num_clean :]
        plain = {len(tokenizer.decode_bytes(window[:i].tolist())) for i in range(len(window))}
        for span in np.unique(spans):
            start = int(example.position[example.num_clean :][spans == span][0]) + 1
            total += 1
            cut += start in source.starts
            inside += len(tokenizer.decode_bytes(source.tokens[:start].tolist())) not in plain
    assert total > 140
    assert 0.42 < cut / total < 0.58
    assert 0.15 < inside / total < cut / total  # the rest of the cuts fall between tokens by chance


def test_half_of_the_gaps_are_cut_at_characters(windows: TextWindows, tokenizer: Tokenizer) -> None:
    class Counting(Tokenizer):
        calls = 0

        def encode(self, text: str) -> list[int]:
            type(self).calls += 1
            return super().encode(text)

    counting = Counting(Path(tokenizer_file()).read_text(encoding="utf-8"))
    rng, by_character = np.random.default_rng(0), 0
    for _ in range(600):
        Counting.calls = 0
        Cutter(counting).source(windows.draw(LENGTH, rng), "infill", rng)
        by_character += Counting.calls > 0
    assert 0.4 < by_character / 600 < 0.55


def tokenizer_file() -> Path:
    import daguerre.assets

    return Path(daguerre.assets.__path__[0]) / "tokenizer-2k.json"


def test_windows_that_split_a_character_are_cut_at_tokens_only(windows: TextWindows, tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("漢")[:1]
    window = np.array([tokenizer.bos_id, *tokenizer.encode("x = 1\n" * 10), *half])
    for seed in range(20):
        for layout in LAYOUTS:
            source = Cutter(tokenizer).source(window, layout, np.random.default_rng(seed))
            assert np.array_equal(source.tokens, window)
            assert source.starts == ()


def test_line_gaps_are_whole_lines_without_their_last_break() -> None:
    text, rng = "a = 1\n\nbcd = 2\n    efg\nh\n", np.random.default_rng(0)
    starts = {0, *(i + 1 for i, c in enumerate(text) if c == "\n")}
    whole = 0
    for _ in range(300):
        for start, end in line_gaps(text, rng):
            assert text[end] == "\n"
            assert start > 0
            assert end > start
            whole += start in starts
    assert whole > 100
    assert line_gaps("one line\n", rng) == []


def test_character_gaps_are_apart_and_inside() -> None:
    text, rng = "x" * 700, np.random.default_rng(0)
    counts = set()
    for _ in range(300):
        gaps = character_gaps(text, rng)
        counts.add(len(gaps))
        edges = [0, *(edge for gap in gaps for edge in gap), len(text)]
        assert all(b > a for a, b in gaps)
        assert all(b - a >= 4 for a, b in zip(edges[2:-2:2], edges[3:-1:2], strict=True))
        assert edges[1] >= 1
        assert edges[-2] < len(text)
    assert counts == {1, 2, 3}


# ---- mixtures and micro-batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "refine", "settle", "full", "adapt"])
def test_a_quarter_of_the_sequences_and_more_train_the_drafter(name: str) -> None:
    """Shares hold over the first hundred micro-batches as over ten thousand; those of a stage are equally large."""
    recipe = load_recipe(name)
    mixture = recipe.make_mixture()
    total = sum(share.share for share in recipe.mixture.values())
    for num, slack in ((100, 0.03), (10_000, 0.001)):
        picked = [mixture.pick(i) for i in range(num)]
        for key, objective in mixture.objectives.items():
            found = sum(p == objective for p in picked) / num
            assert found == pytest.approx(recipe.mixture[key].share / total, abs=slack)
        drafters = [p for p in picked if p.layout == "drafts" and p.times == "full"]
        assert len(drafters) >= (0.25 - slack) * num
    shares = [recipe.mixture[key].share for key, o in mixture.objectives.items() if o.layout == "drafts"]
    assert sum(shares) / total >= 0.25 - 1e-9


def test_shares_need_not_add_up_to_one() -> None:
    objectives = {"a": Objective(layout="drafts"), "b": Objective(layout="blocks")}
    mixture = ObjectiveMixture(objectives, {"a": 3.0, "b": 1.0})
    assert [mixture.pick(i).layout for i in range(2000)].count("drafts") == pytest.approx(1500, abs=3)
    assert 0 < GOLDEN < 1


def test_a_mixture_without_a_positive_share_is_an_error() -> None:
    objectives = {"a": Objective(layout="drafts")}
    for shares in ({"a": 0.0}, {"a": -1.0}, {"b": 1.0}, {}):
        with pytest.raises(InputError, match="share"):
            ObjectiveMixture(objectives, shares)


@pytest.fixture(scope="module")
def maker(windows: TextWindows, tokenizer: Tokenizer) -> MicroBatches:
    return MicroBatches(windows, Cutter(tokenizer), load_recipe("small").make_mixture(), seed=3)


def equal(a: Batch, b: Batch) -> bool:
    rows = (
        all(torch.equal(getattr(a.layout.rows, f.name), getattr(b.layout.rows, f.name)) for f in fields(a.layout.rows)),
    )
    tensors = (torch.equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "target", "weight", "level"))
    return all((*rows, *tensors, a.norm == b.norm, a.layout.plain == b.layout.plain))


def test_a_micro_batch_is_a_function_of_seed_and_index(
    maker: MicroBatches, windows: TextWindows, tokenizer: Tokenizer
) -> None:
    forward = [maker.make(i, 4, 64) for i in range(6)]
    backward = [maker.make(i, 4, 64) for i in reversed(range(6))][::-1]
    assert all(equal(a, b) for a, b in zip(forward, backward, strict=True))
    other = MicroBatches(windows, Cutter(tokenizer), maker.mixture, seed=4)
    assert not any(equal(a, other.make(i, 4, 64)) for i, a in enumerate(forward))


def test_every_sequence_has_a_few_tokens_even_where_documents_are_shorter(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_shards(tmp_path, {"train": ["x", "", "y = 1\n"]}, tokenizer)
    windows = TextWindows(Shard.open(tmp_path), tokenizer.bos_id)
    for layout in LAYOUTS:
        facts: dict[str, Any] = {"shift": False, "block_size": 4} if layout == "bd3" else {}
        objective = Objective(layout=layout, **facts)
        maker = MicroBatches(windows, Cutter(tokenizer), ObjectiveMixture({"a": objective}, {"a": 1.0}), 0)
        for index in range(10):
            batch = maker.make(index, 3, MIN_WINDOW)
            assert batch.num_tokens == 3 * MIN_WINDOW


def test_an_empty_corpus_says_how_to_make_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_shards(tmp_path, {"train": []}, tokenizer)
    windows = TextWindows(Shard.open(tmp_path), tokenizer.bos_id)
    maker = MicroBatches(windows, Cutter(tokenizer), ObjectiveMixture({"a": Objective(layout="drafts")}, {"a": 1.0}), 0)
    with pytest.raises(DataError, match="daguerre data python"):
        maker.make(0, 1, 64)


def test_loaders_make_the_same_batches_and_leave_ctrl_c_to_the_run(maker: MicroBatches) -> None:
    stages = [Stage(until=0.5, length=64, sequences=3, micro_batches=2)] * 2
    stages.append(Stage(until=1.0, length=96, sequences=2, micro_batches=2))
    taken = []
    with Feed(maker, loaders=1) as feed:
        for step, stage in enumerate(stages):
            taken += list(feed.take(2 * step, stage))
            assert feed.pool is not None
            for process in feed.pool._processes:
                os.kill(process, signal.SIGINT)
    here = [maker.make(2 * s + i, stage.sequences, stage.length) for s, stage in enumerate(stages) for i in range(2)]
    assert all(equal(a, b) for a, b in zip(taken, here, strict=True))


def test_a_killed_loader_is_an_error_that_says_what_to_do(maker: MicroBatches, preloaded: None) -> None:
    stage = Stage(until=1.0, length=64, sequences=1, micro_batches=1)
    with Feed(maker, loaders=1) as feed:
        list(feed.take(0, stage))
        assert feed.pool is not None
        for process in feed.pool._processes:
            os.kill(process, signal.SIGKILL)
        batches = chain.from_iterable(feed.take(index, stage) for index in range(1, 20))
        with pytest.raises(TrainingError, match="set loaders lower"):
            list(batches)


def test_a_loader_that_is_killed_while_it_sends_is_an_error_too(
    maker: MicroBatches, monkeypatch: pytest.MonkeyPatch, preloaded: None
) -> None:
    monkeypatch.setattr("daguerre.train.workers.CHECKED", 0.2)
    stage = Stage(until=1.0, length=64, sequences=1, micro_batches=1)
    with Feed(maker, loaders=1) as feed:
        list(feed.take(0, stage))
        assert feed.pool is not None
        wait([*feed.pending.values()])  # nothing is on its way
        sent = feed.pool._result_queue._writer.fileno()  # type: ignore[attr-defined]
        os.write(sent, struct.pack("!i", 1000) + b"the beginning")
        for process in feed.pool._processes:
            os.kill(process, signal.SIGKILL)
        batches = chain.from_iterable(feed.take(index, stage) for index in range(1, 20))
        with pytest.raises(TrainingError, match="set loaders lower"):
            list(batches)


def test_a_source_needs_no_cuts() -> None:
    source = Source(np.arange(16, 40), 3)
    example = make_example(source, Objective(layout="drafts"), 0.5, np.random.default_rng(0), 24)
    assert example.num_clean == 24
