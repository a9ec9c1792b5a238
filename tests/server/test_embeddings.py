"""/v1/embeddings, /tokenize, /detokenize and the catalogues of models, over HTTP."""

from __future__ import annotations

import base64
import contextvars
from typing import Any

import httpx2
import numpy as np
import pytest

from daguerre.cancellation import Cancellation, use_cancellation
from daguerre.errors import CancelledError
from daguerre.model import Model
from served import Json, asked, refused

PATH = "/v1/embeddings"
TEXTS = ["hello world", "def f(x):"]


def test_embeddings_are_those_of_the_model(client: httpx2.Client, tiny: Model) -> None:
    answer = asked(client, PATH, {"model": "tiny", "input": TEXTS})
    assert answer["object"] == "list" and [one["index"] for one in answer["data"]] == [0, 1]
    found = np.array([one["embedding"] for one in answer["data"]], dtype=np.float32)
    assert np.array_equal(found, tiny.embed(TEXTS))
    ids = [tiny.tokenizer.encode(text) for text in TEXTS]
    assert answer["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(map(len, ids)))
    for given in (ids, TEXTS[0], ids[0]):
        same = asked(client, PATH, {"model": "tiny", "input": given})
        assert same["data"] == answer["data"][: len(same["data"])]


def test_an_embedding_may_be_base64_and_shorter(client: httpx2.Client, tiny: Model) -> None:
    body = {"model": "tiny", "input": TEXTS[0], "encoding_format": "base64"}
    whole = np.frombuffer(base64.b64decode(asked(client, PATH, body)["data"][0]["embedding"]), dtype="<f4")
    assert np.array_equal(whole, tiny.embed(TEXTS[:1])[0])
    short = asked(client, PATH, {**body, "dimensions": 5, "encoding_format": "float"})["data"][0]["embedding"]
    assert np.allclose(short, whole[:5] / np.linalg.norm(whole[:5]), atol=1e-6)


REFUSED: list[tuple[Json, str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": [[99999]]}, "input"),
    ({"input": "x " * 2000}, "input"),
    ({"dimensions": 999}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"),
]
"""What is asked for, and the field that is named."""


def test_what_cannot_be_embedded_is_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for more, param in REFUSED:
        with subtests.test(str(param), more=more):
            assert refused(client, PATH, {"model": "tiny", "input": "x", **more})["param"] == param


def test_texts_become_tokens_and_texts_again(client: httpx2.Client, tiny: Model) -> None:
    text = "naïve 日本 code\n"
    answer = asked(client, "/tokenize", {"model": "tiny", "prompt": text, "return_token_strs": True})
    ids = [*tiny.config.first, *tiny.tokenizer.encode(text)]
    assert answer["tokens"] == ids and answer["count"] == len(ids) and answer["max_model_len"] == 256
    assert "".join(answer["token_strs"]) == text
    plain = asked(client, "/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False})
    assert plain["tokens"] == tiny.tokenizer.encode(text) and plain["token_strs"] is None
    assert asked(client, "/detokenize", {"model": "tiny", "tokens": ids})["prompt"] == text
    assert refused(client, "/detokenize", {"model": "tiny", "tokens": [99999]})["param"] == "tokens"
    assert "prompt" in refused(client, "/tokenize", {"model": "tiny"})["message"]


def test_no_text_is_encoded_for_who_has_left(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cancellation, encoded, encode = Cancellation(), list[str](), type(tiny.tokenizer).encode

    def noted(self: Any, text: str, **how: Any) -> list[int]:
        encoded.append(text)
        cancellation.cancel()
        return encode(self, text, **how)

    def ask() -> None:
        use_cancellation(cancellation)
        with pytest.raises(CancelledError):
            tiny.embed(TEXTS)

    monkeypatch.setattr(type(tiny.tokenizer), "encode", noted)
    contextvars.copy_context().run(ask)
    assert encoded == TEXTS[:1]


def test_a_conversation_has_the_tokens_of_its_prompt(client: httpx2.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    usage = asked(client, "/v1/chat/completions", body)["usage"]
    tokens = asked(client, "/tokenize", {**body, "add_special_tokens": False})
    assert tokens["count"] == usage["prompt_tokens"]


def test_models_are_listed_and_found_by_name(client: httpx2.Client) -> None:
    asked(client, "/tokenize", {"model": "tiny", "prompt": "x"})
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list" and [one["id"] for one in listed["data"]] == ["default", "tiny"]
    tiny = client.get("/v1/models/tiny").json()
    assert tiny["context_length"] == 256 and tiny["owned_by"] == "daguerre"
    assert {"chat.completions", "embeddings", "fim.completions"} <= set(tiny["supported_endpoints"])
    assert all(isinstance(price, str) for price in tiny["pricing"].values())
    missing = client.get("/v1/models/some/other")
    assert missing.status_code == 404 and "default, tiny" in missing.json()["error"]["message"]
    for path in ("/v1/chat/completions/models", "/v1/fim/completions/models"):
        assert "tiny" in [one["id"] for one in client.get(path).json()["data"]]
    assert client.get("/v1/edit/completions/models").json()["data"] == []
