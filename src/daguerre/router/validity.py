"""Whether JSON values are valid by their schemas: a program of its own, since a pattern in a schema can take forever,
and nothing can interrupt it from within.

It reads a JSON list of [schema, value] from its standard input, and its exit status is the answer. It is run as a file,
without the package, so that it starts in about a tenth of a second. A schema is of Draft 2020-12 unless it names
another one in `$schema`; what `$ref` names has to be in the schema itself, and nothing is fetched.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

VALID, INVALID, NO_SCHEMA = 0, 10, 11
MOST_MEMORY = 1 << 30


def status(pairs: list[tuple[Any, Any]]) -> int:
    """VALID if each value is valid by its schema, INVALID if one is not, NO_SCHEMA if a schema is none."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    found = VALID
    for schema, value in pairs:
        kind = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
            if not kind(schema, registry=Registry()).is_valid(value):
                found = INVALID
        except (SchemaError, Unresolvable, RecursionError):
            return NO_SCHEMA
    return found


if __name__ == "__main__":
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    sys.exit(status(json.load(sys.stdin)))
