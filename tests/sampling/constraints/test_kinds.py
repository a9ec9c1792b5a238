"""A keyword whose value is of the wrong kind is one error that names the keyword and its place, wherever it stands."""

from __future__ import annotations

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


@pytest.mark.parametrize("keyword", KINDS)
@pytest.mark.parametrize("around", [lambda schema: schema, lambda schema: {"properties": {"p": {"not": schema}}}])
def test_a_value_of_another_kind_is_an_error_that_names_keyword_and_place(keyword: str, around: Any) -> None:
    place = "#" if around({}) == {} else "#/properties/p/not"
    for value in VALUES:
        schema = {keyword: value, **({IN_NEED[keyword]: {}} if keyword in IN_NEED else {})}
        if KINDS[keyword].holds(value):
            try:
                schema_dfa(around(schema), Budget())
            except InputError:  # of this kind, and wrong for another reason
                continue
        else:
            with pytest.raises(InputError, match=f"^{keyword.replace('$', '.')} at {place} must be "):
                schema_dfa(around(schema), Budget())


@pytest.mark.parametrize("schema", [{"dependentRequired": {"a": {}}}, {"prefixItems": 3, "items": {}}, {"nullable": 3}])
def test_a_keyword_that_the_draft_does_not_have_may_hold_anything(schema: Any) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}

    assert schema_dfa(schema, Budget())[0].accepts(b"1")
