"""The tokenizer: lossless, blind to special tokens in text, and fixed."""

from __future__ import annotations

import json
import pickle
import random

import pytest

from daguerre.errors import DataError, InputError
from daguerre.models.tokenizer import SPECIALS, Tokenizer

# The models of this package were trained with these vocabularies: a change makes their weights useless.
PUBLISHED = {
    "2k": (2048, "2df0c405e5aaf6129282320ce1efbe405e696a54caeb7af4b21c4c8ef64bfc9d"),
    "8k": (8192, "bbd74749c1725ac7accccbca63bf5c8fbd48f5a55d43d69edeb12b850786be0a"),
}
TEXTS = [
    "",
    " ",
    "\n",
    "def f(self):\n    return self._name\n\n\nclass A:\n\tx = 1\r\n\r\n  # end",
    "<mask><bos><eos><pad><null><spare_0> <mask> </mask>",
    "\ufeff# BOM, \x00 \x0c \x85 \u2028 \u00a0 and no end",
    "naïve = '漢字 🙂 e\u0301 \U0010ffff'  # ünïcödé",
    "trailing   \n\t \n   \n",
]


@pytest.fixture(params=PUBLISHED)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.default(request.param)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_vocabularies_never_change(name: str) -> None:
    tokenizer = Tokenizer.default(name)
    assert (tokenizer.vocab_size, tokenizer.sha256) == PUBLISHED[name]


def test_decoding_what_was_encoded_gives_the_text_back(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode_bytes(ids) == text.encode()
        assert not tokenizer.special_ids.intersection(ids)


def test_random_text_comes_back_whole(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    pieces = [
        "<mask>",
        "    ",
        "\n",
        "\r",
        "\t",
        "_",
        "def ",
        "é",
        "🙂",
        "\x00",
        "0",
        "(",
        '"""',
        "self",
        "\ud7ff",
        "\ue000",
    ]
    for _ in range(300):
        text = "".join(rng.choice([*pieces, chr(rng.randrange(0xD800))]) for _ in range(rng.randrange(40)))
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not tokenizer.special_ids.intersection(ids)


def test_special_tokens_have_ids_0_to_15_and_stand_for_no_bytes(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id, tokenizer.null_id]
    assert ids == [0, 1, 2, 3, 4]
    assert tokenizer.special_ids == set(range(16))
    assert len(SPECIALS) == 16
    assert all(tokenizer.token_bytes(special) == b"" for special in tokenizer.special_ids)
    assert tokenizer.decode([1, *tokenizer.encode("x = 1"), 2, 0, 3]) == "x = 1"


def test_every_byte_is_a_token_and_every_token_has_its_own_bytes(tokenizer: Tokenizer) -> None:
    tokens = [tokenizer.token_bytes(token) for token in range(16, tokenizer.vocab_size)]
    assert len(set(tokens)) == len(tokens)
    assert {bytes([byte]) for byte in range(256)} <= set(tokens)


def test_indentation_is_few_tokens_and_digits_are_single(tokenizer: Tokenizer) -> None:
    for depth in (1, 2, 3, 4):
        assert len(tokenizer.encode("\n" + "    " * depth)) == 1
    assert len(tokenizer.encode("1234")) == 4
    assert [tokenizer.decode([token]) for token in tokenizer.encode("return self")] == ["return", " self"]


def test_half_a_character_decodes_to_the_replacement_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0010ffff")
    assert tokenizer.decode(ids[:-1]).endswith("\ufffd")
    assert tokenizer.decode_bytes(ids[:-1]) == "\U0010ffff".encode()[:-1]


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"lone surrogate, '\\ud800', at character 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("token", [-1, 8192])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer: Tokenizer, token: int) -> None:
    with pytest.raises(InputError, match="outside the vocabulary"):
        tokenizer.decode([token])


def test_saving_and_loading_keeps_the_hash(tokenizer: Tokenizer, tmp_path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    assert loaded.encode(TEXTS[3]) == tokenizer.encode(TEXTS[3])
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_pickled_tokenizer_is_the_same(tokenizer: Tokenizer) -> None:
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean '2k'"):
        Tokenizer.default("2kb")


def test_a_file_that_is_not_ours_is_refused(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DataError, match="check the path"):
        Tokenizer.load(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="not a tokenizer"):
        Tokenizer.load(path)
    Tokenizer.default("2k").save(path)
    content = json.loads(path.read_text())
    content["added_tokens"] = [
        {
            "id": 3,
            "content": "<mask>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="special tokens"):
        Tokenizer.load(path)
