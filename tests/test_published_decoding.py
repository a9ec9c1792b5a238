"""Decoding with every kind of published tokenizer, through the main path: constraints, healing, stop strings, pins,
drafts and decisions. Models are tiny and random.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import made_tokenizers as mt
from daguerre.decoding.drafters import Draft
from daguerre.decoding.healing import Vocabulary
from daguerre.decoding.pins import Pin
from daguerre.errors import InputError, UnsupportedError
from daguerre.scoring.decisions import Choice
from main_path import edit, fill, infill, stream
from published_runs import SCHEMA, model_of, run, tokens_of

FALLBACK = ["llama2", "mistral", "gemma", "unigram"]
TOOL = {"name": "add", "parameters": {**SCHEMA, "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}
Check = Callable[[str], None]
CHECKS: list[Check] = []
"""What is true of every kind of tokenizer."""


def of_every_kind(check: Check) -> Check:
    CHECKS.append(check)
    return check


@pytest.mark.parametrize("kind", mt.KINDS)
def test_decoding_keeps_its_promises_with_every_kind_of_tokenizer(subtests: pytest.Subtests, kind: str) -> None:
    for check in CHECKS:
        with subtests.test(check.__name__):
            check(kind)


@of_every_kind
def a_constraint_gives_valid_text_whatever_the_vocabulary(kind: str) -> None:
    options = {"temperature": 1.0, "seed": [*mt.KINDS].index(kind) % 2}
    text = run(kind, "The date is: ", 24, regex=r"\d{4}-\d\d-\d\d|é{2,3}▁ ?", **options).text
    assert re.fullmatch(r"\d{4}-\d\d-\d\d|é{2,3}▁ ?", text)
    value = json.loads(run(kind, "x = ", 60, schema=SCHEMA, **options).text)
    assert value.keys() == {"name", "age"} and 0 <= value["age"] <= 150 and len(value["name"]) <= 12
    text = run(kind, "x = ", 60, tools=[TOOL], keywords=["<tool_call>"], **options).text
    assert re.search(r'<tool_call>\s*\{"name":"add","arguments":\{"a":(true|false)\}\}\s*</tool_call>', text)
    text = run(kind, "x", 30, keywords=["é▁"], forbidden=["e", " "], ending="\n.", **options).text
    assert "é▁" in text and text.endswith("\n.") and not set("e ") & set(text)


@of_every_kind
def healing_keeps_the_bytes_of_the_prompt(kind: str) -> None:
    """What follows the prompt is the result's text, whatever tokens are drawn in place of the last ones."""
    tokenizer = model_of(kind).tokenizer
    healed = 0
    prompts = ("def f(x): retur", "x = [1, 2]\n   ", "a, b = naï", "(a) 日本", "hello, wor", "e\u0301▁ th")
    for seed, prompt in enumerate(prompts):
        result = run(kind, prompt, 6, temperature=1.0, seed=seed)
        (gap,) = result.trace.canvas.gaps
        written = tokenizer.decode_bytes(tokens_of(result)[: gap[1]])
        given = tokenizer.decode_bytes(tokenizer.encode(prompt))
        assert written.startswith(given)
        assert written[len(given) :].decode(errors="replace").startswith(result.text)
        begun = len([tokenizer.bos_id] * (tokenizer.bos_id is not None)) + len(tokenizer.encode(prompt))
        healed += gap[0] < begun
    assert healed >= 3


@of_every_kind
def a_stop_string_cuts_the_text_and_a_stream_never_shows_it(kind: str) -> None:
    whole = run(kind, "x = ", 24, temperature=1.0, heal=False).text
    assert len(whole) > 8
    stop = whole[5:7]
    at = whole.index(stop)
    result = run(kind, "x = ", 24, temperature=1.0, heal=False, stop=[stop])
    assert (result.text, result.finish_reason) == (whole[:at], "stop")
    texts = [event.committed for event in run(kind, "x = ", 24, call=stream, temperature=1.0, heal=False, stop=[stop])]
    assert texts[-1] == whole[:at] and all(whole[:at].startswith(text) for text in texts)


@of_every_kind
def a_pinned_text_stays_in_its_place_byte_for_byte(kind: str) -> None:
    tokenizer = model_of(kind, "full").tokenizer
    for text in ("def", " x = 1", "é▁<|mask|>", "<|end|>", "e\u0301"):
        ids = tokenizer.encode_plain(text, begins=False)
        length = len(ids) + 6
        result = run(kind, "a b", length, context="full", pins=[Pin(text, 3)], min_tokens=length, mode="block")
        (gap,) = result.trace.canvas.gaps
        assert tokens_of(result)[gap[0] + 3 : gap[0] + 3 + len(ids)] == ids
        assert text.encode() in tokenizer.decode_bytes(tokens_of(result)[gap[0] :])
        floating = run(kind, "a b", length + 6, context="full", pins=[Pin(text, (1, None))], mode="block")
        assert text in floating.text


@of_every_kind
def names_of_special_tokens_around_gaps_are_text(kind: str) -> None:
    tokenizer = model_of(kind, "full").tokenizer
    template = "a <|mask|>é<gap> b <|mask|><|end|><gap> c"
    result = run(kind, template, 3, context="full", call=fill, min_tokens=3, heal=False)
    first, second, third = template.split("<gap>")
    assert result.text == first + result.texts[0] + second + result.texts[1] + third
    ids = tokens_of(result)
    given = [tokenizer.encode_plain(first), *(tokenizer.encode_plain(text, begins=False) for text in (second, third))]
    begun = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    assert ids[: len(begun + given[0])] == begun + given[0]
    start = len(ids) - len(given[2])
    assert ids[start:] == given[2]
    assert tokenizer.decode_bytes(ids[start:]) == b" c"
    assert tokenizer.encode(first) != given[0], "as in the prompt of a completion they are special tokens"


@of_every_kind
def an_edit_keeps_the_rest_character_for_character(kind: str) -> None:
    text = "one e\u0301 two▁three  four\n"
    result = run(kind, text, [(4, 6), (16, 21)], context="full", call=edit, strength=0.5, heal=False)
    (a, b), (c, d) = result.spans
    assert (result.text[:a], result.text[b:c], result.text[d:]) == (text[:4], text[6:16], text[21:])
    same = run(kind, text, [(4, 6)], context="full", call=edit, strength=0.01, heal=False)
    kept = [token.text for token in same.tokens if token.step == -1]
    assert "".join(kept) in text


@of_every_kind
def a_draft_is_text_in_the_middle_of_a_text(kind: str) -> None:
    free = run(kind, "x = ", 16, heal=False, mode="ar")
    assert run(kind, "x = ", 16, heal=False, mode="ar", draft=free.text).text == free.text
    tokenizer = model_of(kind).tokenizer
    draft = Draft("abc <|mask|>e\u0301", tokenizer).tokens(begun=b"a")
    assert tokenizer.decode_bytes(draft.tolist()) == "bc <|mask|>e\u0301".encode()


@of_every_kind
def decisions_are_between_texts_of_any_tokenizer(kind: str) -> None:
    model = model_of(kind)
    question = Choice(before="It is ", labels=["é▁", "return", "日本"], after="\n")
    (answer,) = model.decide("The <|mask|> state. ", [question])
    assert answer.answer in question.labels
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert len(set(answer.scores.values())) == 3


@pytest.mark.parametrize("kind", FALLBACK)
def test_the_text_after_a_gap_begins_with_no_space(kind: str) -> None:
    result = run(kind, "ab<gap>cd", 2, context="full", call=fill, min_tokens=2, heal=False)
    assert result.text == f"ab{result.texts[0]}cd"
    tokenizer, ids = model_of(kind, "full").tokenizer, tokens_of(result)
    assert tokenizer.decode_bytes(ids[-len(tokenizer.encode("cd", begins=False)) :]) == b"cd"


@pytest.mark.parametrize("kind", FALLBACK)
def test_of_two_tokens_with_the_same_bytes_the_ordinary_one_is_found(kind: str) -> None:
    tokenizer = mt.made(kind)
    vocabulary = Vocabulary.make(tokenizer)
    for text in (b"a", b"(", b" "):
        both = vocabulary.written(text)
        assert len(both) == 2 and tokenizer.token_bytes(both[0]) == tokenizer.token_bytes(both[1]) == text
        assert both[0] in tokenizer.spare_byte_ids and both[1] not in tokenizer.spare_byte_ids
    assert {tokenizer.token_bytes(token) for token in vocabulary.proper_beginnings(b"ab")} == {b"a"}
    assert len(vocabulary.proper_beginnings(b"ab")) == 2


NEEDS_BYTES: list[tuple[str, dict[str, Any]]] = [
    ("a stop string", {"stop": ["x"]}),
    ("heal=True", {"heal": True}),
    ("a pin", {"pins": [Pin("x", 0)]}),
    ("a constraint", {"pins": [Pin("x", (0, 4))]}),
    ("a constraint", {"regex": "[a-z]+"}),
    ("a constraint", {"schema": SCHEMA}),
    ("a constraint", {"keywords": ["x"]}),
]


def test_what_needs_bytes_is_refused_where_tokens_have_none(subtests: pytest.Subtests) -> None:
    for what, options in NEEDS_BYTES:
        with subtests.test(str(options)):
            with pytest.raises(UnsupportedError, match=f"{what} needs the bytes of every token.*WordPiece") as refused:
                run("wordpiece", "return the", 8, **options)
            assert "\n" not in str(refused.value)


def test_a_tokenizer_without_bytes_still_generates_infills_and_decides() -> None:
    model = model_of("wordpiece")
    result = run("wordpiece", "return the", 8)
    assert result.text == "".join(token.text for token in result.tokens)
    assert tokens_of(result)[: result.trace.canvas.gaps[0][0]][-2:] == model.tokenizer.encode("return the")[-2:]
    question = Choice(before="it is ", labels=["true", "false"])
    (answer,) = model.decide("so ", [question])
    assert answer.answer in ("true", "false")
    assert run("wordpiece", "return", "value", 2, context="full", call=infill, min_tokens=2).text


def test_the_first_token_of_a_shifted_model_without_bos_is_not_healed(make_model: Any) -> None:
    model = make_model(bos_id=None)

    result = model.generate("x", 6, heal=True)

    assert result.trace.canvas.gaps[0][0] == 1
    with pytest.raises(InputError, match="begin with a text"):
        model.generate("", 6)


@of_every_kind
def a_suffix_has_its_own_bytes_and_no_space_before_them(kind: str) -> None:
    suffix = "hello, world\n"
    result = model_of(kind).infill("x = ", suffix, 4, min_tokens=4)

    (_, end), tokens = result.trace.canvas.gaps[0], result.trace.canvas.tokens.tolist()
    assert model_of(kind).tokenizer.decode_bytes(tokens[end:]).decode() == suffix
