"""Every vocabulary that llama.cpp tests itself with: its expected ids, its ids of odd texts, and constraints."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import TokenAutomaton, compile_regex, compile_schema
from published_runs import tokens_of
from real.conftest import some
from real.files import bring, bring_llama_cpp, bring_llama_cpp_files
from real.prompts import odd_strings

SEPARATOR = "\n__ggml_vocab_test__\n"
REFUSED = {"bert-bge": "WordPiece", "nomic-bert-moe": "Unigram"}
NAMES = (
    *("aquila", "baichuan", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "gpt-neox"),
    *("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder", "gemma3-270m"),
)
CASES = 661
"""How many there are beside the 14 of these that have expected ids."""
TEXTS = (
    *("", " ", "  x", "\n\n\n\n", "\u3000\u3000中文　。", "a\u2028b\u2003c", "МОСКВА Élan", "१२३ ١٢٣ 1234567"),
    *("---> <!-- -->", "</s>\u00a0 x", "<|user|> \n\u00a0y", "<s> <unk>", "<|im_end|><|endoftext|>"),
    *("\x00\x01\x7f\x85", " " * 70, "\t" * 70, "हिन्दी ภาษาไทย 한국어", "(a|b).c,d!e?f…g。h，i", "Straße\r\n\r\n  x"),
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def path_of(name: str) -> Path:
    if name == "gemma3-270m":
        return bring(name)
    return bring_llama_cpp_files() / "models" / f"ggml-vocab-{name}.gguf"


def cases_of(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Texts and their ids in a file with its own test; none beside others."""
    expected, given = Path(f"{path}.out"), Path(f"{path}.inp")
    if expected.exists():
        texts, lines = given.read_bytes().decode().split(SEPARATOR), expected.read_text().split("\n")
        assert len(texts) - len(lines) in (0, -1)
        yield from zip(texts, (list(map(int, line.split())) for line in lines), strict=False)


def llama_cpp(path: Path, texts: list[str]) -> dict[str, list[list[int]]]:
    """Its ids, where special tokens are read and where they are plain text."""
    asked = {"files": [str(path)], "texts": texts, "packages": str(bring_llama_cpp())}
    script = Path(__file__).parent / "words.mjs"
    done = subprocess.run(["node", script], input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, list[list[int]]]] = json.loads(done.stdout)
    return found[0]


def walked(automaton: TokenAutomaton, rng: np.random.Generator) -> list[int]:
    """Tokens that are drawn at random along an automaton, until a text may end."""
    out, state = list[int](), 0
    while not automaton.accept[state]:
        cls = rng.choice(automaton.next_classes(state))
        out.append(int(rng.choice(automaton.tokens_of(int(cls)))))
        state = automaton.step(state, out[-1])
    return out


def test_expected_ids_are_all_there() -> None:
    assert sum(len(list(cases_of(path_of(name)))) for name in NAMES if name != "gemma3-270m") == CASES
    files = path_of("gpt-2").parent.glob("ggml-vocab-*.gguf")
    there = {path.stem.removeprefix("ggml-vocab-") for path in files}
    assert there == {*NAMES, *REFUSED} - {"gemma3-270m"}


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_llama_cpp_and_constraints_are_written(name: str) -> None:
    path = path_of(name)
    tokenizer = daguerre.load_tokenizer(path)
    for text, ids in cases_of(path):
        assert tokenizer.encode_plain(text) == ids, text
    texts = [*TEXTS, *odd_strings(1000 if name == "gemma3-270m" else some(300, 60))]
    found = llama_cpp(path, texts)
    for text, special, plain in zip(texts, found["special"], found["plain"], strict=True):
        if tokenizer.unwritable.isdisjoint(text.encode()):  # else llama.cpp leaves the byte out
            assert tokenizer.encode(text) == special, text
            assert tokenizer.encode_plain(text) == plain, text
            assert tokenizer.decode_bytes(tokenizer.encode_plain(text, begins=False)) == text.encode()
        else:
            with suppress(InputError):  # but where another token holds it
                assert tokenizer.encode_plain(text) == plain, text
    with pytest.raises(InputError):
        tokenizer.encode("\ud800")
    check_constraints(tokenizer)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_a_vocabulary_gives_the_ids_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daguerre.models.gguf.words.MOST", 1 << 40)
    tokenizer: Any = daguerre.load_tokenizer(path_of(name))
    texts, found = [*TEXTS, *odd_strings(20)], []
    for _ in range(2):
        reads = (tokenizer.encode, tokenizer.encode_plain)
        found.append([ids_or_error(read, text, begins) for text in texts for read in reads for begins in (True, False)])
        assert len(found) == 2 or tokenizer._words.whole
    assert found[0] == found[1]


def ids_or_error(read: Any, text: str, begins: bool) -> list[int] | str:
    try:
        ids: list[int] = read(text, begins=begins)
        return ids
    except InputError as error:
        return str(error)


def check_constraints(tokenizer: Tokenizer) -> None:
    """A schema and an expression are written by random walks, and told from what they are not."""
    rng, schema = np.random.default_rng(0), compile_schema(SCHEMA, tokenizer)
    for _ in range(5):
        values = json.loads(tokenizer.decode_bytes(walked(schema, rng)))
        assert len(values["name"]) <= 8 and isinstance(values["age"], int)
    assert schema.accepts(tokenizer.encode_plain('{"name":"Zoë🙂","age":3}', begins=False))
    assert not schema.accepts(tokenizer.encode_plain('{"age":3}', begins=False))
    pattern = r"[a-z]+ é\d{2}"
    expression = compile_regex(pattern, tokenizer)
    assert expression.accepts(tokenizer.encode_plain("one é12", begins=False))
    assert re.fullmatch(pattern, tokenizer.decode(walked(expression, rng)))


@pytest.mark.parametrize("name", NAMES[:: some(1, 5)])
def test_texts_of_a_random_model_are_healed_stopped_and_edited(name: str) -> None:
    tokenizer = daguerre.load_tokenizer(path_of(name))
    pad = tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id
    shape = {"width": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "mlp_width": 64, "max_positions": 256}
    ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id, "pad_id": pad, "mask_id": tokenizer.mask_id}
    backbone = Backbone(ModelConfig(vocab_size=tokenizer.vocab_size, **shape, **ids))
    backbone.initialize(0, zero_outputs=False, scale=6.0).eval().requires_grad_(False)
    model, prompt = Model(backbone, tokenizer, "torch"), "The naïve wor"
    healed = model.generate(prompt, 6, mode="ar", heal=True)
    whole = tokenizer.decode(tokens_of(healed))
    assert healed.text and whole.rstrip("\ufffd").endswith(f"{prompt}{healed.text}".rstrip("\ufffd"))
    how: dict[str, Any] = {"mode": "ar", "heal": False, "min_tokens": 12}
    text = model.generate("x = ", 12, **how).text
    stop = next(text[place : place + 2] for place in range(3, len(text)) if "\ufffd" not in text[place : place + 2])
    stopped = model.generate("x = ", 12, **how | {"min_tokens": 0, "stop": stop})
    assert (stopped.text, stopped.finish_reason) == (text[: text.index(stop)], "stop")
    edited = model.edit("one two three", [(4, 7)], 4).text
    assert edited.startswith("one ") and edited.endswith(" three")


def test_other_kinds_are_refused_by_name() -> None:
    for name, what in REFUSED.items():
        with pytest.raises(UnsupportedError, match=rf"\({what}\), and gpt2, llama, gemma4 are read"):
            daguerre.load_tokenizer(path_of(name))
