"""/v1/completions, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from daguerre.model import Model
from served import Json, asked, refused, streamed

PATH = "/v1/completions"
ASK: Json = {"model": "tiny", "prompt": "x = [1, 2", "max_tokens": 8}
WARM: Json = {**ASK, "temperature": 1.0, "seed": 5}


def parts(chunks: list[Json], index: int) -> list[Json]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


@pytest.mark.parametrize("echo", [False, True])
def test_several_prompts_have_their_choices_in_order(client: httpx2.Client, echo: bool) -> None:
    prompts = ["def f(", "import os\n"]
    body = {**WARM, "prompt": prompts, "n": 2, "echo": echo}
    choices = asked(client, PATH, body)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    single = [asked(client, PATH, {**body, "prompt": prompt})["choices"] for prompt in prompts]
    assert [one["text"] for one in choices] == [one["text"] for each in single for one in each]
    if echo:
        assert all(one["text"].startswith(prompts[number // 2]) for number, one in enumerate(choices))
    chunks = streamed(client, PATH, body)
    for index, choice in enumerate(choices):
        assert "".join(part["text"] for part in parts(chunks, index)) == choice["text"]
        assert parts(chunks, index)[-1]["finish_reason"] == choice["finish_reason"]


def test_tokens_are_prompts_as_texts_are(client: httpx2.Client, tiny: Model) -> None:
    texts = [ASK["prompt"], "a b"]
    ids = [tiny.tokenizer.encode(text) for text in texts]
    for prompt, same in ((ids[0], texts[0]), (ids, texts)):
        one, other = (asked(client, PATH, {**ASK, "prompt": each}) for each in (prompt, same))
        assert [choice["text"] for choice in one["choices"]] == [choice["text"] for choice in other["choices"]]
        assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
    assert one["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_a_suffix_makes_a_gap(client: httpx2.Client, trained: Model) -> None:
    body = {**ASK, "model": "default", "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    text = trained.infill(body["prompt"], body["suffix"], 8).text
    assert asked(client, PATH, body)["choices"][0]["text"] == text
    assert asked(client, PATH, {**body, "suffix": ""})["choices"][0]["text"] == trained.generate(body["prompt"], 8).text


def test_logprobs_have_the_columns_of_the_legacy_format(client: httpx2.Client, tiny: Model) -> None:
    body = {**WARM, "logprobs": 3, "daguerre": {"heal": False}}
    choice = asked(client, PATH, body)["choices"][0]
    table = choice["logprobs"]
    assert "".join(table["tokens"]) == choice["text"]
    ends = [start + len(token) for start, token in zip(table["text_offset"], table["tokens"], strict=True)]
    assert table["text_offset"] == [0, *ends[:-1]]
    for top, own, logprob in zip(table["top_logprobs"], table["tokens"], table["token_logprobs"], strict=True):
        assert 3 <= len(top) <= 4 and top[own] == logprob
    options: Any = {"temperature": 1.0, "seed": 5, "heal": False}
    tokens = tiny.generate(ASK["prompt"], 8, **options).tokens
    assert table["token_logprobs"] == pytest.approx([token.logprob for token in tokens], abs=1e-3)
    chunks = [part["logprobs"] for part in parts(streamed(client, PATH, body), 0)]
    for column in table:
        assert [value for chunk in chunks for value in chunk[column]] == table[column]
    assert asked(client, PATH, WARM)["choices"][0]["logprobs"] is None


def test_every_token_has_its_entry_also_within_a_character(client: httpx2.Client, tiny: Model) -> None:
    """A regular expression makes the text begin with four tokens of one character; bans have it cut within one."""
    half = tiny.tokenizer.encode("😀")[:2]
    bias = {str(token): 100.0 for token in half}
    for more in ({"daguerre": {"regex": "😀x"}}, {"max_tokens": 5, "logit_bias": bias, "daguerre": {"heal": False}}):
        body = {**ASK, "max_tokens": 12, "logprobs": 1, **more}
        answer = asked(client, PATH, body)
        table, new = answer["choices"][0]["logprobs"], answer["usage"]["completion_tokens"]
        chunks = [part["logprobs"] for part in parts(streamed(client, PATH, body), 0)]
        for column in table:
            assert len(table[column]) == new, column
            assert [value for chunk in chunks for value in chunk[column]] == table[column]
        assert any(token.startswith("bytes:\\x") for token in table["tokens"])
        assert all(own in top for own, top in zip(table["tokens"], table["top_logprobs"], strict=True) if top)


def test_an_echoed_prompt_has_the_likelihoods_of_its_tokens(client: httpx2.Client, tiny: Model) -> None:
    prompt = "def f(x):\n    return x é\n"
    body = {**ASK, "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = asked(client, PATH, body)
    table = answer["choices"][0]["logprobs"]
    scores = tiny.nll(prompt).by_token
    assert answer["choices"][0]["text"] == prompt and len(table["tokens"]) == len(scores)
    assert [-value for value in table["token_logprobs"]] == pytest.approx(scores.tolist(), abs=1e-3)
    for top, own in zip(table["top_logprobs"], table["token_logprobs"], strict=True):
        assert max(top.values()) >= own - 1e-3
    assert answer["usage"]["completion_tokens"] == 0
    longer = asked(client, PATH, {**body, "max_tokens": 4, "daguerre": {"heal": False}})["choices"][0]
    assert longer["logprobs"]["token_logprobs"][: len(scores)] == pytest.approx(table["token_logprobs"], abs=1e-5)
    assert longer["logprobs"]["text_offset"][len(scores)] == len(prompt)


def test_long_prompts_are_scored_in_parts(client: httpx2.Client, tiny: Model) -> None:
    prompt = "x = 1\ny = 2\n" * 20
    body = {**ASK, "prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}
    scores = asked(client, PATH, body)["choices"][0]["logprobs"]["token_logprobs"]
    assert len(scores) > 130
    assert [-value for value in scores] == pytest.approx(tiny.nll(prompt).by_token.tolist(), abs=1e-3)


def test_usage_of_all_prompts_ends_a_stream(client: httpx2.Client) -> None:
    body = {**WARM, "prompt": ["a", "b c"], "n": 2}
    usage = asked(client, PATH, body)["usage"]
    chunks = streamed(client, PATH, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == usage["total_tokens"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-2] == usage["completion_tokens"]


def test_frames_come_to_those_who_ask(client: httpx2.Client) -> None:
    chunks = streamed(client, PATH, {**ASK, "daguerre": {"mode": "block", "frames": True, "trace": True}})
    assert any(chunk.get("type") == "diffusion_frame" for chunk in chunks)
    assert parts(chunks, 0)[-1]["daguerre"]["trace"]["version"] == 3


REFUSED: list[tuple[Json, str | None]] = [
    ({"best_of": 3}, "best_of"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [99999]}, None),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 50}, "logprobs"),
    ({"n": 0}, "n"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"suffix": "x", "daguerre": {"mode": "speculative"}}, "daguerre.mode"),
    ({"daguerre": {"mode": "beam"}, "presence_penalty": 1, "suffix": "x"}, "frequency_penalty"),
    ({"stop": "x", "daguerre": {"regex": "a"}}, "stop"),
    ({"daguerre": {"changeable": True}}, "daguerre.changeable"),
]
"""What is asked for, and the field that is named."""


def test_what_cannot_be_honored_is_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for more, param in REFUSED:
        with subtests.test(str(param), more=more):
            error = refused(client, PATH, {**ASK, **more})
            assert param is None or error["param"] == param
