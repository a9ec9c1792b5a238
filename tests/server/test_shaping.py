"""Constraints by the names of other servers, and options of decoding as fields of bodies."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from daguerre.decoding.request import Decode
from daguerre.kinds import options_of
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.protocol.common import Diffusion, Sampling
from served import Json, asked, refused

ASK: Json = {"model": "tiny", "prompt": "x", "max_tokens": 24}
FIVE: Json = {"const": 5}
HELD: list[tuple[Json, str]] = [
    ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
    ({"regex": "[ab]{3}"}, "[ab]{3}"),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"choices": ["yes", "no"]}, "yes|no"),
    ({"structured_outputs": {"choice": ["yes", "no"], "disable_any_whitespace": False}}, "yes|no"),
    ({"guided_json": FIVE}, "5"),
    ({"guided_json": json.dumps(FIVE)}, "5"),
    ({"json_schema": FIVE}, "5"),
    ({"schema": FIVE}, "5"),
    ({"daguerre": {"schema": FIVE}}, "5"),
    ({"structured_outputs": {"json": FIVE}}, "5"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "five", "schema": FIVE}}}, "5"),
    ({"response_format": {"type": "json_object", "schema": FIVE}}, "5"),
    ({"grammar": "", "json_schema": {}, "response_format": {"type": "text"}, "regex": "a"}, "a"),
]
REFUSED: list[tuple[Json, str]] = [
    ({"grammar": "root ::= x"}, "grammar"),
    ({"guided_grammar": "root ::= x"}, "guided_grammar"),
    ({"ebnf": "root ::= x"}, "ebnf"),
    ({"structural_tag": "{}"}, "structural_tag"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"guided_json": "{"}, "guided_json"),
    ({"keywords": ["a"]}, "keywords"),
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"regex": "a", "daguerre": {"regex": "b"}}, "regex"),
    ({"guided_json": FIVE, "json_schema": FIVE}, "json_schema"),
]


def test_a_constraint_holds_by_every_name_or_is_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 24}
    for more, pattern in HELD:
        with subtests.test(str(more)):
            assert re.fullmatch(pattern, asked(client, "/v1/completions", {**ASK, **more})["choices"][0]["text"])
            if "response_format" in more and "text" in str(more):
                continue
            said = asked(client, "/v1/chat/completions", {**chat, **more})["choices"][0]["message"]["content"]
            assert re.fullmatch(pattern, said)
    native = {"prompt": "x", "n_predict": 24, "json_schema": FIVE}
    assert asked(client, "/completion", {**native, "model": "tiny"})["content"] == "5"
    block = asked(client, "/v1/messages", {**chat, "guided_json": FIVE})["content"][0]
    assert block["text"] == "5"
    answer = asked(client, "/v1/responses", {"model": "tiny", "input": "x", "guided_choice": ["yes", "no"]})
    assert answer["output"][0]["content"][0]["text"] in ("yes", "no")
    for more, field in REFUSED:
        with subtests.test(str(more)):
            assert refused(client, "/v1/completions", {**ASK, **more})["param"] == field
    both = {**chat, "guided_json": FIVE, "response_format": {"type": "json_object"}}
    assert refused(client, "/v1/chat/completions", both)["param"] == "response_format"
    assert refused(client, "/v1/completions", {**ASK, "tools": [{"type": "function"}]})["param"] == "tools"


def test_every_option_of_decoding_is_a_field_of_a_body() -> None:
    """Fails where an option of the library cannot be asked for over HTTP."""
    own: Json = {"scorer": "is code", "tools": "tools", "tool_choice": "tool_choice"}
    own |= {"parallel_calls": "parallel_tool_calls", "chat_format": "messages"}
    for name in set(options_of(Decode)) - {*own} - {*Sampling.model_fields}:
        value: Any = next(
            one
            for one in (1, True, "x", ["x"], {"type": "object"}, [{"text": "x", "at": 1}], [{"kind": "forbid"}])
            if _fits(name, one)
        )
        assert name in Diffusion.model_validate({name: value}).options(), name
    assert {*own.values()} - {"is code"} <= {*ChatBody.model_fields}


def _fits(name: str, value: object) -> bool:
    try:
        Diffusion.model_validate({name: value}).options()
    except ValueError:
        return False
    return True


def test_a_text_that_the_limit_cuts_is_of_length_also_where_its_constraint_closes_it(
    client: httpx2.Client, subtests: pytest.Subtests
) -> None:
    """The tiny model never closes a string itself, and there is one text of a constant."""
    for mode in ("ar", "speculative"):
        with subtests.test(mode):
            body = {**ASK, "max_tokens": 9, "daguerre": {"mode": mode, "schema": {"type": "string"}}}
            choice = asked(client, "/v1/completions", body)["choices"][0]
            assert isinstance(json.loads(choice["text"]), str) and choice["finish_reason"] == "length"
            body["daguerre"] = {"mode": mode, "schema": FIVE}
            assert asked(client, "/v1/completions", body)["choices"][0]["finish_reason"] == "stop"
    cut = {**ASK, "max_tokens": 1, "daguerre": {"choices": ["5", "5, 6 and 7 are numbers"]}}
    assert asked(client, "/v1/completions", cut)["choices"][0]["finish_reason"] == "length"


def test_tops_and_least_shares_are_those_of_other_servers(client: httpx2.Client) -> None:
    likeliest = asked(client, "/v1/completions", ASK)["choices"][0]["text"]
    drawn = {**ASK, "temperature": 2.0, "seed": 3}
    free = asked(client, "/v1/completions", drawn)["choices"][0]["text"]
    for more in ({"top_p": 0}, {"top_k": 1}, {"min_p": 1}):
        assert asked(client, "/v1/completions", {**drawn, **more})["choices"][0]["text"] == likeliest
    for more in ({"top_k": 0}, {"top_k": -1}, {"min_p": 0}, {"top_p": 1}):
        assert asked(client, "/v1/completions", {**drawn, **more})["choices"][0]["text"] == free
    assert free != likeliest
    held = {**drawn, "daguerre": {"mode": "ar", "regex": "[a-z]{8}"}}  # min-p of the probabilities given the constraint
    best, any_of = (asked(client, "/v1/completions", {**held, "min_p": p})["choices"][0]["text"] for p in (1, 0))
    plain = asked(client, "/v1/completions", {**held, "temperature": 0})["choices"][0]["text"]
    assert best == plain != any_of


def test_llama_cpps_fields_of_tokens(client: httpx2.Client) -> None:
    plain = asked(client, "/tokenize", {"model": "tiny", "prompt": "é x", "add_special_tokens": False})["tokens"]
    assert asked(client, "/tokenize", {"model": "tiny", "content": "é x"}) == {"tokens": plain}
    begun = asked(client, "/tokenize", {"model": "tiny", "content": "é x", "add_special": True})["tokens"]
    assert begun == asked(client, "/tokenize", {"model": "tiny", "prompt": "é x"})["tokens"] != plain
    pieces = asked(client, "/tokenize", {"model": "tiny", "content": "é x😀", "with_pieces": True})["tokens"]
    written = b"".join(
        piece.encode() if isinstance(piece, str) else bytes(piece) for piece in (one["piece"] for one in pieces)
    )
    assert written.decode() == "é x😀" and any(isinstance(one["piece"], list) for one in pieces)
    assert asked(client, "/detokenize", {"model": "tiny", "tokens": plain})["content"] == "é x"
