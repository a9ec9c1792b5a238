"""How a model writes calls and thoughts, found from small templates of each kind, written and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_templates import WAYS, template
from daguerre import ChatFormat, DaguerreError
from daguerre.models.chat_format.description import BareObject, JsonArguments, NestedTags, Slot, Tags
from daguerre.models.chat_format.news import message_of

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "maybe": {"type": ["number", "null"]},
        "inner": {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "string"}}}},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": PARAMETERS}}
    for name in ("set_alarm", "look-up")
]
ARGUMENTS = {"text": "2 'é' \"😀\"\n\n<b> \\n {x}, y=1)", "count": -3, "inner": {"deep": ["a b", "c\n"]}}


def call(name: str, arguments: Any, key: str = "abcdef123") -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def plain(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Content, thought and calls of a message."""
    calls = [one["function"] for one in message.get("tool_calls", ())]
    made = [(one["name"], json.loads(one["arguments"])) for one in calls]
    return message["content"], message.get("reasoning_content", ""), made


def in_pieces(form: ChatFormat, pieces: list[str]) -> dict[str, Any]:
    reader = form.reader(TOOLS)
    news = [one for piece in pieces for one in reader.feed(piece)]
    return message_of([*news, *reader.feed("", last=True)])


def test_what_is_written_is_read_back_wherever_it_is_cut(subtests: pytest.Subtests) -> None:
    calls = [call("set_alarm", ARGUMENTS), call("look-up", {}, "abcdef124")]
    for name, source in WAYS.items():
        form = ChatFormat(source)
        thinks = name == "tagged, thinking"
        messages = [{"content": "Well, yes."}, {"content": "", "tool_calls": calls[:1]}]
        if name != "bare":
            messages += [{"content": "Now.", "tool_calls": calls}]
        if thinks:
            messages += [{"content": "", "tool_calls": calls, "reasoning_content": "So,\nand so."}]
        for given in messages:
            message = {"role": "assistant", **given}
            with subtests.test(way=name, message=message):
                text = form.write(message)
                assert plain(form.read(text, TOOLS)) == plain(message)
                for cut in range(len(text)) if given is messages[-1] else ():
                    assert plain(in_pieces(form, [text[:cut], text[cut:]])) == plain(message)
                assert plain(in_pieces(form, list(text))) == plain(message)


def test_an_answer_follows_its_prompt_as_the_template_has_it(subtests: pytest.Subtests) -> None:
    asked = [{"role": "user", "content": "Hi"}]
    for name in set(WAYS) - {"none"}:
        thought = {"reasoning_content": "Hm."} if name.startswith("tagged") else {}
        answer = {"role": "assistant", "content": "", "tool_calls": [call("set_alarm", ARGUMENTS)], **thought}
        with subtests.test(way=name):
            form = ChatFormat(WAYS[name])
            whole = form.render([*asked, answer], TOOLS, add_generation_prompt=False)
            assert form.render(asked, TOOLS) + form.write(answer, TOOLS) == whole


def test_each_way_of_writing_calls_is_found() -> None:
    forms = {name: ChatFormat(source).form for name, source in WAYS.items()}
    calls = {name: form.calls for name, form in forms.items() if form.calls is not None}
    kinds = {name: type(one.arguments) for name, one in calls.items()}
    assert kinds == dict.fromkeys(WAYS, JsonArguments) | {
        "tagged": Tags,
        "tagged, thinking": Tags,
        "typed": Tags,
        "python": Tags,
        "nested": NestedTags,
        "unquoted": BareObject,
    }
    assert {forms[name].source for name in WAYS} == {"derived", "assumed"}
    assert forms["none"].source == "assumed"
    assert calls["listed"].separator == ", "
    assert [part for part in calls["counted"].parts if isinstance(part, Slot)] == [
        Slot.NAME,
        Slot.INDEX,
        Slot.ARGUMENTS,
    ]
    assert [part for part in calls["named first"].parts if isinstance(part, Slot)][1] is Slot.ID
    assert not calls["bare"].several
    thinking = forms["tagged, thinking"].thinking
    assert thinking is not None
    assert (thinking.open, thinking.close) == ("<think>", "</think>")


def test_what_a_template_loses_is_found() -> None:
    losses = {name: set(ChatFormat(source).form.losses) for name, source in WAYS.items()}
    assert "2 and '2'" in losses["tagged"]
    assert not losses["typed"] & {"2 and '2'", "true and 'true'", "null and 'null'"}
    assert losses["json"] == {"thoughts before calls", "thoughts before text"}
    assert "calls after the first" in losses["bare"]
    assert "text beside calls" in losses["bare"]


def test_schemas_decide_types_and_without_them_literals_do() -> None:
    form = ChatFormat(WAYS["tagged"])
    text = form.write({"content": "", "tool_calls": [call("set_alarm", {"text": "2", "count": 2, "maybe": None})]})
    assert plain(form.read(text, TOOLS))[2] == [("set_alarm", {"text": "2", "count": 2, "maybe": None})]
    assert plain(form.read(text))[2] == [("set_alarm", {"text": 2, "count": 2, "maybe": None})]


def test_a_call_while_thinking_is_open_is_a_call_and_ends_the_thought() -> None:
    form = ChatFormat(WAYS["tagged, thinking"])
    called = "<tool_call>\n<function=look-up>\n</function>\n</tool_call>"
    assert plain(form.read(f"So I look.\n{called}<|end|>", TOOLS)) == ("", "So I look.", [("look-up", {})])
    told = "I could write <tool_call> and then think on.\n</think>\n\nNo."
    assert plain(form.read(told, TOOLS)) == ("No.", "I could write <tool_call> and then think on.", [])


def test_tags_that_are_quoted_in_an_answer_are_text() -> None:
    form = ChatFormat(WAYS["tagged, thinking"])
    told = "Some models write a <think> tag first, then </think> and the answer."
    assert plain(form.read(f"Hm.\n</think>\n\n{told}<|end|>", TOOLS)) == (told, "Hm.", [])


def test_what_is_no_json_is_written_as_some() -> None:
    tagged = "<tool_call>\n<function=set_alarm>\n<parameter=count>\n1e999\n</parameter>\n</function>\n</tool_call>"
    called = ChatFormat(WAYS["tagged"]).read(tagged)["tool_calls"][0]["function"]
    assert json.loads(called["arguments"], parse_constant=pytest.fail) == {"count": "1e999"}
    nothing = ChatFormat(WAYS["json"]).read('<tool_call>\n{"name": "set_alarm"}\n</tool_call>')
    assert nothing["tool_calls"][0]["function"]["arguments"] == "{}"


def test_bare_json_is_a_call_only_if_it_stays_one(subtests: pytest.Subtests) -> None:
    form = ChatFormat(WAYS["bare"])
    for text in (
        '{"name": "Ann", "age": 3}',
        '{"name": "set_alarm", "age": 3}',
        '{"name": "other", "parameters": {}}',
        '{"name": "set_alarm", "parameters": {} and so on',
        "{ not JSON }",
    ):
        with subtests.test(text=text):
            assert plain(form.read(text, TOOLS)) == (text, "", [])
            assert plain(in_pieces(form, list(text))) == (text, "", [])
    called = '{"name": "set_alarm", "parameters": {"count": 1}}'
    assert plain(in_pieces(form, list(called))) == ("", "", [("set_alarm", {"count": 1})])


def test_white_space_and_the_order_of_members_may_differ(subtests: pytest.Subtests) -> None:
    form = ChatFormat(WAYS["json"])
    for text in (
        '<tool_call>{"name":"set_alarm","arguments":{"count":1}}</tool_call>',
        '<tool_call>\n\n{"arguments": {"count": 1}, "name": "set_alarm"}\n</tool_call>\n',
        '<tool_call>\n[{"name": "set_alarm", "arguments": "{\\"count\\": 1}"}]</tool_call>',
        '<tool_call>\n{"id": 3, "name": "set_alarm", "arguments": {"count": 1}}',
        '<tool_call>\n{{"name": "set_alarm", "arguments": {"count": 1}}}\n</tool_call>',
        '<tool_call>\n{{"name": "set_alarm", "arguments": {"count": 1}}\n</tool_call>',
    ):
        with subtests.test(text=text):
            assert plain(form.read(text, TOOLS)) == ("", "", [("set_alarm", {"count": 1})])


def test_a_call_that_is_cut_off_has_what_there_is_of_it() -> None:
    message = ChatFormat(WAYS["json"]).read('Hm. <tool_call>\n{"name": "set_alarm", "arguments": {"count": ', TOOLS)
    assert message["tool_calls"][0]["function"] == {"name": "set_alarm", "arguments": '{"count": '}


def test_what_is_told_is_told_once_whatever_a_call_turns_into(subtests: pytest.Subtests) -> None:
    """A call whose arguments are none is text; so is what is wrong behind a good one, which stays a call."""
    form, good = ChatFormat(WAYS["json"]), '{"name":"look-up","arguments":{"a":1}}'
    for wrong in ("5", "nope", '"x', '"\\q"', "", "true"):
        text = f'One.<tool_call>\n{{"name":"look-up","arguments":{wrong}}}\n</tool_call> Two.'
        for cut in (0, *range(10, len(text), 7)):
            with subtests.test(wrong=wrong, cut=cut):
                message = in_pieces(form, [text[:cut], text[cut:]])
                assert plain(message)[2] == [] and message["content"] == text
    for wrong in ('{"x":1}', '{"name":"look-up","arguments":5}', "{oh"):
        text = f"One.<tool_call>\n{good}, {wrong}\n</tool_call> Two."
        for cut in (0, *range(10, len(text), 7)):
            with subtests.test(second=wrong, cut=cut):
                content, _, calls = plain(in_pieces(form, [text[:cut], text[cut:]]))
                assert calls == [("look-up", {"a": 1})]
                assert content.count("One.") == content.count(wrong) == content.count("Two.") == 1
    counted = ChatFormat(WAYS["counted"])
    text = "One.<|calls|><|call|>functions.look-up:0<|args|>nope<|done|><|/calls|> Two."
    assert in_pieces(counted, [text])["content"] == text


def test_a_template_that_writes_no_calls_has_those_of_others() -> None:
    form = ChatFormat(WAYS["none"])
    text = '{"name": "set_alarm", "arguments": {"count": 1}}'
    assert plain(form.read(text, TOOLS))[2] == [("set_alarm", {"count": 1})]
    assert plain(form.read(f"<tool_call>{text}</tool_call>", TOOLS))[2] == [("set_alarm", {"count": 1})]


def test_answers_in_channels_are_read_whatever_the_order_of_their_headers(subtests: pytest.Subtests) -> None:
    answer = """\
{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif -%}
{% if m.tool_calls %} to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}{% else %}<|channel|>final<|message|>{{ m.content }}{% endif %}"""
    form = ChatFormat(template(answer))
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for head in (" to=functions.set_alarm<|channel|>commentary json", "<|channel|>commentary to=functions.set_alarm "):
        text = f'{thought}{head}<|message|>{{"count": 1}}<|call|>'
        with subtests.test(head=head):
            assert plain(form.read(text, TOOLS)) == ("", "Hm.", [("set_alarm", {"count": 1})])
            assert plain(in_pieces(form, list(text))) == ("", "Hm.", [("set_alarm", {"count": 1})])
    assert plain(form.read(f"{thought}<|channel|>final<|message|>Yes.<|return|>")) == ("Yes.", "Hm.", [])
    assert form.form.source.startswith("named")


def test_what_is_no_template_is_refused() -> None:
    with pytest.raises(DaguerreError, match="not Jinja"):
        ChatFormat("{% if %}").form  # noqa: B018


def test_calls_behind_a_python_tag_are_read() -> None:
    """Llama 3's, of tools that are built in; an object of JSON behind the tag is a call as without it."""
    source = (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
        "{% if builtin_tools is defined and f.name in builtin_tools %}"
        """{{ "<|python_tag|>" + f.name + ".call(" }}{% for k, v in f.arguments | items %}"""
        """{{ k + '="' + v + '"' }}{% endfor %}{{ ")" }}{% else %}"""
        """{{ '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}' }}{% endif %}<|eot_id|>"""
        "{% else %}{{ m.content }}<|eot_id|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    )
    form = ChatFormat(source)
    for text, made in (
        ("<|python_tag|>web_search.call(query=\"2 'é' (x)\")", [("web_search", {"query": "2 'é' (x)"})]),
        ('<|python_tag|>web_search.call(query="x", num=3)<|eot_id|>', [("web_search", {"query": "x", "num": 3})]),
        ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}<|eot_id|>', [("f", {"a": 1})]),
        ('{"name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})]),
    ):
        assert plain(form.read(text)) == ("", "", made), text
        reader, news = form.reader(), []
        for place, letter in enumerate(text, 1):
            news += reader.feed(letter, place == len(text))
        assert plain(message_of(news)) == ("", "", made), text
    for text in ("print(2)", 'web_search.call("x", num=3)', 'web_search.call("x")', "requests.call(url)\nprint(1)"):
        assert plain(form.read("<|python_tag|>" + text)) == (text, "", []), "other code is a text"
