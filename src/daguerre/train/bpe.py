"""Train a byte-level BPE vocabulary.

The pre-tokenizer decides what may become one token:

* line breaks with the indentation after them ("\\n\\n    "), so that one token opens a line;
* a word with at most a space or an underscore before it (" self", "_name"), never other punctuation: a gap or a prompt
  may then end at "(", "." or ":" as training text does;
* one digit; a run of punctuation, with the space before it; a run of spaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from daguerre.errors import InputError
from daguerre.models.tokenizer import NUM_SPECIALS, SPECIALS, Tokenizer

PATTERN = r"\n[ \t\n]*|[ _]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s"


def train_bpe(texts: Iterable[str], vocab_size: int, *, exact: bool = True) -> Tokenizer:
    """A vocabulary of `vocab_size` ids (the specials and all 256 bytes included).

    InputError when `vocab_size` is too small, or the texts have too few pairs to fill it and it is to be `exact`.
    """
    smallest = NUM_SPECIALS + 256
    if not smallest <= vocab_size <= 65536:
        raise InputError(f"vocab_size must be from {smallest} to 65536, not {vocab_size}")
    inner = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    if exact and inner.get_vocab_size() != vocab_size:
        raise InputError(f"the texts gave only {inner.get_vocab_size()} of {vocab_size} tokens: give more text")
    return Tokenizer(_without_added_tokens(inner.to_str()))


def _without_added_tokens(content: str) -> str:
    """The JSON of a tokenizer whose special tokens are in the vocabulary only, so that text never matches them."""
    parsed = json.loads(content)
    parsed["added_tokens"] = []
    return json.dumps(parsed, ensure_ascii=False)
