"""Labels of a corpus: concepts of the tokens of any window, kept beside the shards; and what they say of tokens."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from daguerre.concepts.labels import label, of_tokens, token_concepts
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import DataError
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.concept_heads import FEWEST, LIFTED, WINDOW, count_concepts
from daguerre.train.concept_labels import CorpusLabels, corpus_labels
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, ObjectiveMixture, TextWindows
from daguerre.train.noising import IGNORE
from daguerre.train.objectives import Objective
from daguerre.train.shards import Shard, write_shards

NUM = taxonomy().num_ids
TEXTS = [
    'def größe(x):\n    """Größe."""\n    return [eval(y) for y in x if y]\n'
    '\n\ntry:\n    größe("ß")\nexcept:\n    pass\n',
    "import os\r\nfor name in os.listdir('.'):\r\n\tprint(name)\r\n",
    "def broken(:\n    pass\n",
    "class Point:\n    def __init__(self, x=1, y=[]):\n        self.x, self.y = x, y\n",
]


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Tokenizer.default("2k")


@pytest.fixture
def shard(tmp_path: Path, words: Tokenizer) -> Shard:
    write_shards(tmp_path, {"train": TEXTS}, words)
    return Shard.open(tmp_path)


def by_hand(document: int, start: int, end: int) -> set[int]:
    """The concepts of the bytes [start, end) of a text."""
    text = TEXTS[document]
    spans = label(text).spans.tolist()
    at = [len(text[:place].encode()) for place in range(len(text) + 1)]
    return {number for number, first, last in spans if at[first] < end and at[last] > start}


def test_tokens_of_documents_have_the_labels_that_the_whole_text_gives_them(shard: Shard, words: Tokenizer) -> None:
    labels = corpus_labels(shard, words, shard.num_tokens)
    assert labels.documents.tolist() == [0, 1, 3], "the one that does not parse has none"
    for document in labels.documents.tolist():
        ids = shard.document(document)[1:-1].tolist()
        pieces = [words.token_bytes(token) for token in ids]
        expected = of_tokens(label(TEXTS[document]), TEXTS[document], pieces, NUM).matrix(0, len(ids), NUM)
        ends = np.cumsum([len(piece) for piece in pieces])
        found = labels.of_tokens(document, ends - [len(piece) for piece in pieces], ends)
        assert found.any() and np.array_equal(found, expected)


def test_a_window_that_is_cut_elsewhere_has_the_labels_of_its_bytes(shard: Shard, words: Tokenizer) -> None:
    windows = LabeledWindows(TextWindows(shard, words.bos_id), corpus_labels(shard, words, 10**6), words)
    rng, cutter, num_recut = np.random.default_rng(0), Cutter(words), 0
    for _ in range(40):
        window = windows.place(24, rng)
        source = cutter.source(window.tokens, "blocks", rng)
        num_recut += not np.array_equal(source.tokens, window.tokens[: len(source.tokens)])
        found = windows.concepts(window, source.tokens)
        before = shard.document(window.document)[: window.first].tolist()
        place = len(words.decode_bytes(before))
        for token, row in zip(source.tokens.tolist(), found, strict=True):
            size = len(words.token_bytes(token))
            expected = by_hand(window.document, place, place + size) if size else set()
            assert set(np.flatnonzero(row).tolist()) == expected
            place += size
    assert num_recut > 5


def test_spans_that_touch_a_token_count_and_those_that_end_where_it_begins_do_not() -> None:
    spans = np.array([[0, 0, 2], [1, 2, 3], [2, 1, 6], [3, 6, 9], [4, 4, 4]])
    starts, ends = np.array([0, 2, 4, 4]), np.array([2, 4, 4, 6])
    found = token_concepts(spans, starts, ends, 5)
    assert [np.flatnonzero(row).tolist() for row in found] == [[0, 2], [1, 2], [], [2]]
    assert token_concepts(spans, starts[:0], ends[:0], 5).shape == (0, 5)


def test_labels_are_kept_and_made_again_when_more_are_asked_for(shard: Shard, words: Tokenizer) -> None:
    seen = list[tuple[int, int]]()
    few = corpus_labels(shard, words, 10, lambda done, asked: seen.append((done, asked)))
    assert len(few.documents) == 1 and seen
    seen.clear()
    again = corpus_labels(shard, words, 5, lambda done, asked: seen.append((done, asked)))
    assert not seen and np.array_equal(again.spans, few.spans)
    assert len(corpus_labels(shard, words, 10**6).documents) == 3


def test_labels_travel_to_another_process_by_their_files(shard: Shard, words: Tokenizer) -> None:
    labels = corpus_labels(shard, words, 10**6)
    sent = pickle.dumps(labels)
    assert len(sent) < labels.spans.nbytes
    assert np.array_equal(pickle.loads(sent).spans, labels.spans)


def test_damaged_labels_and_those_of_another_corpus_are_errors(shard: Shard, words: Tokenizer) -> None:
    corpus_labels(shard, words, 10**6)
    folder = next(shard.folder.glob("concepts-*"))
    np.save(folder / "train.ends.npy", np.arange(7))
    with pytest.raises(DataError, match="another corpus"):
        corpus_labels(shard, words, 10)
    (folder / "train.spans.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match="damaged"):
        corpus_labels(shard, words, 10)


def test_a_corpus_without_a_text_that_parses_is_an_error(tmp_path: Path, words: Tokenizer) -> None:
    write_shards(tmp_path, {"train": [TEXTS[2]]}, words)
    shard = Shard.open(tmp_path)
    with pytest.raises(DataError, match="parses"):
        LabeledWindows(TextWindows(shard, words.bos_id), corpus_labels(shard, words, 10), words)


def test_counts_are_those_of_the_windows_one_by_one(shard: Shard, words: Tokenizer) -> None:
    windows = LabeledWindows(TextWindows(shard, words.bos_id), corpus_labels(shard, words, 10**6), words)
    counts = count_concepts(windows, words.vocab_size, 60)
    rng = np.random.default_rng(0)
    together, tokens = np.zeros_like(counts.together), np.zeros_like(counts.tokens)
    for _ in range(60):
        window = windows.place(WINDOW, rng)
        for token, row in zip(window.tokens[1:].tolist(), windows.concepts(window, window.tokens)[1:], strict=True):
            tokens[token] += 1
            together[row, token] += 1
    assert np.array_equal(counts.together, together) and np.array_equal(counts.tokens, tokens)
    concept = taxonomy().named("eval_exec").id
    share, given = together[concept] / together[concept].sum(), tokens / tokens.sum()
    for token in np.flatnonzero(tokens):
        lifted = share[token] >= LIFTED * given[token] and together[concept, token] >= FEWEST
        assert counts.liked[concept, token] == lifted
    assert counts.liked[concept].any()
    found = counts.tokens_of()
    np.testing.assert_allclose(found.usual, given, rtol=1e-6)
    np.testing.assert_allclose(found.given[concept], share, rtol=1e-6)
    ratios = share[counts.liked[concept]] / given[counts.liked[concept]]
    assert float(found.most[concept]) == pytest.approx(np.log(ratios.max()), rel=1e-5)
    assert (found.most[~found.liked.any(dim=1)] == 0).all()


def test_every_row_of_a_batch_knows_which_token_of_its_text_it_predicts(
    shard: Shard, words: Tokenizer, subtests: pytest.Subtests
) -> None:
    """A target is that token, and the concepts of a row are those of its target's bytes, also behind gap fillers."""
    windows = TextWindows(shard, words.bos_id)
    labeled = LabeledWindows(windows, corpus_labels(shard, words, 10**6), words)
    for layout in ("blocks", "drafts", "infill", "suffix", "canvas", "next_token"):
        with subtests.test(layout):
            check_rows(layout, windows, labeled, words)


def check_rows(layout: str, windows: TextWindows, labeled: LabeledWindows, words: Tokenizer) -> None:
    mixture = ObjectiveMixture(
        {"only": Objective(layout=layout, errors=0.2 if layout == "blocks" else 0.0)}, {"only": 1.0}
    )
    for index in range(6):
        batch = MicroBatches(windows, Cutter(words), mixture, 3, labeled).make(index, 2, 40)
        assert batch.concepts is not None and batch.seed
        aimed = (batch.target != IGNORE) & (batch.target != words.null_id)
        assert (batch.origin[aimed] >= 0).all()
        clean = batch.layout.num_clean
        texts, spans = batch.tokens[:, :clean], batch.layout.rows.span
        for b, r in aimed.nonzero().tolist():
            assert texts[b, batch.origin[b, r]] == batch.target[b, r]
        visible = (batch.origin[:, clean:] >= 0) & (batch.level[:, clean:] == IGNORE)
        if layout == "blocks":
            assert not visible.any(), "with errors every token of a span is a target"
        for b, r in visible.nonzero().tolist():
            behind = clean + r + 1  # the last row of a span has none, and does not see the token that it predicts
            if behind < batch.tokens.shape[1] and spans[b, behind] == spans[b, behind - 1]:
                assert batch.tokens[b, behind] == texts[b, batch.origin[b, behind - 1]]


def test_labels_say_how_many_tokens_were_asked_for(shard: Shard, words: Tokenizer) -> None:
    corpus_labels(shard, words, 20)
    summary = json.loads(next(shard.folder.glob("concepts-*/train.json")).read_text())
    assert summary["asked"] == 20 and summary["documents"] >= 1
    assert isinstance(corpus_labels(shard, words, 20), CorpusLabels)
