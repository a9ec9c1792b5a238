"""Published tokenizers without their weights."""

from __future__ import annotations

import re

import pytest

from daguerre.models.readers import read_tokenizer
from daguerre.sampling.constraints import compile_schema
from real.conftest import FULL
from real.files import TOKENIZERS, bring_tokenizer
from real.prompts import odd_strings

pytestmark = pytest.mark.skipif(not FULL, reason="make real runs it")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_come_back_with_the_ids_of_the_library_and_a_schema_is_written(name: str) -> None:
    import tokenizers

    folder = bring_tokenizer(name)
    tokenizer, library = read_tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.unreadable is None
    normal = library.normalizer is None
    for text in odd_strings(300):
        ids = tokenizer.encode(text)
        assert not normal or ids == library.encode(text, add_special_tokens=False).ids, text
        plain = tokenizer.decode_bytes(tokenizer.encode_plain(text)).decode()  # special tokens have no bytes
        assert re.sub(r"^ ", "", plain) == re.sub(r"^ ", "", text)
    automaton = compile_schema(SCHEMA, tokenizer)
    assert automaton.accepts(tokenizer.encode_plain('{"name":"Zoë","age":3}', begins=False))
    assert not automaton.accepts(tokenizer.encode_plain('{"age":3}', begins=False))
