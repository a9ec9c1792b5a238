"""Which tokens are taken back, and which may be drawn in their place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from daguerre.canvas import Canvas
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.healing import Healing, TokenBytes, num_to_take_back


@pytest.fixture(scope="module")
def table(tokenizer: Tokenizer) -> TokenBytes:
    return TokenBytes.make(tokenizer)


def test_tokens_by_their_beginning_are_those_a_scan_finds(table: TokenBytes) -> None:
    for text in (b"im", b"\n", b" self", b"zzzz", b"\xc3"):
        want = [t for t, piece in enumerate(table.of) if piece and piece.startswith(text)]
        assert sorted(table.beginning_with(text)) == want
        shorter = [t for t, piece in enumerate(table.of) if piece and text.startswith(piece) and piece != text]
        assert sorted(table.proper_beginnings(text)) == shorter


def test_the_fewest_tokens_are_found(table: TokenBytes) -> None:
    text = b"impo"

    def covers(rest: bytes, count: int) -> bool:
        if count == 0:
            return not rest
        return bool(table.beginning_with(rest)) or any(
            covers(rest[len(table.of[t]) :], count - 1) for t in table.proper_beginnings(rest)
        )

    for i, need in enumerate(table.fewest(text)):
        assert need == (0 if i == len(text) else next(n for n in itertools.count(1) if covers(text[i:], n)))


def test_a_cut_word_is_taken_back_whole_and_a_special_token_never(tokenizer: Tokenizer, table: TokenBytes) -> None:
    ids = tokenizer.encode("x\nimpo")
    taken = num_to_take_back(ids, table)
    assert tokenizer.decode(ids[len(ids) - taken :]) in ("impo", "\nimpo")
    assert num_to_take_back([], table) == 0
    assert num_to_take_back([*ids, tokenizer.mask_id], table) == 0
    assert num_to_take_back([tokenizer.eos_id, *tokenizer.encode("\n")], table) == 1


@pytest.mark.parametrize("text", ["impo", "configura", "\n", "    ", "héll", " = ", "self.na"])
def test_whatever_is_drawn_the_bytes_are_kept_within_the_slots(
    tokenizer: Tokenizer, table: TokenBytes, text: str
) -> None:
    ids = tokenizer.encode("y" + text)
    taken = num_to_take_back(ids, table)
    assert taken > 0
    kept, removed = ids[: len(ids) - taken], tokenizer.decode_bytes(ids[len(ids) - taken :])
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        canvas = Canvas.lay_out([[tokenizer.bos_id, *kept]], [taken + 5], tokenizer.mask_id)
        healing = Healing(table, len(kept) + 1, removed, taken + 1, limit=4)
        drawn: list[int] = []
        while healing.where(canvas)[1]:
            position = healing.where(canvas)[0]
            logits = np.zeros((1, tokenizer.vocab_size))
            healing.ban(canvas, np.array([position]), logits)
            drawn.append(int(rng.choice(np.flatnonzero(np.isfinite(logits[0])))))
            tokens, opened = canvas.tokens.copy(), canvas.open.copy()
            tokens[position], opened[position] = drawn[-1], False
            canvas = Canvas(tokens, opened, canvas.gaps)
        assert tokenizer.decode_bytes(drawn).startswith(removed)
        assert len(drawn) <= taken + 1
        assert healing.end(canvas) <= len(canvas)
        seen.add(tuple(drawn))
    assert len(seen) > 1
