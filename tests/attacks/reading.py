"""A process that reads tokenizers, for attacks on it: {"content"} in, {"error"} out: the class and message, or null."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress

from daguerre.errors import DaguerreError
from daguerre.models.published_tokenizer import PublishedTokenizer

TEXTS = ("", "a b é ab", "日本 🙂\n", "<unk> <|end|>x")

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))  # a failsafe


def answer(content: str) -> dict[str, object]:
    try:
        found = PublishedTokenizer(content, {"eos_token": "<|end|>"})
    except DaguerreError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    for text in TEXTS:
        for begins in (True, False):
            with suppress(DaguerreError):
                found.decode_bytes(found.encode(text, begins=begins))
            with suppress(DaguerreError):
                found.decode_bytes(found.encode_plain(text, begins=begins))
    with suppress(DaguerreError):
        found.encode_around("a<|end|>b", found.find_special("a<|end|>b"))
    return {"error": None}


for line in sys.stdin:
    sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")
    sys.stdout.flush()
