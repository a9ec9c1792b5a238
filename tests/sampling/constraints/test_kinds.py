"""A keyword whose value is of the wrong kind is one error that names the keyword and its place, wherever it stands."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import schema_dfa
from daguerre.sampling.constraints.keywords import HANDLERS
from daguerre.sampling.constraints.kinds import KINDS

VALUES: tuple[Any, ...] = (None, {}, {"a": {}}, {"a": 3}, [], [3], [{}], ["a"], "a", 3, -1, 0.5, float("nan"), True)
IN_NEED = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}


def test_every_keyword_that_is_read_has_a_kind() -> None:
    assert KINDS.keys() == HANDLERS.keys()


def test_a_value_of_another_kind_is_an_error_that_names_keyword_and_place(subtests: pytest.Subtests) -> None:
    """Each wrong value of each keyword at the root and below it, and each other value at one of both by turns."""
    for number, (keyword, kind) in enumerate(KINDS.items()):
        beside: Any = {IN_NEED[keyword]: {}} if keyword in IN_NEED else {}
        with subtests.test(keyword):
            for turn, value in enumerate(VALUES, number):
                schema = {keyword: value, **beside}
                places = {"#": schema, "#/properties/p/not": {"properties": {"p": {"not": schema}}}}
                if kind.holds(value):
                    with suppress(InputError):  # of this kind, and wrong for another reason
                        schema_dfa([*places.values()][turn % 2], Budget())
                    continue
                for place, schema in places.items():
                    with pytest.raises(InputError, match=f"^{keyword.replace('$', '.')} at {place} must be "):
                        schema_dfa(schema, Budget())


def test_a_keyword_that_the_draft_does_not_have_may_hold_anything() -> None:
    for schema in ({"dependentRequired": {"a": {}}}, {"prefixItems": 3, "items": {}}, {"nullable": 3}):
        read = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        assert schema_dfa(read, Budget())[0].accepts(b"1"), schema
