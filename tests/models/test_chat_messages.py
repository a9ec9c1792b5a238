"""A conversation as its chat template wants it: templates made for each thing that one may not know."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.models.chat_messages import CallStyle, apart, fitted
from daguerre.models.chat_template import ChatTemplate

Json = dict[str, Any]
TURN = "<{{ m.role }}>{{ m.content }}"
CALL = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} ARGUMENTS]{% endfor %}"
AS_JSON = CALL.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
EACH = "{% for m in messages %}BODY{% endfor %}"
USER: Json = {"role": "user", "content": "Hi"}
SYSTEM: Json = {"role": "system", "content": "Be brief."}
ANSWER: Json = {"role": "assistant", "content": "Yes."}
RESULT: Json = {"role": "tool", "tool_call_id": "call_7", "content": "noon"}
TOOL: Json = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def call(content: str | None = "", arguments: Any = '{"zone": "é"}', **more: Any) -> Json:
    made = {"id": "call_7", "type": "function", "function": {"name": "now", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [{**made, **more}]}


def each(body: str) -> str:
    return EACH.replace("BODY", body)


def written(source: str, *messages: Json, tools: list[Json] | None = None) -> str:
    """What a template makes of messages that are fitted to it."""
    template, given = ChatTemplate.of(source), copy.deepcopy(list(messages))
    text = template.render(fitted(given, template.wants(bool(tools))), tools)
    assert given == list(messages), "what the caller gave is as it was"
    return text


def refusing(condition: str, body: str) -> str:
    return each(f"{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}{body}")


RESULT_8: Json = {**RESULT, "tool_call_id": "call_8", "content": "night"}
TWO: Json = call("Well.", {"zone": "a"})
TWO["tool_calls"].append({"id": "call_8", "type": "function", "function": {"name": "later", "arguments": "{}"}})
SAME = "{{ m.tool_call_id == messages[1].tool_calls[0].id }}"
CALL_BY_ID = "{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.arguments }}{% endfor %}"
ID_OF_RESULT = "{{ m.tool_call_id }}"
CALLED = [USER, call(), RESULT]
ALTERNATE = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}"
FIRST = "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}"
AFTER = "{% if m.role != 'system' %}" + TURN + "{% endif %}"
CASES: dict[str, tuple[str, list[Json], str]] = {
    "arguments as an object": (each(TURN + AS_JSON), CALLED, '<user>Hi<assistant>[now {"zone": "é"}]<tool>noon'),
    "arguments as a string": (
        each(TURN + CALL.replace("ARGUMENTS", "{{ c.function.arguments }}")),
        [USER, call(arguments={"zone": "é"})],
        '<user>Hi<assistant>[now {"zone": "é"}]',
    ),
    "arguments that are joined to a text": (
        each(TURN + "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}"),
        CALLED,
        '<user>Hi<assistant>now {"zone": "é"}<tool>noon',
    ),
    "arguments that are read from a string": (
        each(TURN + CALL.replace("ARGUMENTS", "{{ (c.function.arguments | from_json).items() | list }}")),
        CALLED,
        "<user>Hi<assistant>[now [('zone', 'é')]]<tool>noon",
    ),
    "arguments that are no JSON": (
        each(TURN + AS_JSON),
        [USER, call(arguments="{no")],
        '<user>Hi<assistant>[now "{no"]',
    ),
    "calls beside no text": (
        each("{% if m.content is none %}" + AS_JSON + "{% else %}" + TURN + "{% endif %}"),
        [USER, call("Well.")],
        '<user>Hi<assistant>Well.[now {"zone": "é"}]',
    ),
    "no calls": (
        each(TURN),
        [USER, call("Well."), {"role": "tool", "content": "noon"}],
        '<user>Hi<assistant>Well.\n\n<tool_call>{"name":"now","arguments":{"zone":"é"}}</tool_call><tool>noon',
    ),
    "no results": (
        refusing("m.role == 'tool'", TURN + AS_JSON),
        CALLED,
        '<user>Hi<assistant>[now {"zone": "é"}]<user><tool_response>\nnoon\n</tool_response>',
    ),
    "ids of nine characters": (
        refusing("m.tool_calls and m.tool_calls[0].id | length != 9", AS_JSON + SAME + TURN),
        CALLED,
        'False<user>Hi[now {"zone": "é"}]False<assistant>True<tool>noon',
    ),
    "ids with the name": (
        each(CALL_BY_ID + ID_OF_RESULT + TURN),
        [call(), RESULT, call(id="call_8"), {**RESULT, "tool_call_id": "call_8"}],
        'functions.now:0 {"zone": "é"}<assistant>functions.now:0<tool>noon'
        'functions.now:1 {"zone": "é"}<assistant>functions.now:1<tool>noon',
    ),
    "the name of a result": (
        each("{{ m.name }}" + TURN + AS_JSON),
        CALLED,
        '<user>Hi<assistant>[now {"zone": "é"}]now<tool>noon',
    ),
    "one call in a message": (
        refusing("(m.tool_calls or []) | length > 1", TURN + AS_JSON),
        [USER, TWO, RESULT_8, RESULT, ANSWER],
        '<user>Hi<assistant>Well.[now {"zone": "a"}]<tool>noon<assistant>[later {}]<tool>night<assistant>Yes.',
    ),
    "one call in a message, others are left out": (
        each(TURN + "{% for c in (m.tool_calls or [])[:1] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
             "{% endfor %}"),
        [USER, TWO, *({**one, "tool_call_id": None} for one in (RESULT, RESULT_8)), RESULT_8],
        '<user>Hi<assistant>Well.[now {"zone": "a"}]<tool>noon<assistant>[later {}]<tool>night<tool>night',
    ),
    "no system": (refusing("m.role == 'system'", TURN), [SYSTEM, USER, ANSWER], "<user>Be brief.\n\nHi<assistant>Yes."),
    "a system that only users hear": (
        each("{% if m.role == 'user' %}({{ messages[0].content }})" + TURN + "{% endif %}"),
        [SYSTEM],
        "(Be brief.)<user>Be brief.",
    ),
    "a system that no answer may follow": (
        FIRST + refusing("loop.index0 == 1 and m.role == 'assistant' and messages[0].role == 'system'", AFTER),
        [SYSTEM, SYSTEM, ANSWER, USER],
        "<user>Be brief.\n\nBe brief.<assistant>Yes.<user>Hi",
    ),
    "no system, and no turn for it": (
        refusing("m.role == 'system'", TURN),
        [SYSTEM, ANSWER],
        "<user>Be brief.<assistant>Yes.",
    ),
    "a system that is left out": (each(AFTER), [SYSTEM, USER], "<user>Be brief.\n\nHi"),
    "a system at the beginning alone": (
        FIRST + each(AFTER),
        [SYSTEM, {**SYSTEM, "content": "Be kind."}, USER, ANSWER, {**SYSTEM, "content": "Now long."}, USER],
        "(Be brief.\n\nBe kind.)<user>Hi<assistant>Yes.<user>Now long.\n\nHi",
    ),
    "a system at the end": (FIRST + each(AFTER), [USER, ANSWER, SYSTEM], "<user>Hi<assistant>Yes.<user>Be brief."),
    "a system anywhere": (
        each(TURN),
        [USER, SYSTEM, SYSTEM, USER],
        "<user>Hi<system>Be brief.<system>Be brief.<user>Hi",
    ),
    "turns that alternate": (
        each(ALTERNATE + TURN),
        [USER, USER, ANSWER, ANSWER],
        "<user>Hi\n\nHi<assistant>Yes.\n\nYes.",
    ),
    "nothing but turns that alternate": (
        refusing("m.role not in ['user', 'assistant']", ALTERNATE + TURN),
        [SYSTEM, USER, call(), RESULT, RESULT, USER],
        "<user>Be brief.\n\nHi<assistant>"
        '<tool_call>{"name":"now","arguments":{"zone":"é"}}</tool_call><user>'
        "<tool_response>\nnoon\n</tool_response>\n\n<tool_response>\nnoon\n</tool_response>\n\nHi",
    ),
    "no parts": (
        each("{{ '<' + m.content + '>' }}"),
        [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}],
        "<Hi you>",
    ),
    "parts as Python writes them": (
        each(TURN),
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "<user>Hi",
    ),
    "nothing but parts": (each("{% for p in m.content %}{{ p.text }};{% endfor %}"), [USER, ANSWER], "Hi;Yes.;"),
    "thoughts by another name": (
        each("{{ m.thinking }}" + TURN),
        [{**ANSWER, "reasoning_content": "Hm."}],
        "Hm.<assistant>Yes.",
    ),
}  # fmt: skip


def test_each_thing_that_a_template_does_not_know_is_written_in_a_way_that_it_does(subtests: pytest.Subtests) -> None:
    for name, (source, messages, expected) in CASES.items():
        with subtests.test(name):
            assert written(source, *messages) == expected


def test_what_a_template_can_read_is_left_as_it_is() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image"}]}
    own = each(
        "<{{ m.role }}>{{ m.content if m.content is string else m.content | map(attribute='text') | join }}" + AS_JSON
    )
    messages = [SYSTEM, parts, call(arguments={"zone": 1}), {**RESULT, "name": "now"}, SYSTEM, USER, USER]
    template = ChatTemplate.of(own)
    assert fitted(messages, template.wants()) == messages


def test_each_question_is_asked_once_and_only_when_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    template, rendered = ChatTemplate.of(each(TURN + AS_JSON)), list[Any]()
    render = template.render
    monkeypatch.setattr(template, "render", lambda *given, **named: rendered.append(given) or render(*given, **named))
    for _ in range(2):
        fitted([USER, ANSWER], template.wants())
        few = len(rendered)
        fitted(CALLED, template.wants())
    assert few == len(rendered) > 0


def test_tools_are_given_to_templates_that_render_nothing_without(subtests: pytest.Subtests) -> None:
    """A conversation without tools is given none, not even an empty list, and is refused by a template that needs some;
    one that reads "functions", a text, in place of "tools" gets that, and the time.
    """
    needs = "{{ tools | length }}" + each(TURN + AS_JSON)
    assert written(needs, *CALLED, tools=[TOOL]) == '1<user>Hi<assistant>[now {"zone": "é"}]<tool>noon'
    assert written("{{ tools is none }}{{ functions is defined }}", USER) == "TrueFalse"
    older = "{{ functions + datetime[:2] }}" + each(TURN)
    assert '"name": "now"' in written(older, USER, tools=[TOOL])
    for source in (needs, older):
        with subtests.test(source), pytest.raises(InputError):
            written(source, USER)


def test_a_templates_own_lists_grow_and_what_it_is_given_does_not(subtests: pytest.Subtests) -> None:
    own = "{% set n = namespace(l=[]) %}{% for m in messages %}{% set _ = n.l.append(m.role) %}{% endfor %}"
    assert (
        ChatTemplate.of(own + "{{ n.l }}{{ n.l.pop(0) }}{{ n.l }}").render([USER, ANSWER])
        == "['user', 'assistant']user['assistant']"
    )
    for change in (
        *(
            "messages.append(1)",
            "messages.pop()",
            "messages[0].parts.append(1)",
            "messages[0].update(a=1)",
            "tools.pop()",
        ),
        *("[1].clear()", "[1].extend([2])", "{}.update(a=1)", "(messages | list)[0].parts.pop()"),
    ):
        with subtests.test(change), pytest.raises(InputError, match="may not"):
            ChatTemplate.of("{{ " + change + " }}").render([{**USER, "parts": [1]}], [TOOL])


def test_what_yields_values_is_written_as_json() -> None:
    source = "{{ tools | map(attribute='function') | tojson }}"
    assert ChatTemplate.of(source).render([], [TOOL]) == '[{"name": "now", "parameters": {"type": "object"}}]'


def test_how_calls_are_wanted_is_told() -> None:
    assert ChatTemplate.of(each(TURN + AS_JSON)).wants().calls == CallStyle()
    assert ChatTemplate.of(each(TURN)).wants().calls is None


def test_ids_that_are_missing_or_are_no_texts_are_no_error() -> None:
    for key in (None, 7, ["c"]):
        said = {**call(), "tool_calls": [{**call()["tool_calls"][0], "id": key}]}
        text = written(each(TURN + AS_JSON), USER, said, {**RESULT, "tool_call_id": key})
        assert "now" in text and "noon" in text
    without = {**call(), "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": "{}"}}]}
    assert "now" in written(each(TURN + AS_JSON), USER, without, RESULT)


def test_no_content_beside_calls_is_an_empty_one() -> None:
    strict = each("{{ m.content + '' }}" + AS_JSON)
    assert "now" in written(strict, USER, call(None), RESULT)


def test_calls_that_are_sent_one_by_one_stand_before_their_own_results_whatever_their_ids() -> None:
    def order(ids: tuple[Any, Any], results: tuple[Any, Any]) -> list[Any]:
        made = [{**call()["tool_calls"][0], "id": key} for key in ids]
        said = [{"role": "tool", "tool_call_id": key, "content": text} for key, text in zip(results, "ab", strict=True)]
        sent = apart([{"role": "assistant", "content": "", "tool_calls": made}, *said])
        return [message.get("content") or "call" for _, message in sent]

    one_by_one = ["call", "a", "call", "b"]
    assert order(("x", "y"), ("x", "y")) == one_by_one
    assert order((None, None), (None, None)) == one_by_one
    assert order(("x", "x"), ("x", "x")) == one_by_one
    assert order(("x", "y"), (None, None)) == one_by_one
    assert order(("x", "y"), ("y", "x")) == ["call", "b", "call", "a"]
