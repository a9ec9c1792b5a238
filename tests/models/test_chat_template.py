"""Chat templates: the text of transformers, and what a hostile template cannot do."""

from __future__ import annotations

import json
import resource
from datetime import datetime
from typing import Any

import pytest

import made_tokenizers as mt
from daguerre.errors import DataError, InputError
from daguerre.models import template_limits, template_sandbox
from daguerre.models.chat_template import ChatTemplate
from hostile import returns_within
from pairwise import covering

TURNS = """\
{{ bos_token }}{% for message in messages %}
<|{{ message.role }}|>
{{ message['content'] | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""

SYSTEM = """\
{%- if messages and messages[0].role == 'system' -%}
    {%- set system, rest = messages[0].content, messages[1:] -%}
{%- else -%}
    {%- set system, rest = 'You help.', messages -%}
{%- endif -%}
[SYSTEM]{{ system }}[/SYSTEM]
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must take turns, after ' ~ loop.index0 ~ ' of them') -}}
    {%- endif -%}
    {{- '[USER]' + message.content + '[/USER]' if message.role == 'user' else ' ' + message.content + eos_token -}}
{%- endfor -%}"""

TOOLS = """\
{%- macro described(tool) -%}
- {{ tool.function.name }}: {{ tool.function.parameters | tojson(indent=2) }}
{%- endmacro -%}
{%- if tools %}<tools>
{% for tool in tools %}
{{ described(tool) }}
{% endfor %}
</tools>
{% endif -%}
{%- for message in messages %}
{%- if message.tool_calls is defined and message.tool_calls %}
{%- for call in message.tool_calls %}
{{ '<tool_call>' ~ {'name': call.function.name, 'arguments': call.function.arguments} | tojson ~ '</tool_call>' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
<result>{{ message.content | tojson }}</result>
{%- else %}
{{ message.role | upper }}: {{ message.content }}
{%- endif %}
{%- endfor %}"""

CONTROLS = """\
{% for message in messages %}
{% if message.role == 'system' %}{% continue %}{% endif %}
{% if message.content == 'stop' %}{% break %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ message.content }}{{ '' if loop.last else ',' }}
{% else %}
nothing
{% endfor %}"""

NAMES = """\
{%- set state = namespace(last=-1, texts=[], count=0) -%}
{%- for message in messages[::-1] -%}
  {%- if message.role == 'user' and state.last < 0 -%}
    {%- set state.last = messages|length - 1 - loop.index0 -%}
  {%- endif -%}
  {%- set state.count = state.count + message.content|length -%}
{%- endfor -%}
last {{ state.last }}, {{ state.count }} characters: {{ messages | map(attribute='role') | join(', ') }}
{%- set seen = dict(a=1, **{'b': 2}) %} {{ seen.items() | list }}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}"""

DATES = """\
{%- set today = strftime_now('%d %B %Y') if strftime_now is defined else 'unknown' -%}
Today is {{ today }}.{{ ' ' ~ place if place is defined else '' }}
{%- for message in messages %} {{ message.content }}{% endfor %}"""

PARTS = """\
{%- for message in messages -%}
  {{- '<' ~ message.role ~ '>' -}}
  {%- if message.content is string -%}{{- message.content -}}
  {%- elif message.content is iterable and message.content is not mapping -%}
    {%- for part in message.content -%}
      {%- if part.type == 'text' -%}{{- part.text.split('</think>')[-1].lstrip('\\n') -}}
      {%- else -%}[{{- part['type'] -}}]{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endfor -%}"""

GENERATION = """\
{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% else %}
{{ "%s: %s"|format(message.role, message.content) }}
{%- endif %}
{% endfor %}
{%- call(name) wrapped('x') %}<{{ name }}>{% endcall %}"""
GENERATION = "{% macro wrapped(text) %}{{ caller(text * 3) }}{% endmacro %}" + GENERATION

QUOTES = """\
{%- for message in messages %}
{{ message.content | tojson }} {{ message | tojson(separators=(',', ':'), sort_keys=true) }}
{{ message.content | replace("\\n", " ") | e }}{{ message.content[:3] }}{{ message.get('name', 'nobody') }}
{% endfor %}
{{ documents is none }}{{ tools is none }}{{ add_generation_prompt }}{{ nothing }}{{ 7 // 2 }}{{ 2 ** 5 }}"""

TEMPLATES = {
    "turns": TURNS, "system": SYSTEM, "tools": TOOLS, "controls": CONTROLS, "names": NAMES, "dates": DATES,
    "parts": PARTS, "generation": GENERATION, "quotes": QUOTES,
}  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "<b>é",
        "parameters": {"type": "object", "properties": {"c": {"type": "string"}}},
    },
}
SIMPLE = [
    {"role": "user", "content": " Hello <é> & 'you'\n"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "1 < 2?"},
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "simple": SIMPLE,
    "system": [{"role": "system", "content": "Be brief."}, *SIMPLE],
    "stopped": [*SIMPLE[:2], {"role": "user", "content": "stop"}, SIMPLE[1]],
    "twice": [*SIMPLE[:2], SIMPLE[1]],
    "called": [
        SIMPLE[0],
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"c": "é"}}}]},
        {"role": "tool", "content": '{"t": 1}', "name": "weather"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image"}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "<think>so</think>\n\na cat"}]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    import tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def outcome(render: Any, *args: Any, **options: Any) -> str:
    """What a template writes, or that it does not."""
    try:
        return str(render(*args, **options))
    except Exception as error:
        return f"refused: {'take turns' in str(error)}"


ASKED = covering({"chat": [*CHATS.values()], "prompt": [True, False], "tools": [None, [TOOL], [TOOL, TOOL]]})


def test_the_text_is_that_of_transformers(theirs: Any, subtests: pytest.Subtests) -> None:
    for name in TEMPLATES:
        with subtests.test(name):
            ours, written = ChatTemplate({"default": TEMPLATES[name]}, {"bos_token": "<s>", "eos_token": "</s>"}), set()
            for chat, prompt, tools in map(dict.values, ASKED):
                more = {"place": "Here é", "enable_thinking": False} if tools else {}

                text = outcome(ours.render, chat, tools, add_generation_prompt=prompt, **more)
                options = {"chat_template": TEMPLATES[name], "tokenize": False, "add_generation_prompt": prompt, **more}
                assert text == outcome(theirs.apply_chat_template, chat, tools, **options)
                written.add(text)
            assert len(written - {"refused: False", "refused: True"}) >= 3
            assert name != "system" or "refused: True" in written


def test_named_templates_are_chosen_as_transformers_does() -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
        {"name": "rag", "template": "rag"},
    ]
    template = ChatTemplate.of(named)
    assert template.render([]) == "plain"
    assert template.render([], [TOOL]) == "tools"
    assert template.render([], [TOOL], name="rag") == "rag"
    with pytest.raises(InputError, match="unknown chat template 'rug': did you mean 'rag'"):
        template.render([], name="rug")
    assert ChatTemplate.of([{"name": "only", "template": "one"}]).render([]) == "one"


def test_what_is_no_template_is_refused(subtests: pytest.Subtests) -> None:
    for given in [3, [], ["x"], [{"name": "a"}], [{"template": "a"}], {"a": "b"}]:
        with subtests.test(given=given), pytest.raises(DataError, match="neither a template nor a list"):
            ChatTemplate.of(given)


def test_a_syntax_error_is_one_line_with_its_place() -> None:
    with pytest.raises(DataError, match=r"line 2 of the chat template is not Jinja") as refused:
        ChatTemplate.of("a\n{% if %}").render([])
    assert "\n" not in str(refused.value)


def test_a_template_that_refuses_says_why_in_one_line() -> None:
    with pytest.raises(InputError, match="refuses these messages: no system here") as refused:
        ChatTemplate.of("{{ raise_exception('no system\n  here') }}").render([])
    assert "\n" not in str(refused.value)


def test_a_template_that_fails_is_one_clear_line(subtests: pytest.Subtests) -> None:
    for source in [
        "{{ messages[0].a.b.c }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ nothing() }}",
        "{% include 'x' %}",
    ]:
        with subtests.test(source):
            with pytest.raises(InputError, match="the chat template fails on these messages") as refused:
                ChatTemplate.of(source).render([{"role": "user", "content": "x"}])
            assert "\n" not in str(refused.value)


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ strftime_now.__self__.__class__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ (messages | attr('__class__')).__base__ }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].environ }}",
    "{{ dict.__base__ }}",
    "{{ (raise_exception | attr('func_globals')) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{% import 'os' as os %}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._func.__globals__ }}",
]  # fmt: skip


def test_no_template_reaches_beyond_its_values(subtests: pytest.Subtests) -> None:
    for source in ESCAPES:
        with subtests.test(source):
            messages = [{"role": "user", "content": "x"}]
            text = outcome(ChatTemplate.of(source).render, messages)
            assert text in ("", "refused: False")  # what is hidden may also be undefined, which is written as nothing
            assert messages == [{"role": "user", "content": "x"}]


ENDLESS = [
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% for a in range(100000) %}{% if range(100000) | list %}{% endif %}{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n %}{% for x in [1, 2] %}{{ m(n - 1) }}{% endfor %}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for a in range(90000) recursive %}{{ loop(range(90000)) }}{% endfor %}",
    "{% for a in messages[0].content * 200000 %}{% for b in messages[0].content * 200000 %}{% endfor %}{% endfor %}",
    "{% for a in range(1000) | map('string') %}{% for b in range(2000) | map('string') %}{% endfor %}{% endfor %}",
]  # fmt: skip


def test_an_endless_template_ends_in_an_error(subtests: pytest.Subtests) -> None:
    for source in ENDLESS:
        with (
            subtests.test(source),
            returns_within(60),
            pytest.raises(InputError, match=r"more than (500,000 steps|10 seconds)|calls itself too often"),
        ):
            ChatTemplate.of(source).render([{"role": "user", "content": "abc"}])


def test_a_huge_value_is_not_made(subtests: pytest.Subtests) -> None:
    for source in ["{{ 'a' * 10 ** 11 }}", "{{ 10 ** 11 * [1] }}", "{{ 2 ** (10 ** 10) }}", "{{ range(10 ** 9) }}"]:
        with subtests.test(source), pytest.raises(InputError, match=r"chat template (does what it may not|fails)"):
            ChatTemplate.of(source).render([])


def test_an_endless_text_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_LENGTH", 1000)
    template = ChatTemplate.of("{% for a in range(n) %}0123456789{% endfor %}")
    assert len(template.render([], n=100)) == 1000
    with pytest.raises(InputError, match="longer than 1,000 characters"):
        template.render([], n=101)


def test_each_rendering_has_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_STEPS", 20)
    template = ChatTemplate.of("{% for a in messages %}.{% endfor %}")
    for _ in range(5):
        assert template.render([{}] * 20) == "." * 20
    with pytest.raises(InputError, match="more than 20 steps"):
        template.render([{}] * 21)


def test_the_time_can_be_given() -> None:
    now = datetime(2024, 2, 29, 13, 5)
    assert ChatTemplate.of("{{ strftime_now('%d %b %Y %H:%M') }}").render([], now=now) == "29 Feb 2024 13:05"


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(InputError, match="messages must be JSON values, not object"):
        ChatTemplate.of("x").render([{"role": object()}])
    with pytest.raises(InputError, match="thing must be JSON values, not set"):
        ChatTemplate.of("x").render([], thing={1})


def test_a_subclass_of_a_string_brings_no_methods_along() -> None:
    class Shouting(str):
        def shout(self) -> str:
            return "ESCAPED"

    template = ChatTemplate.of("{{ messages[0].content }}{{ messages[0].content.shout }}")
    assert template.render([{"content": Shouting("x")}]) == "x"


def test_the_template_of_a_tokenizer_knows_its_special_tokens() -> None:
    values = json.loads(mt.made("byte_level").to_bytes())
    tokenizer = mt.PublishedTokenizer(json.dumps(values), mt.config(chat_template=TURNS))
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render(SIMPLE[:1])
    assert text == "<|begin|><|user|>\nHello <é> & 'you'<|end|>\n<|assistant|>"
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_id and tokenizer.eos_id in ids


def test_a_template_that_is_nested_too_deeply_is_refused(subtests: pytest.Subtests) -> None:
    for source in [
        "{% for a in [1] %}" * 30 + "x" + "{% endfor %}" * 30,
        "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
        "{% if 1 %}" * 500 + "x" + "{% endif %}" * 500,
    ]:
        with subtests.test(source[:20]), pytest.raises(DataError, match="nested too deeply"):
            ChatTemplate({"default": source}).render([{"role": "user", "content": "a"}])


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="now must be a datetime, not 'x'"):
        ChatTemplate({"default": ""}).render([], now="x")  # type: ignore[arg-type]


HOSTILE = (
    *("{{ 'a'.center(10**9) }}", "{{ 'a'.ljust(2 * 10**9) }}", "{{ '1'.zfill(2 * 10**9) }}", "{{ 'a'|center(10**9) }}"),
    *("{{ '%1000000000d'|format(1) }}", "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}"),
    *("{{ '{:>1000000000}'.format(1) }}", "{{ '{:>{}}'.format(1, 1000000000) }}", "{{ [1]|batch(10**9, 0)|list }}"),
    *("{{ [1]|slice(10**9)|list }}", "{{ ('a\n' * 1000000)|indent(10**6) }}", "{{ [[1]]|tojson(indent=10**9) }}"),
    "{% set n = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{{ ('a' ~ messages|length)" + "|join('ab')" * 40 + " }}",
    "{{ 'ab'" + "|join(',')" * 40 + " }}",
    "{% set n = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=[1] * 1000) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    *("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}", "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}"),
    *("{{ ('x' * 1000000).join(range(9999)|map('string')|list) }}", "{{ (range(99999)|list)|join('x' * 1000000) }}"),
    *("{{ ('\t' * 1000000).expandtabs(1000000) }}", "{{ ('a ' * 1000000)|wordwrap(1, wrapstring='x' * 100000) }}"),
    *("{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}", "{{ ([[1] * 1000] * 5000)|sum(start=[]) }}"),
    *("{{ 1.5|round(10**9, 'ceil') }}", "{% for i in range(9999) %}{% set x = 7 ** 3000000 %}{% endfor %}"),
    "{% set x %}{% for i in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}{% endset %}",
    "{% macro f() %}{% for i in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}{% endmacro %}{% set y = f() %}",
)


def test_no_step_makes_more_than_it_may(subtests: pytest.Subtests) -> None:
    for source in HOSTILE:
        with subtests.test(source[:80]):
            began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with (
                returns_within(60),
                pytest.raises(
                    InputError, match=r"it may not: (the result|a number|a format|a value|it makes|sum|join|wordwrap)"
                ),
            ):
                ChatTemplate({"default": source}).render([])
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 400 << 10, "KiB"


def test_what_templates_do_stays_what_it_was() -> None:
    source = "{{ 1 ~ 'a' ~ none ~ [2] }}{{ '%s-%d' % ('x', 3) }}{{ '{:,}'.format(123456789) }}{{ [1] + [2] }}"
    source += "{{ 'ab'|center(6) }}|{{ ['x', 'y']|join(', ') }}{{ {'a': 1}|tojson(indent=4) }}{{ [1, 2]|sum }}"
    said = ChatTemplate({"default": source}).render([])
    assert said == "1aNone[2]x-3123,456,789[1, 2]  ab  |x, y" + '{\n    "a": 1\n}' + "3"


def test_a_rendering_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", -1.0)
    with pytest.raises(InputError, match="takes more than -1 seconds"):
        ChatTemplate({"default": "{% for a in [1] %}{% endfor %}"}).render([])
