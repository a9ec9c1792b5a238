"""Published tokenizers: the ids of their publishers' libraries, exact bytes, and special tokens that nobody writes."""

from __future__ import annotations

import io
import json
import pickle
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import made_tokenizers as mt
from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.compile import compile_regex

TEXTS = [
    "Hello, world! It's 2024-05-17 and I'd say 1234567.89 isn't we'll.",
    "def f(self, *args):\n    return [x for x in args if x >= 0]\n\n\nclass A:\n\tx: int = 1\r\n\r\n  # end\n",
    "        eight\n\n\n\n    four  two   three\t\ttabs \t mixed",
    "   ",
    " leading and trailing \n",
    "\n",
    "naïve café, Straße, Ελληνικά, Русский, 日本語と漢字, 한국어, עברית, العربية, हिन्दी",
    "🙂🎉👩‍👩‍👧 → ∀x∈ℝ, \u00a0 \u2028 \ufeff \x00 \x85",
    "{'a': [1, 2, {\"b\": null}]}; x += 1 // 2; a->b::c<d>&&!e",
    'CamelCase snake_case SHOUTING kebab-case ......... ======= ----- \\\\ "\'"',
    'a<tool_call>{"name": 1}</tool_call>\t\t\tb',
    "<|begin|>system<|end|> user <|mask|><|mask|> x<|end|>",
    "",
]
NOT_OF_THE_LANGUAGE = "half <0x41> <unk> </s> ▁ ▁▁ e\u0301 ﬁ Å"
CHANGED = ["e\u0301 and ﬁ", "one▁two ▁", "\u212b\u1100\u1161"]
"""Texts that some tokenizers change: they are not in normal form, or hold the mark of a space."""
FRAGMENTS = [
    *mt.SPECIAL,
    *mt.PLAIN,
    "▁",
    "<0x0A>",
    "<unk>",
    "<s>",
    "e\u0301",
    "\u1100\u1161",
    "ﬁ",
    "  ",
    "\n\n",
    "Ġ",
    "é",
    " a",
]
WRITTEN = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), max_size=8).map("".join)
KINDS = [*mt.KINDS]
FALLBACK = ["llama2", "mistral", "gemma", "unigram"]


def content_of(tokenizer: PublishedTokenizer) -> str:
    return tokenizer.to_bytes().decode()


def contents(tokenizer: PublishedTokenizer, ids: list[int]) -> bytes:
    """The bytes of ids, with special tokens as they are written."""
    written = {index: text.encode() for text, index in tokenizer.added.items()}
    return b"".join(tokenizer.token_bytes(token) or written[token] for token in ids)


@settings(max_examples=150, deadline=None)
@given(text=WRITTEN)
@example(text="".join(TEXTS) + NOT_OF_THE_LANGUAGE)
@example(text="".join(map(chr, range(0x800))))
def test_in_the_middle_of_a_text_every_byte_survives(text: str) -> None:
    for kind in KINDS:
        tokenizer = mt.made(kind)
        plain, read = (encode(text, begins=False) for encode in (tokenizer.encode_plain, tokenizer.encode))
        assert tokenizer.decode_bytes(plain) == text.encode(), kind
        assert tokenizer.special_ids.isdisjoint(plain), kind
        assert contents(tokenizer, read) == text.encode(), kind


PREFIXED = ("llama2", "mistral", "unigram")
"""Kinds whose publishers put a space before a text."""


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=12))
@example(text="word")
@example(text=" word")
def test_the_bytes_of_a_text_that_begins_a_canvas_have_at_most_the_spaces_that_the_publisher_puts(text: str) -> None:
    for kind in KINDS:
        tokenizer = mt.made(kind)
        expected = [text.encode()] + [f" {text}".encode()] * (kind in PREFIXED)
        assert tokenizer.decode_bytes(tokenizer.encode(text)) in expected, kind
        assert tokenizer.decode_bytes(tokenizer.encode_plain(text)) in expected, kind
        assert tokenizer.decode(tokenizer.encode("word")) == " word"[int(kind not in PREFIXED) :], kind


def test_the_space_before_a_text_is_all_that_its_place_changes(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind):
            tokenizer = mt.made(kind)
            for text in ("return self", "for x in args:\n", "a"):
                begun, later = tokenizer.encode(text), tokenizer.encode(text, begins=False)
                if kind in PREFIXED:
                    assert begun == tokenizer.encode(f" {text}", begins=False)
                    assert tokenizer.token_bytes(later[0])[:1] != b" "
                else:
                    assert begun == later
                assert tokenizer.spare_byte_ids.isdisjoint([*begun, *later][: -int(text.endswith("\n")) or None])


def test_ids_are_those_of_transformers(tmp_path: Path, subtests: pytest.Subtests) -> None:
    transformers = pytest.importorskip("transformers")
    for number, kind in enumerate([kind for kind in KINDS if kind != "vocab_and_merges"]):
        with subtests.test(kind):
            (folder := tmp_path / str(number)).mkdir()
            tokenizer = mt.made(kind)
            tokenizer.save(folder / "tokenizer.json")
            (folder / "tokenizer_config.json").write_text(
                json.dumps({**tokenizer.config, "tokenizer_class": "PreTrainedTokenizerFast"})
            )
            theirs = transformers.AutoTokenizer.from_pretrained(folder)

            for text in TEXTS:
                if kind == "unigram" and not unicodedata.is_normalized("NFKC", text):
                    continue
                ids = theirs.encode(text, add_special_tokens=False)
                assert tokenizer.encode(text) == ids, text
                if kind not in ("tiktoken", "tekken"):  # their files have no post-processor
                    assert theirs(text).input_ids == [tokenizer.bos_id] * (tokenizer.bos_id is not None) + ids
            assert tokenizer.num_tokens == max(theirs.get_vocab().values()) + 1
            for name in ("pad_id", "eos_id", "mask_id"):
                assert getattr(tokenizer, name) == getattr(theirs, name.replace("id", "token_id"))


def test_ids_of_vocab_and_merges_are_those_of_transformers() -> None:
    qwen2 = pytest.importorskip("transformers.models.qwen2.tokenization_qwen2")
    ours, model = mt.made("vocab_and_merges"), mt.trained(mt.QWEN2)["model"]
    theirs = qwen2.Qwen2Tokenizer(model["vocab"], [tuple(pair) for pair in model["merges"]])

    for text in TEXTS:
        if not any(token in text for token in [*mt.SPECIAL, *mt.PLAIN]):
            assert ours.encode(text) == theirs.encode(text), text


def tiktoken_oracle(tokenizer: PublishedTokenizer, pattern: str, ranks: dict[bytes, int]) -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    special = {text: index for text, index in tokenizer.added.items() if text in mt.SPECIAL}
    return tiktoken.Encoding("made", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def test_ids_of_a_tiktoken_file_are_those_of_tiktoken() -> None:
    tokenizer = mt.made("tiktoken")
    theirs = tiktoken_oracle(tokenizer, mt.CL100K, mt.ranks())

    for text in [*TEXTS, *CHANGED]:
        if not any(token in text for token in mt.PLAIN):
            assert tokenizer.encode(text) == theirs.encode(text, allowed_special="all"), text
            assert tokenizer.encode_plain(text) == theirs.encode_ordinary(text), text


def test_ids_of_a_tekken_file_are_those_of_tiktoken_after_the_special_tokens() -> None:
    tokenizer, values = mt.made("tekken"), mt.tekken()
    used = {token: rank for token, rank in mt.ranks().items() if rank < len(mt.ranks()) - 20}
    theirs = tiktoken_oracle(tokenizer, values["config"]["pattern"], used)

    for text in [*TEXTS, *CHANGED]:
        assert tokenizer.encode_plain(text) == [40 + rank for rank in theirs.encode_ordinary(text)], text
    assert (tokenizer.num_tokens, tokenizer.added["<SPECIAL_39>"], tokenizer.added["[INST]"]) == (2068, 39, 8)
    assert tokenizer.encode("[INST]a<SPECIAL_9>") == [8, *tokenizer.encode_plain("a"), 9]


@pytest.fixture(scope="module")
def sentencepiece_model() -> Any:
    """A BPE with byte fallback, as the sentencepiece library trains it for Llama."""
    sentencepiece = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in mt.corpus() for line in text.splitlines() if line.strip()]),
        model_writer=file,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())


def converted(processor: Any) -> dict[str, Any]:
    """The `tokenizer.json` of a sentencepiece BPE: pairs that join to a piece, by the piece's id."""
    vocabulary = {processor.id_to_piece(index): index for index in range(processor.get_piece_size())}
    merges = []
    for token in vocabulary:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += sorted(
            [pair for pair in pairs if vocabulary.keys() >= set(pair)],
            key=lambda pair: tuple(map(vocabulary.get, pair)),
        )
    values = mt.sentencepiece_json(None, None, {"type": "Sequence", "decoders": mt.DECODER})
    values["added_tokens"] = values["added_tokens"][:3]
    values["model"] |= {"vocab": vocabulary, "merges": merges}
    return values


def test_ids_are_those_of_sentencepiece(sentencepiece_model: Any, subtests: pytest.Subtests) -> None:
    for layout in ["normalizer", "pre_tokenizer"]:
        with subtests.test(layout):
            values = converted(sentencepiece_model)
            values |= {
                "normalizer": {"normalizer": json.loads(content_of(mt.made("llama2")))["normalizer"]},
                "pre_tokenizer": {"pre_tokenizer": {**mt.METASPACE, "split": False}},
            }[layout]
            tokenizer = PublishedTokenizer(json.dumps(values), {"bos_token": "<s>", "add_bos_token": True})
            assert tokenizer.bos_id == sentencepiece_model.bos_id() == 1

            num_special = 0
            for text in [*TEXTS, "a  b   c    d", "x" * 50, "\n\n\n \n", "12 345"]:
                if "\x00" in text or (layout == "pre_tokenizer" and text.startswith(" ")):
                    continue  # sentencepiece ends a text at a null; Metaspace adds no second space
                assert tokenizer.encode_plain(text) == sentencepiece_model.encode(text), text
                num_special += 1
            assert num_special > 10
            for token in range(tokenizer.num_tokens):
                if not sentencepiece_model.is_control(token) and not sentencepiece_model.is_unknown(token):
                    if sentencepiece_model.is_byte(token):
                        assert tokenizer.token_bytes(token) == bytes(
                            [int(sentencepiece_model.id_to_piece(token)[3:5], 16)]
                        )
                    else:
                        assert tokenizer.token_bytes(token).decode() == sentencepiece_model.id_to_piece(token).replace(
                            "▁", " "
                        )


def test_special_tokens_have_no_bytes_and_other_added_ones_those_of_their_text(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind):
            tokenizer = mt.made(kind)
            for text, index in tokenizer.added.items():
                if text in mt.PLAIN:
                    assert tokenizer.token_bytes(index) == text.encode()
                    assert tokenizer.encode(f"x{text}", begins=False)[-1] == index
                elif text != "▁▁":
                    assert tokenizer.token_bytes(index) == b"" and index in tokenizer.special_ids
                    assert tokenizer.token_name(index) == text
                    assert tokenizer.encode(text) == [index]
                    assert tokenizer.special_ids.isdisjoint(tokenizer.encode_plain(text))
            assert tokenizer.added.keys() >= set(mt.SPECIAL)
            assert {tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id} <= tokenizer.special_ids


def test_an_added_token_that_is_a_run_of_spaces_for_the_model_has_the_bytes_of_spaces() -> None:
    tokenizer = mt.made("gemma")
    index = tokenizer.added["▁▁"]
    assert tokenizer.token_bytes(index) == b"  "
    assert index in tokenizer.encode("x  \n")
    assert tokenizer.decode(tokenizer.encode("x▁▁y", begins=False)) == "x▁▁y"


def test_characters_without_a_token_are_written_in_bytes_and_spaces_are_spaces(subtests: pytest.Subtests) -> None:
    for kind in FALLBACK:
        with subtests.test(kind):
            tokenizer = mt.made(kind)
            ids = tokenizer.encode("\U0010ffff", begins=False)
            assert [tokenizer.token_bytes(token) for token in ids] == [bytes([byte]) for byte in "\U0010ffff".encode()]
            assert set(ids) <= tokenizer.spare_byte_ids
            assert len(tokenizer.spare_byte_ids) == 256
            assert tokenizer.encode(" x", begins=False) != tokenizer.encode("▁x", begins=False)


def test_only_what_the_normalizer_changes_has_other_ids() -> None:
    tokenizer = mt.made("qwen2")
    composed, apart = "caf\u00e9 return self", "cafe\u0301 return self"
    assert unicodedata.normalize("NFC", apart) == composed
    assert tokenizer.decode(tokenizer.encode(composed)) == composed
    assert tokenizer.decode(tokenizer.encode(apart)) == apart
    assert tokenizer.encode(apart)[-2:] == tokenizer.encode(composed)[-2:]
    with_special = tokenizer.encode(f"{apart}<|mask|>{composed}")
    assert with_special == [*tokenizer.encode(apart), tokenizer.mask_id, *tokenizer.encode(composed)]


def test_a_long_text_with_few_changes_keeps_the_tokens_of_all_else() -> None:
    tokenizer = mt.made("llama2")
    lines = "    return [x for x in args]\n" * 200
    plain, marked = tokenizer.encode(lines, begins=False), tokenizer.encode(lines + "▁" + lines, begins=False)
    assert len(marked) == 2 * len(plain) + 3
    assert marked[: len(plain)] == plain


def test_special_tokens_may_take_the_white_space_around_them() -> None:
    values = json.loads(content_of(mt.made("byte_level")))
    for token in values["added_tokens"]:
        token["lstrip"] = token["rstrip"] = token["content"] == "<|mask|>"
    tokenizer = PublishedTokenizer(json.dumps(values), mt.config())
    ids = tokenizer.encode("a  <|mask|> \n b<|end|> c")
    assert ids == [
        *tokenizer.encode("a"),
        tokenizer.mask_id,
        *tokenizer.encode("b"),
        tokenizer.eos_id,
        *tokenizer.encode(" c"),
    ]
    assert tokenizer.decode(tokenizer.encode_plain("a  <|mask|> \n b")) == "a  <|mask|> \n b"


def test_text_that_an_added_token_would_swallow_survives(subtests: pytest.Subtests) -> None:
    for strip in ["lstrip", "rstrip"]:
        with subtests.test(strip):
            values = json.loads(content_of(mt.made("byte_level")))
            for token in values["added_tokens"]:
                token[strip] = True
            tokenizer = PublishedTokenizer(json.dumps(values), mt.config())
            ids = tokenizer.encode("a  <tool_call>  b")
            assert tokenizer.decode(ids) == "a  <tool_call>  b"
            assert tokenizer.added["<tool_call>"] in ids


def test_ids_that_only_the_model_has_have_no_bytes() -> None:
    tokenizer = mt.made("byte_level")
    larger = tokenizer.sized(tokenizer.num_tokens + 50)
    assert (larger.vocab_size, larger.num_tokens) == (tokenizer.num_tokens + 50, tokenizer.num_tokens)
    assert larger.token_bytes(larger.vocab_size - 1) == b""
    assert larger.special_ids - tokenizer.special_ids == set(range(tokenizer.num_tokens, larger.vocab_size))
    assert larger.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
    assert larger != tokenizer and larger.sha256 != tokenizer.sha256
    assert larger == PublishedTokenizer(content_of(tokenizer), tokenizer.config, larger.vocab_size)
    with pytest.raises(InputError, match="outside the vocabulary"):
        larger.token_bytes(larger.vocab_size)
    with pytest.raises(DataError, match="the model 100"):
        tokenizer.sized(100)


def test_a_pickled_or_saved_tokenizer_is_the_same(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind):
            tokenizer = mt.made(kind)
            copy = pickle.loads(pickle.dumps(tokenizer))
            assert isinstance(copy, Tokenizer) and copy == tokenizer and hash(copy) == hash(tokenizer)
            assert copy.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
            tokenizer.save(tmp_path / "tokenizer.json")
            read = PublishedTokenizer((tmp_path / "tokenizer.json").read_text(encoding="utf-8"), tokenizer.config)
            assert read == tokenizer
            assert read != PublishedTokenizer(
                content_of(tokenizer), {**tokenizer.config, "add_bos_token": not tokenizer.bos_id}
            )


def test_the_token_before_a_text_is_that_of_the_post_processor_or_the_configuration(subtests: pytest.Subtests) -> None:
    for kind, bos in [
        ("byte_level", "<|begin|>"),
        ("qwen2", None),
        ("tekken", "<s>"),
        ("llama2", "<s>"),
        ("unigram", None),
    ]:
        with subtests.test(kind):
            tokenizer = mt.made(kind)
            assert tokenizer.bos_id == (None if bos is None else tokenizer.added[bos])


def test_the_configuration_decides_what_is_put_before_a_text_for_some_classes_alone(subtests: pytest.Subtests) -> None:
    for kind, begun in [("llama2", True), ("byte_level", True), ("tiktoken", False)]:
        with subtests.test(kind):
            tokenizer = mt.made(kind)
            for name in ("LlamaTokenizer", "GemmaTokenizerFast", "PreTrainedTokenizerFast"):
                for puts in (True, False, None):
                    config = {**tokenizer.config, "tokenizer_class": name, "add_bos_token": puts}
                    decides = puts is not None and (not begun or name != "PreTrainedTokenizerFast")
                    expected = puts if decides else begun
                    bos = tokenizer.added[tokenizer.named["bos_token"]] if expected else None
                    assert PublishedTokenizer(content_of(tokenizer), config).bos_id == bos


def test_a_token_that_only_the_configuration_calls_special_is_special() -> None:
    values = json.loads(content_of(mt.made("byte_level")))
    tokenizer = PublishedTokenizer(json.dumps(values), {"eos_token": {"content": "</tool_call>"}, "mask_token": "self"})
    assert tokenizer.eos_id == tokenizer.added["</tool_call>"]
    assert tokenizer.token_bytes(tokenizer.eos_id) == tokenizer.token_bytes(tokenizer.added["self"]) == b""
    assert tokenizer.pad_id is None
    assert tokenizer.decode(tokenizer.encode_plain("</tool_call> self")) == "</tool_call> self"


def test_added_tokens_keep_ids_with_holes_between_them() -> None:
    values = json.loads(content_of(mt.made("byte_level")))
    size = len(values["model"]["vocab"])
    for number, token in enumerate(values["added_tokens"]):
        token["id"] = size + 10 * number + 7
    tokenizer = PublishedTokenizer(json.dumps(values), mt.config())
    assert tokenizer.mask_id == size + 27
    assert tokenizer.encode("a<|mask|>") == [*tokenizer.encode("a"), size + 27]
    assert size + 8 in tokenizer.special_ids
    assert tokenizer.encode(TEXTS[1]) == mt.made("byte_level").encode(TEXTS[1])


def test_two_tokens_with_one_id_are_refused() -> None:
    values = json.loads(content_of(mt.made("byte_level")))
    values["added_tokens"][1]["id"] = values["added_tokens"][0]["id"]
    with pytest.raises(DataError, match="have one id"):
        PublishedTokenizer(json.dumps(values))


def test_what_is_no_tokenizer_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for content in ["{}", "not json", '{"model": 1}', "[]", '{"model": {"type": "X"}}', "null"]:
        with subtests.test(content):
            with pytest.raises(DataError, match="not a tokenizer") as refused:
                PublishedTokenizer(content)
            assert "\n" not in str(refused.value)


def test_damaged_added_tokens_of_the_configuration_are_refused(subtests: pytest.Subtests) -> None:
    for decoder in [{"1": "x"}, {"x": {"content": "a"}}, {"1": {}}, [1]]:
        with subtests.test(decoder=decoder), pytest.raises(DataError, match="added_tokens_decoder"):
            PublishedTokenizer(content_of(mt.made("byte_level")), {"added_tokens_decoder": decoder})


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    for encode in (mt.made("llama2").encode, mt.made("llama2").encode_plain):
        with pytest.raises(InputError, match="at character 2"):
            encode("ab\ud800")


@pytest.mark.parametrize("make", [mt.wordpiece, lambda: mt.unigram(byte_fallback=False)])
def test_tokens_without_bytes_are_read_as_texts_and_what_needs_bytes_is_refused(make: Any) -> None:
    tokenizer = make()
    ids = tokenizer.encode("return the value, please")
    assert tokenizer.decode(ids).strip() == "return the value, please"
    assert tokenizer.encode("x<|mask|>")[-1] == tokenizer.mask_id
    assert tokenizer.mask_id not in tokenizer.encode_plain("x<|mask|>")
    with pytest.raises(UnsupportedError, match=r"a pin needs the bytes .* is not known as bytes"):
        tokenizer.require_bytes("a pin")
    mt.made("llama2").require_bytes("a pin")


@pytest.mark.parametrize("kind", ["byte_level", "llama2"])
def test_a_byte_without_a_token_is_no_text_and_all_others_are(kind: str) -> None:
    """As in SmolLM2, eight bytes of which have no token: whatever needs the bytes of tokens works."""
    values = json.loads(content_of(mt.made(kind)))
    token = "<0x04>" if kind == "llama2" else mt.alphabet_text(b"\x04")
    values["model"]["vocab"]["<nothing>"] = values["model"]["vocab"].pop(token)
    tokenizer = PublishedTokenizer(json.dumps(values))
    assert tokenizer.unreadable is None and tokenizer.unwritable == {4}
    for text in TEXTS:
        assert tokenizer.decode_bytes(tokenizer.encode_plain(text, begins=False)) == text.encode()
    for encode in (tokenizer.encode, tokenizer.encode_plain):
        with pytest.raises(InputError, match="0x04"):
            encode("a \x04 b")
    assert compile_regex("[0-9]+", tokenizer).num_states
    with pytest.raises(InputError, match="vocabulary"):
        compile_regex("\x04+", tokenizer)


def test_dropout_truncation_and_padding_of_the_file_are_not_applied() -> None:
    values = json.loads(content_of(mt.made("byte_level")))
    values["model"] |= {"dropout": 0.9, "ignore_merges": False}
    values["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    values["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
        "pad_to_multiple_of": None,
    }  # fmt: skip
    tokenizer = PublishedTokenizer(json.dumps(values), mt.config())
    assert tokenizer.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
    assert tokenizer.decode(tokenizer.encode(TEXTS[1])) == TEXTS[1]
    assert len(tokenizer.encode(TEXTS[1])) < 60


def test_262_144_tokens_are_read() -> None:
    tokenizer = mt.made("synthetic")
    assert tokenizer.vocab_size == 262_144
    for text in [*TEXTS, *CHANGED]:
        assert contents(tokenizer, tokenizer.encode(text)) == text.encode()


class PanicException(BaseException):
    """What a panic of the library raises, which is no Exception."""


@pytest.mark.parametrize(
    ("stop", "raised", "message"),
    [
        (PanicException, InputError, r"^this text cannot be encoded \(.*: bad split\): change the .*$"),
        (KeyboardInterrupt, KeyboardInterrupt, "bad split"),
    ],
)
def test_a_panic_of_the_library_is_one_line_and_an_interruption_is_not_caught(
    stop: type[BaseException], raised: type[BaseException], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def encode(self, *args: Any, **options: Any) -> None:
            raise stop("bad split\n")

    tokenizer = mt.byte_level()
    monkeypatch.setattr(tokenizer, "_variant", lambda *args, **options: Failing())
    with pytest.raises(raised, match=message):
        tokenizer.encode("text")


def test_further_special_tokens_must_be_a_list(subtests: pytest.Subtests) -> None:
    content = mt.made("qwen2").to_bytes().decode()
    assert PublishedTokenizer(content, {"additional_special_tokens": []})
    for value in [5, "abc", {"a": "b"}]:
        with subtests.test(value=value), pytest.raises(DataError, match="additional_special_tokens"):
            PublishedTokenizer(content, {"additional_special_tokens": value})


def test_an_id_that_no_vocabulary_has_is_refused_before_memory_is_taken() -> None:
    values = json.loads(mt.made("qwen2").to_bytes())
    values["model"]["vocab"]["strange"] = 4_000_000_000
    with pytest.raises(DataError, match="a token of id 4000000000, which no vocabulary has"):
        PublishedTokenizer(json.dumps(values))
