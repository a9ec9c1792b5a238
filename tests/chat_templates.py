"""Small chat templates, one of each way in which models write calls."""

from __future__ import annotations

TURNS = """\
{%- for message in messages %}
{%- if message.role == "assistant" %}<|assistant|>{{ answer(message) }}<|end|>
{%- else %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>PROMPT{% endif %}"""
JSON_CALLS = """\
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
LISTED = """\
{{ m.content }}{% if m.tool_calls %}[CALLS][{% for c in m.tool_calls -%}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]{% endif %}"""
NAMED_FIRST = """\
{{ m.content }}{% for c in m.tool_calls or [] -%}
[CALL]{{ c.function.name }}[ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"""
COUNTED = """\
{{ m.content }}{% if m.tool_calls %}<|calls|>{% for c in m.tool_calls -%}
<|call|>functions.{{ c.function.name }}:{{ loop.index0 }}<|args|>{{ c.function.arguments | tojson }}<|done|>
{%- endfor %}<|/calls|>{% endif %}"""
TAGGED = """\
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
<function={{ c.function.name }}>
{% for key, value in c.function.arguments | items -%}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}"""
TYPED = """\
{{ m.content }}{% for c in m.tool_calls or [] -%}
<invoke name="{{ c.function.name }}">{% for key, value in c.function.arguments | items -%}
<arg name="{{ key }}" string="{{ 'true' if value is string else 'false' }}">
{{- value if value is string else value | tojson }}</arg>{% endfor %}</invoke>{% endfor %}"""
PYTHON = """\
{{ m.content }}{% if m.tool_calls %}<|py|>[{% for c in m.tool_calls %}{{ c.function.name }}(
{%- for key, value in c.function.arguments | items -%}
{{ key }}={{ "'" ~ value ~ "'" if value is string else value }}{% if not loop.last %}, {% endif %}{% endfor %})
{%- if not loop.last %}, {% endif %}{% endfor %}]<|/py|>{% endif %}"""
NESTED = """\
{%- macro element(value) %}{% if value is mapping %}{% for k, v in value | items -%}
<{{ k }}>{{ element(v) }}</{{ k }}>{% endfor %}
{%- elif value is string or value is number %}{{ value }}
{%- else %}{% for v in value %}<item>{{ element(v) }}</item>{% endfor %}{% endif %}{% endmacro -%}
{{ m.content }}{% for c in m.tool_calls or [] -%}
<invoke name="{{ c.function.name }}">{{ element(c.function.arguments) }}</invoke>{% endfor %}"""
UNQUOTED = """\
{%- macro bare(value) %}{% if value is mapping %}{{ "{" }}{% for k, v in value | items -%}
{{ k }}:{{ bare(v) }}{% if not loop.last %},{% endif %}{% endfor %}{{ "}" }}
{%- elif value is string %}<|"|>{{ value }}<|"|>
{%- elif value is number or value is none %}{{ value | tojson }}
{%- else %}[{% for v in value %}{{ bare(v) }}{% if not loop.last %},{% endif %}{% endfor %}]{% endif %}{% endmacro -%}
{{ m.content }}{% for c in m.tool_calls or [] -%}
<|call>call:{{ c.function.name }}{{ bare(c.function.arguments) }}<call|>{% endfor %}"""
BARE = """\
{% if m.tool_calls %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters":
{{- " " }}{{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}"""
PLAIN = "{{ m.content }}"


def template(answer: str, prompt: str = "") -> str:
    """A whole template with a way of writing answers; prompt: what a prompt has of an answer."""
    macro = "{%- macro answer(m) %}" + answer + "{% endmacro -%}\n"
    return macro + TURNS.replace("PROMPT", prompt.replace("\n", '{{ "\\n" }}'))


WAYS = {
    "json": template(JSON_CALLS),
    "listed": template(LISTED),
    "named first": template(NAMED_FIRST),
    "counted": template(COUNTED),
    "tagged": template(TAGGED),
    "tagged, thinking": template(TAGGED, "<think>\n"),
    "typed": template(TYPED),
    "python": template(PYTHON),
    "nested": template(NESTED),
    "unquoted": template(UNQUOTED),
    "bare": template(BARE),
    "none": template(PLAIN),
}
"""Whole templates, by the way in which they write calls."""
