"""Which tokens are taken back, and which may be drawn in their place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from daguerre.canvas import Canvas
from daguerre.decoding.healing import Healing, Vocabulary, num_to_take_back
from daguerre.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.make(tokenizer)


def test_tokens_by_their_beginning_are_those_a_scan_finds(vocabulary: Vocabulary) -> None:
    for text in (b"im", b"\n", b" self", b"zzzz", b"\xc3"):
        want = [t for t, piece in enumerate(vocabulary.of) if piece and piece.startswith(text)]
        assert sorted(vocabulary.beginning_with(text)) == want
        shorter = [t for t, piece in enumerate(vocabulary.of) if piece and text.startswith(piece) and piece != text]
        assert sorted(vocabulary.proper_beginnings(text)) == shorter


def test_the_fewest_tokens_are_found(vocabulary: Vocabulary) -> None:
    text = b"impo"

    def covers(rest: bytes, count: int) -> bool:
        if count == 0:
            return not rest
        return bool(vocabulary.beginning_with(rest)) or any(
            covers(rest[len(vocabulary.of[t]) :], count - 1) for t in vocabulary.proper_beginnings(rest)
        )

    for i, need in enumerate(vocabulary.fewest(text)):
        assert need == (0 if i == len(text) else next(n for n in itertools.count(1) if covers(text[i:], n)))


def test_a_cut_word_is_taken_back_whole_and_a_special_token_never(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    ids = tokenizer.encode("x\nimpo")
    taken = num_to_take_back(ids, vocabulary)
    assert tokenizer.decode(ids[len(ids) - taken :]) in ("impo", "\nimpo")
    assert num_to_take_back([], vocabulary) == 0
    assert num_to_take_back([*ids, tokenizer.mask_id], vocabulary) == 0
    assert num_to_take_back([tokenizer.eos_id, *tokenizer.encode("\n")], vocabulary) == 1


TEXTS = ["impo", "configura", "\n", "    ", "héll", " = ", "self.na"]


def test_whatever_is_drawn_the_bytes_are_kept_within_the_number_of_tokens(
    tokenizer: Tokenizer, vocabulary: Vocabulary, subtests: pytest.Subtests
) -> None:
    for text in TEXTS:
        with subtests.test(text):
            ids = tokenizer.encode("y" + text)
            taken = num_to_take_back(ids, vocabulary)
            assert taken > 0
            kept, removed = ids[: len(ids) - taken], tokenizer.decode_bytes(ids[len(ids) - taken :])
            rng = np.random.default_rng(0)
            seen = set()
            for _ in range(60):
                canvas = Canvas.lay_out([[tokenizer.bos_id, *kept]], [taken + 5], tokenizer.mask_id)
                healing = Healing(vocabulary, len(kept) + 1, removed, taken + 1, limit=4)
                drawn: list[int] = []
                while healing.where(canvas)[1]:
                    position = healing.where(canvas)[0]
                    logits = np.zeros((1, tokenizer.vocab_size))
                    healing.forbids(canvas).apply(np.array([position]), logits)
                    drawn.append(int(rng.choice(np.flatnonzero(np.isfinite(logits[0])))))
                    tokens, opened = canvas.tokens.copy(), canvas.open.copy()
                    tokens[position], opened[position] = drawn[-1], False
                    canvas = Canvas(tokens, opened, canvas.gaps)
                assert tokenizer.decode_bytes(drawn).startswith(removed)
                assert len(drawn) <= taken + 1
                assert healing.end(canvas) <= len(canvas)
                seen.add(tuple(drawn))
            assert len(seen) > 1
