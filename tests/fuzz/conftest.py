"""How many cases Hypothesis makes: few and always the same in the suite, many and new ones with `make fuzz`."""

from __future__ import annotations

import sys

from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
settings.register_profile(
    "suite", max_examples=120, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET
)
settings.register_profile("fuzz", max_examples=3_000, deadline=None, suppress_health_check=QUIET, print_blob=True)
if "--hypothesis-profile" not in " ".join(sys.argv):
    settings.load_profile("suite")
