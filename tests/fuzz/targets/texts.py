"""Small texts: chat templates, traces, programs of steering, recipes of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from concept_models import CATALOG
from daguerre.decoding.steering import Steering
from daguerre.errors import InputError
from daguerre.models.chat_template import ChatTemplate
from daguerre.trace import Trace
from daguerre.train.recipe import load_recipe, recipe_path
from fuzz.target import Run, Target
from fuzz.targets.checkpoints import scratch

TEMPLATES: tuple[str, ...] = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{{ bos_token }}{%- if tools %}{{ tools | tojson(indent=4) }}{%- endif %}{{ messages | length }}",
    "{% macro one(m) %}{{ m.role ~ ': ' ~ m.content }}{% endmacro %}{{ one(messages[0]) }}{{ strftime_now('%Y') }}",
    "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n ** 2 }}",
    "{{ raise_exception('no') if messages[0]['role'] != 'system' else '' }}{% generation %}x{% endgeneration %}",
    "{% for a in messages[::-1] %}{{ loop.index0 }}{{ a.content.split('x')[-1].strip() }}{% break %}{% endfor %}",
    "{{ 'a' * 10 }}{{ [1, 2] | join(',') }}{{ {'a': 1}.items() | list }}{{ '%s' % messages }}{{ messages is mapping }}",
)
PROGRAMS: tuple[Any, ...] = (
    {"operations": [{"kind": "add", "concepts": [1], "strength": 3.0}]},
    [{"kind": "suppress", "concepts": [2, 14]}, {"kind": "forbid", "concepts": ["loop_for"], "schedule": "fade"}],
    [{"kind": "add", "concepts": [1], "strength": -3, "span": [0, 4]}],
)


def template() -> Run:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "xax", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "content": "b"},
    ]

    def run(data: bytes) -> None:
        found = ChatTemplate.of(data.decode("utf-8", "replace"), {"bos_token": "<s>"})
        assert isinstance(found.render(messages, [{"name": "f", "parameters": {}}]), str)

    return run


def trace() -> Run:
    def run(data: bytes) -> None:
        found = Trace.from_json(data.decode("utf-8", "surrogateescape"))
        assert Trace.from_json(found.to_json()).to_json() == found.to_json()

    return run


def traces() -> list[bytes]:
    from fuzz.models import model

    kinds: list[dict[str, Any]] = [{"mode": "ar"}, {"mode": "block", "revise": 1, "revise_threshold": 0.1}]
    found = [model().generate("a = ", 6, **options).trace for options in kinds]
    return [one.to_json().encode() for one in (*found, model().infill("a", "b", 4).trace)]


def steering() -> Run:
    def run(data: bytes) -> None:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise InputError("not JSON") from None
        Steering.of(value).resolved(CATALOG)
        Steering.from_json(data.decode("utf-8", "replace"))

    return run


def recipe() -> Run:
    path = scratch() / "recipe.toml"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        load_recipe(str(path))

    return run


def recipes() -> list[bytes]:
    return [recipe_path(name).read_bytes() for name in ("tiny", "small", "adapt", "draft", "concepts", "race/mdlm")]


def encoded(values: tuple[Any, ...]) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


TARGETS = (
    Target(name="template", make=template, seeds=lambda: [one.encode() for one in TEMPLATES], cases=300),
    Target(name="trace", make=trace, seeds=traces, cases=300),
    Target(name="steering", make=steering, seeds=encoded(PROGRAMS), cases=300),
    Target(name="recipe", make=recipe, seeds=recipes, cases=100),
)
