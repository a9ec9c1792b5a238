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
