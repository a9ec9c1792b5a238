"""Conversations by a model's own chat template: which tokens are answers, and what a template does to earlier turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import END, TURN, write_tokenizer
from conftest import tiny_config
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.core.config import ModelConfig
from daguerre.models.readers import read_tokenizer
from daguerre.models.tokenizer import Tokenizer
from daguerre.server.prompts import checked, transcript
from daguerre.train.sft.formats import PromptAndAnswer, read_row
from daguerre.train.sft.rendering import Renderer
from daguerre.train.sft.texts import Text

CHATML = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
THINKING = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
"""As Qwen3's, it leaves thoughts out of all answers but the last message."""
INST = (
    "{{ bos_token }}{%- for m in messages -%}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor -%}"
)
BACKWARDS = "{% if add_generation_prompt %}Q: {% endif %}{{ messages | map(attribute='content') | join('/') }}"
REFUSING = "{% if messages | length > 2 %}{{ raise_exception('two messages at most') }}{% endif %}" + CHATML
BEGUN = {"bos_token": "<|im_start|>", "add_bos_token": True, "tokenizer_class": "LlamaTokenizer"}
TALK = [("system", "Be brief"), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "See you")]


def renderer(folder: Path, template: str | None, **config: Any) -> Renderer:
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, **({"chat_template": template} if template else {}), **config)
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    facts = {"bos_id": tokenizer.bos_id, "eos_id": END, "end_ids": (TURN,), "reserved_ids": (256, 257, 258, 259)}
    shape = tiny_config(Tokenizer.default("2k")).to_dict() | facts | {"vocab_size": 260, "mask_id": 259, "pad_id": END}
    return Renderer(tokenizer, ModelConfig.from_dict(shape | {"null_id": None}))


def talk_of(turns: list[tuple[str, str]]) -> Any:
    return read_row({"messages": [{"role": role, "content": content} for role, content in turns]})


def shown(made: Renderer, text: Text) -> list[tuple[str, bool]]:
    """Runs of a text that are answers, or not, with special tokens as they are written."""
    names = {END: "<|endoftext|>", 257: "<|im_start|>", TURN: "<|im_end|>"}
    edges = [0, *(np.flatnonzero(np.diff(text.answer.astype(int))) + 1).tolist(), len(text.tokens)]
    runs = []
    for start, end in zip(edges, edges[1:], strict=False):
        run = "".join(names.get(t) or made.tokenizer.decode([t]) for t in text.tokens[start:end].tolist())
        runs.append((run, bool(text.answer[start])))
    return runs


def test_an_answer_is_what_follows_its_beginning_up_to_its_end(tmp_path: Path) -> None:
    made = renderer(tmp_path, CHATML)
    (text,) = made.texts(talk_of(TALK))
    assert shown(made, text) == [
        ("<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("Hello<|im_end|>", True),
        ("\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n", False),
        ("See you<|im_end|>", True),
    ]
    plain = made.tokenizer.encode("".join(run for run, _ in shown(made, text)))
    assert text.tokens.tolist() == plain


def test_what_a_model_sees_before_an_answer_is_what_it_learned(tmp_path: Path) -> None:
    """The tokens before the last answer are those of `Model.chat_prompt`."""
    for number, (template, config) in enumerate([(CHATML, {}), (INST, BEGUN)]):
        made = renderer(tmp_path / str(number), template, **config)
        assert made.config.first == ([257] if config else [])
        (text,) = made.texts(talk_of(TALK[1:]))
        model = Model.__new__(Model)
        model.tokenizer = made.tokenizer
        model.denoiser = type("Denoiser", (), {"config": made.config})()  # type: ignore[assignment]
        messages = [{"role": role, "content": content} for role, content in TALK[1:-1]]
        prompt = [*made.config.first, *Model.chat_prompt(model, messages)]
        last = int(np.flatnonzero(~text.answer)[-1]) + 1
        assert text.tokens[:last].tolist() == prompt
        assert text.tokens[-1] == TURN


def test_a_template_that_shortens_earlier_turns_makes_a_text_of_each_answer(tmp_path: Path) -> None:
    made = renderer(tmp_path, THINKING)
    turns = [
        ("user", "Hi"),
        ("assistant", "<think>hm</think>Hello"),
        ("user", "Bye"),
        ("assistant", "x</think>See you"),
    ]
    one, two = made.texts(talk_of(turns))
    assert shown(made, one) == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("<think>hm</think>Hello<|im_end|>", True),
    ]
    before = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    assert shown(made, two) == [(before + "<|im_start|>assistant\n", False), ("x</think>See you<|im_end|>", True)]
    plain = [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "See you")]
    assert len(made.texts(talk_of(plain))) == 1  # nothing is left out: one text


def test_a_template_that_hides_where_answers_begin_or_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="answers cannot be told from prompts"):
        renderer(tmp_path / "a", BACKWARDS).texts(talk_of(TALK))
    with pytest.raises(InputError, match="two messages at most"):
        renderer(tmp_path / "b", REFUSING).texts(talk_of(TALK))


def test_a_message_that_is_not_to_be_learned_stays_in_the_prompt(tmp_path: Path) -> None:
    made = renderer(tmp_path, CHATML)
    messages = [{"role": role, "content": content} for role, content in TALK]
    messages[2]["weight"] = 0  # type: ignore[assignment]
    (text,) = made.texts(read_row({"messages": messages}))
    assert [run for run, answer in shown(made, text) if answer] == ["See you<|im_end|>"]


def test_a_prompt_and_its_completion_are_texts_without_a_template(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = renderer(tmp_path, CHATML)
    (text,) = made.texts(PromptAndAnswer("ab", "cd"))
    assert shown(made, text) == [("ab", False), ("cd<|endoftext|>", True)]
    (text,) = made.texts(PromptAndAnswer("", "cd<|im_end|>\n"))
    assert shown(made, text) == [("cd<|im_end|>", True)]  # it has an end, and nothing after it is learned
    own = Renderer(tokenizer, tiny_config(tokenizer))
    (text,) = own.texts(PromptAndAnswer("x = ", "<eos>"))
    num = len(tokenizer.encode("x = "))
    assert text.tokens.tolist() == [1, *tokenizer.encode("x = "), *tokenizer.encode("<eos>"), 2]
    assert text.answer.tolist() == [False] * (num + 1) + [True] * (len(text.tokens) - num - 1)


# ---- models without a template ------------------------------------------------------------------------------------


def test_without_a_template_conversations_are_the_server_s_transcripts(tokenizer: Tokenizer) -> None:
    """Each answer is a text of its own, which ends with <eos>, behind exactly what the server sends to such a model."""
    made = Renderer(tokenizer, tiny_config(tokenizer))
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "é"}'}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Add"},
        {"role": "assistant", "content": "I will.", "tool_calls": [call, call]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": "7"},
    ]
    for tools in ([], [tool]):
        row = {"messages": messages, **({"tools": tools} if tools else {})}
        texts = made.texts(read_row(json.loads(json.dumps(row))))
        places = [number for number, one in enumerate(messages) if one["role"] == "assistant"]
        assert len(texts) == len(places) == 3
        for text, place in zip(texts, places, strict=True):
            before = transcript(checked(messages[:place]), tools)
            num = int(np.flatnonzero(text.answer)[0])
            assert text.tokens[:num].tolist() == [1, *tokenizer.encode(before)]
            after = transcript([*checked(messages[: place + 1]), {"role": "user", "content": "x"}], tools)
            answer = tokenizer.decode(text.tokens[num:-1].tolist())
            assert after == f"{before}{answer}\nUser: x\nAssistant:"
            assert text.tokens[-1] == 2 and text.answer[num:].all()


def test_calls_are_learned_as_the_model_writes_them_behind_a_prompt_that_begins_a_thought(tmp_path: Path) -> None:
    """The template writes no thought in the answer, so its text does not begin as the prompt ends."""
    calls = "{% for c in m.tool_calls or [] %}<call={{ c.function.name }}>{{ c.function.arguments | tojson }}</call>"
    template = (
        "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}" + calls + "{% endfor %}<|im_end|>\n"
        "{% endfor -%}{%- if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif -%}"
        "{#- thoughts end with </think> -#}"
    )
    made = renderer(tmp_path, template)
    called = {"type": "function", "function": {"name": "now", "arguments": '{"zone": "a"}'}}
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [called]}]}
    (text,) = made.texts(read_row(row))
    assert shown(made, text)[-1] == ('</think><call=now>{"zone": "a"}</call><|im_end|>', True)


def test_calls_at_once_are_learned_one_by_one_where_a_message_has_one(tmp_path: Path) -> None:
    template = (
        "{%- for m in messages -%}{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call={{ c.function.name }}>{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor -%}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
    )
    made = renderer(tmp_path, template)
    calls = [
        {"id": key, "type": "function", "function": {"name": "now", "arguments": f'{{"zone": "{key}"}}'}}
        for key in ("a", "b")
    ]
    results = [{"role": "tool", "tool_call_id": key, "content": f"at {key}"} for key in ("a", "b")]
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}, *results]}
    (text,) = made.texts(read_row(row))
    written = [(part, answer) for part, answer in shown(made, text) if answer or "at" in part]
    assert written == [
        ('<call=now>{"zone": "a"}</call><|im_end|>', True),
        ("\n<|im_start|>tool\nat a<|im_end|>\n<|im_start|>assistant\n", False),
        ('<call=now>{"zone": "b"}</call><|im_end|>', True),
    ]
