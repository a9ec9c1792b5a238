"""Many texts in one piece, beside a list of them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daguerre.models import texts as texts_module
from daguerre.models.texts import Texts, guessed_starts, read_records, walked_starts

LISTS = st.lists(st.text(st.sampled_from("ab▁é\0🙂"), max_size=5), max_size=8)


def records(*texts: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack("<Q", len(text)) + text for text in texts), np.uint8)


@given(texts=LISTS)
def test_they_are_the_list(texts: list[str]) -> None:
    held = Texts.of(texts)
    assert list(held) == texts == held and [held[i] for i in range(-len(texts), len(texts))] == texts * 2
    assert held[1:] == texts[1:] and held.sizes.tolist() == [len(text.encode()) for text in texts]
    named = [text for text in texts if text]
    assert held.twice == (len({*named}) < len(named))
    assert held.find("ab", "", "é") == {text: texts.index(text) for text in ("ab", "", "é") if text in texts}
    some = np.arange(len(texts)) % 3 > 0
    kept = [text if keep else "" for text, keep in zip(texts, some.tolist(), strict=True)]
    assert held.kept(some) == kept and held.kept(some).first(len(texts) // 2) == kept[: len(texts) // 2]


@given(texts=LISTS, text=st.text(st.sampled_from("ab▁é"), max_size=9))
def test_those_within_a_text_are_found(texts: list[str], text: str) -> None:
    assert Texts.of(texts).within(text).tolist() == [index for index, each in enumerate(texts) if each in text]


def test_texts_with_one_number_are_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "BASE", 1)  # a number is then a sum of bytes
    held = Texts.of(["ab", "ba", "c"])
    assert held.find("ba", "ca") == {"ba": 1} and not held.twice and Texts.of(["ab", "ba", "ab"]).twice
    assert held.within("ab").tolist() == [0, 1], "others may be there too"


@given(texts=st.lists(st.binary(max_size=3), max_size=6), more=st.binary(max_size=20))
def test_records_are_read_as_one_after_another(texts: list[bytes], more: bytes) -> None:
    whole = records(*texts)
    content = np.concatenate([whole, np.frombuffer(more, np.uint8)])
    walked, guessed = walked_starts(content, len(texts)), guessed_starts(content, len(texts))
    assert walked is not None and walked[-1] == len(whole)
    assert guessed is None or guessed.tolist() == walked.tolist()
    for cut in range(len(whole)):
        assert walked_starts(content[:cut], len(texts)) is None and guessed_starts(content[:cut], len(texts)) is None


def test_records_of_a_vocabulary_are_guessed() -> None:
    each = ["x" * num for num in (1, 255, 256, 257, 600, 65_535)] + ["a", "▁é"] * 300
    content = np.concatenate([records(*(text.encode() for text in each)), np.zeros(40, np.uint8)])
    assert guessed_starts(content, len(each)) is not None
    read = read_records(content, len(each))
    assert read is not None and read[0] == each and read[1] == len(content) - 40
    assert read_records(content[:-50], len(each)) is None


@pytest.mark.parametrize("texts", [(b"a", b"\xff"), (b"a\xc3", b"\xa9b")], ids=["no UTF-8", "cut in two"])
def test_what_is_no_text_is_refused(texts: tuple[bytes, ...]) -> None:
    with pytest.raises(UnicodeDecodeError):
        read_records(records(*texts), len(texts))
