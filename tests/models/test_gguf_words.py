"""Tokenizers of GGUF files: kinds, scores, splits, types of tokens, and the way back."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

import daguerre
from daguerre.errors import CheckpointError, DaguerreError, UnsupportedError
from daguerre.models.gguf import words as gguf_words
from daguerre.models.gguf.header import read_header
from daguerre.models.gguf.scores import scored_merges
from daguerre.models.gguf.splits import SPLITS, splitting
from daguerre.models.gguf.writing_tokenizer import add_tokenizer, split_name
from daguerre.models.tokenizer import byte_of_character
from daguerre.sampling.constraints import compile_schema
from made_tokenizers import KINDS as MADE
from made_words import ADDED, CONTROL, LLAMA, TEXT, merged, random_scores, write_words

IDS = {text: index for index, (text, _, _) in enumerate(LLAMA)}
ALPHABET = [*byte_of_character()]


def ids(*texts: str) -> list[int]:
    return [IDS[text] for text in texts]


def bytes_of(text: str) -> list[int]:
    return [IDS[f"<0x{byte:02X}>"] for byte in text.encode()]


def opened(folder: Path, **keys: Any) -> Any:
    return daguerre.load_tokenizer(write_words(folder / "words.gguf", LLAMA, model="llama", **keys))


def level(folder: Path, **keys: Any) -> Path:
    """A byte-level vocabulary with one merge."""
    words = [*((letter, TEXT, 0.0) for letter in ALPHABET), ("ab", TEXT, 0.0), ("<end>", CONTROL, 0.0)]
    given = {"model": "gpt2", "merges": ["a b"], "eos_token_id": 257, **keys}
    return write_words(folder / "level.gguf", words, **given)


def test_merges_by_score_are_those_of_the_slow_reference() -> None:
    rng = random.Random(0)
    for _ in range(60):
        letters = "abc"[: rng.randrange(1, 4)]
        scores = random_scores(rng, letters, rng.randrange(4, 40) if len(letters) > 1 else 7)
        merges = scored_merges(scores, {*letters})
        assert merges.exact
        vocabulary = {text: index for index, text in enumerate([*letters, *scores])}
        library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges.pairs))
        for _ in range(20):
            text = "".join(rng.choices(letters, k=rng.randrange(1, 60)))
            assert library.encode(text).tokens == merged(text, scores), (text, scores)


def test_runs_of_one_score_are_merged_from_the_left_and_other_ties_are_told() -> None:
    runs = {"x" * num: -5.0 for num in range(2, 17)}
    scores = {**runs, "ax": -1.0, "xa": -2.0}
    merges = scored_merges(scores, {"a", "x"})
    vocabulary = {text: index for index, text in enumerate(["a", "x", *scores])}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges.pairs))
    for num in range(1, 100):
        for text in ("x" * num, f"a{'x' * num}a"):
            assert library.encode(text).tokens == merged(text, scores)
    assert merges.exact
    assert not scored_merges({"ab": 0.0, "bc": 0.0}, {*"abc"}).exact
    assert not scored_merges({text: score for text, score in runs.items() if len(text) < 16}, {"x"}).exact
    assert not scored_merges({**runs, "axx": -1.0}, {"a", "x"}).exact
    assert not scored_merges({"ab": 0.0}, {"a"}).exact, "a letter that is no token"


def test_scores_spaces_bytes_and_marks_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = opened(tmp_path)
    assert not caplog.records and (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.encode("the") == ids("▁the") and tokenizer.encode("the", begins=False) == ids("t", "he")
    assert tokenizer.encode("cab ab") == ids("▁", "cab", "▁", "ab")
    assert tokenizer.encode("a     b") == ids("▁", "a", "▁▁▁▁", "▁", "b")
    assert tokenizer.encode("é\t") == ids("▁") + bytes_of("é\t")
    text = "a<|user|>the[defined]the<spare>"
    defined = [*ids("[defined]", "▁the"), *bytes_of("<sp"), *ids("a"), *bytes_of("r"), *ids("e"), *bytes_of(">")]
    assert tokenizer.encode(text) == ids("▁", "a", "<|user|>", "▁the") + defined
    plain = [*ids("▁", "a"), *bytes_of("<|us"), *ids("e"), *bytes_of("r|>"), *ids("t", "he")]
    assert tokenizer.encode_plain(text) == plain + defined
    named = ids("▁the", "[defined]", "<0xC3>", "<s>", "<spare>")
    assert [tokenizer.token_bytes(i) for i in named] == [b" the", b"[defined]", b"\xc3", b"", b""]
    no_prefix = opened(tmp_path, add_space_prefix=False, add_bos_token=False)
    assert no_prefix.encode("the") == ids("t", "he") and no_prefix.bos_id is None
    automaton = compile_schema({"type": "object", "properties": {"the": {"type": "string"}}}, tokenizer)
    assert automaton.accepts(tokenizer.encode_plain('{"the":"é cab"}', begins=False))


def test_phi_3_marks_take_the_ascii_white_space_behind_them(tmp_path: Path) -> None:
    path = write_words(tmp_path / "words.gguf", LLAMA, "Phi-3 mini", model="llama")
    tokenizer: Any = daguerre.load_tokenizer(path)
    after = [*ids("<|user|>", "▁"), *bytes_of("\u00a0"), *ids("t", "he")]
    assert tokenizer.encode("<|user|> \n\u00a0the") == after
    assert tokenizer.encode_around("<|user|> \n\u00a0the", []) == after
    assert tokenizer.encode("<s> the") == ids("<s>", "▁", "▁the"), "but this one"


def test_control_tokens_are_known_by_their_texts(tmp_path: Path) -> None:
    ends = [("<|im_end|>", ADDED, 0.0), ("<fim_prefix>", TEXT, 0.0)]
    words = [*((letter, TEXT, 0.0) for letter in ALPHABET), *ends]
    keys: dict[str, Any] = {"model": "gpt2", "pre": "qwen2", "merges": ["a b"]}
    words.append(("ab", TEXT, 0.0))
    tokenizer = daguerre.load_tokenizer(write_words(tmp_path / "a.gguf", words, **keys))
    assert {256, 257} <= tokenizer.special_ids
    named = daguerre.load_tokenizer(write_words(tmp_path / "b.gguf", words, **keys, fim_pre_token_id=256))
    assert 256 in named.special_ids and 257 not in named.special_ids, "a key says which token it is"


def test_every_split_divides_texts_and_is_found_again(subtests: pytest.Subtests) -> None:
    text = "It's 12345 Élan、日本語  ﷺ\n\n\t x_y!! हिन्दी 3.14\u3000<sentinel:1>"
    for name, split in SPLITS.items():
        with subtests.test(name):
            pre = {"type": "Sequence", "pretokenizers": splitting(split)}
            shell = {"version": "1.0", "pre_tokenizer": pre, "model": {"type": "BPE", "vocab": {}, "merges": []}}
            pieces = tokenizers.Tokenizer.from_str(json.dumps(shell)).pre_tokenizer.pre_tokenize_str(text)
            spans = [span for _, span in pieces]
            assert spans[0][0] == 0 and spans[-1][1] == len(text) and len(spans) >= 3
            assert all(one[1] == two[0] for one, two in zip(spans, spans[1:], strict=False))
            normal = {"type": "NFC"} if split.nfc else None
            found = split_name({**shell, "normalizer": normal, "model": {"ignore_merges": split.whole}})
            assert found is None if split.marked else SPLITS[str(found)].patterns == split.patterns


def test_a_split_without_a_name_is_llama_cpps_and_others_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    unnamed, named = level(tmp_path), None
    tokenizer = daguerre.load_tokenizer(unnamed)
    assert "does not say how its tokenizer splits texts" in caplog.text
    assert tokenizer.encode("abab") == [256, 256]
    named = daguerre.load_tokenizer(level(tmp_path, pre="default"))
    assert named.to_bytes() == tokenizer.to_bytes()
    with pytest.raises(UnsupportedError, match="splits texts as 'other' does"):
        daguerre.load_tokenizer(level(tmp_path, pre="other"))
    for kind in ("bert", "t5", "rwkv", "plamo2"):
        with subtests.test(kind), pytest.raises(UnsupportedError, match=f"kind '{kind}' .* name the publisher's"):
            daguerre.load_tokenizer(level(tmp_path, model=kind))


def test_a_type_that_nobody_knows_is_text(tmp_path: Path) -> None:
    words = [*((letter, 100_000, 0.0) for letter in ALPHABET), ("ab", -7, 0.0)]
    tokenizer = daguerre.load_tokenizer(write_words(tmp_path / "words.gguf", words, model="gpt2", merges=["a b"]))
    assert tokenizer.encode("abab") == [256, 256] and tokenizer.token_bytes(256) == b"ab"


def test_scores_that_are_none_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for score in (float("nan"), float("inf")):
        words = [*LLAMA[:-1], ("x", TEXT, score)]
        with subtests.test(score), pytest.raises(CheckpointError, match="scores that are no numbers"):
            daguerre.load_tokenizer(write_words(tmp_path / "words.gguf", words, model="llama"))
    with pytest.raises(CheckpointError, match="a token of 2,000 characters"):
        daguerre.load_tokenizer(write_words(tmp_path / "words.gguf", [*LLAMA, ("x" * 2000, TEXT, 0.0)], model="llama"))


def test_a_file_that_was_read_is_written_again_and_read_alike(tmp_path: Path, subtests: pytest.Subtests) -> None:
    import gguf

    (tmp_path / "other").mkdir()
    marked = [word for word in LLAMA if word[1] in (TEXT, CONTROL) or word[0].startswith("<0x")]
    gemma: dict[str, Any] = {"model": "gemma4", "merges": ["▁ t", "h e", "▁t he"], "bos_token_id": 1, "eos_token_id": 2}
    cases = {
        "llama": write_words(
            tmp_path / "l.gguf", LLAMA, model="llama", pre="default", add_space_prefix=False, add_eos_token=True
        ),
        "gpt2": level(tmp_path, pre="starcoder", bos_token_id=257, unknown_token_id=257),
        "unnamed": level(tmp_path / "other"),
        "gemma4": write_words(tmp_path / "g.gguf", marked, **gemma),
    }
    for name, path in cases.items():
        with subtests.test(name):
            tokenizer: Any = daguerre.load_tokenizer(path)
            writer = gguf.GGUFWriter(str(tmp_path / "again.gguf"), "llama")
            ends = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id, "pad_id": tokenizer.eos_id, "end_ids": ()}
            facts: Any = SimpleNamespace(
                **ends, fim=None, unpredictable_ids=(), mask_id=None, vocab_size=tokenizer.vocab_size
            )
            assert not add_tokenizer(writer, tokenizer, facts)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            again: Any = daguerre.load_tokenizer(tmp_path / "again.gguf")
            old, new = read_header(path).metadata, read_header(tmp_path / "again.gguf").metadata
            keys = {key for key in old if key.startswith("tokenizer.") and (name == "llama" or "scores" not in key)}
            for key in keys:
                assert all([new[key] == old[key]] if not hasattr(old[key], "dtype") else new[key] == old[key]), key
            assert again.to_bytes() == tokenizer.to_bytes() and again.bos_id == tokenizer.bos_id
            assert again.encode("the ab  cab é") == tokenizer.encode("the ab  cab é")


def test_a_tokenizer_is_opened_without_its_model(tmp_path: Path, subtests: pytest.Subtests) -> None:
    template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
    talking = opened(tmp_path, chat_template=template)
    asked = [{"role": "user", "content": "the"}]
    assert talking.chat(asked) == ids("<|user|>", "▁the") and talking.decode(talking.chat(asked)) == " the"
    forged = talking.chat([{"role": "user", "content": "the<|user|>"}])
    assert forged[:2] == ids("<|user|>", "▁the") and ids("<|user|>")[0] not in forged[1:]
    published, folder = MADE["llama2"](), tmp_path / "folder"
    folder.mkdir()
    published.save(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(published.config))
    (tmp_path / "own").mkdir()
    own = daguerre.Tokenizer.default("2k")
    own.save(tmp_path / "own" / "tokenizer.json")
    published.save(tmp_path / "alone.json")
    cases = {folder: published, folder / "tokenizer.json": published, tmp_path / "alone.json": published}
    for path, expected in {**cases, tmp_path / "own": own, tmp_path / "own" / "tokenizer.json": own}.items():
        with subtests.test(path.name):
            found = daguerre.load_tokenizer(path)
            assert found.encode("a new one") == expected.encode("a new one") and type(found) is type(expected)
            with pytest.raises(UnsupportedError, match="no chat template"):
                found.chat(asked)
    (tmp_path / "none").mkdir()
    for wrong in (tmp_path / "missing", tmp_path / "none", level(tmp_path, model="none"), 5):
        with subtests.test(str(wrong)), pytest.raises(DaguerreError):
            daguerre.load_tokenizer(wrong)  # type: ignore[arg-type]


def test_a_text_around_nothing_that_is_plain_is_a_text(subtests: pytest.Subtests) -> None:
    text = "<|begin|>system<|end|> user <|mask|><|mask|> x<|end|>"
    for name in ("llama2", "mistral", "gemma"):
        with subtests.test(name):
            tokenizer = MADE[name]()
            assert tokenizer.encode_around(text, []) == tokenizer.encode(text)


PIECES = (
    "the",
    "cab",
    "▁",
    " ",
    "  ",
    "ab",
    "é",
    "e\u0301",
    "<|user|>",
    "[defined]",
    "<end>",
    "<spare>",
    "\n",
    "x",
    "<s>",
)


def test_a_part_of_a_vocabulary_gives_the_ids_of_the_whole(tmp_path: Path, subtests: pytest.Subtests) -> None:
    marked = [word for word in LLAMA if word[1] in (TEXT, CONTROL) or word[0].startswith("<0x")]
    letters = [(letter, TEXT, 0.0) for letter in ALPHABET]
    byte_level = [*letters, *((text, TEXT, 0.0) for text in ("th", "the", "Ġt", "Ġthe", "ab", "he"))]
    byte_level += [("<end>", CONTROL, 0.0), ("[defined]", ADDED, 0.0)]
    merges = ["t h", "th e", "Ġ t", "h e", "Ġt he", "a b"]
    cases: dict[str, Path] = {
        "llama": write_words(tmp_path / "l.gguf", LLAMA, model="llama"),
        "no prefix": write_words(tmp_path / "n.gguf", LLAMA, model="llama", add_space_prefix=False),
        "gemma4": write_words(tmp_path / "g.gguf", marked, model="gemma4", merges=["▁ t", "h e", "▁t he"]),
        "nfc": write_words(tmp_path / "q.gguf", byte_level, model="gpt2", pre="qwen2", merges=merges),
        "whole words": write_words(tmp_path / "w.gguf", byte_level, model="gpt2", pre="llama3", merges=merges),
    }
    for name, path in cases.items():
        with subtests.test(name):
            rng, whole = random.Random(0), opened_whole(path)
            for _ in range(60):
                tokenizer: Any = daguerre.load_tokenizer(path)
                text = "".join(rng.choices(PIECES, k=rng.randrange(1, 7)))
                assert read_in_ways(tokenizer, text) == read_in_ways(whole, text), text
                assert "whole" not in tokenizer._words.__dict__ or (name == "nfc" and "\u0301" in text)


def opened_whole(path: Path) -> Any:
    tokenizer: Any = daguerre.load_tokenizer(path)
    assert tokenizer._words.whole
    return tokenizer


def read_in_ways(tokenizer: Any, text: str) -> list[list[int]]:
    found = tokenizer.find_special(text)
    each = [
        read(text, begins=begins) for read in (tokenizer.encode, tokenizer.encode_plain) for begins in (True, False)
    ]
    return [*each, tokenizer.encode_around(text, found[:1])]


def test_the_whole_vocabulary_is_made_for_long_texts_and_after_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_words(tmp_path / "words.gguf", LLAMA, model="llama")
    long: Any = daguerre.load_tokenizer(path)
    long.encode("the " * (gguf_words.LONGEST // 4 + 1))
    assert "whole" in long._words.__dict__
    monkeypatch.setattr(gguf_words, "MOST", 2 * gguf_words.EACH + 100)
    often: Any = daguerre.load_tokenizer(path)
    for number, text in enumerate(("the cab", "cab", "ab", "x", "y")):
        often.encode(text)  # of which the second is in the first
        assert ("whole" in often._words.__dict__) == (number == 4)


def test_files_that_differ_in_one_token_differ_in_its_ids_alone(tmp_path: Path) -> None:
    first = daguerre.load_tokenizer(write_words(tmp_path / "a.gguf", LLAMA, model="llama"))
    other = daguerre.load_tokenizer(
        write_words(
            tmp_path / "a.gguf", [("cae" if text == "cab" else text, *rest) for text, *rest in LLAMA], model="llama"
        )
    )
    assert first.encode("the cab") == ids("▁the", "▁", "cab") and other.encode("the cab") == ids("▁the", "▁", "c", "ab")
    assert first != other and first.sha256 != other.sha256


def test_pairs_of_other_tokens_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for merges in (["a b", "a c"], ["zz b"], ["ab"], ["a b c"], []):
        with subtests.test(str(merges)), pytest.raises(CheckpointError, match="merges: copy it again"):
            daguerre.load_tokenizer(level(tmp_path, merges=merges or ["ab", ""]))
