"""Contracts 1, 3, 5, 9 and 10, which hold whatever the numbers are, in both types: the tests of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import CONTEXTS
from contracts.test_contract_01_fixed_positions import *  # noqa: F403
from contracts.test_contract_03_alone import test_threads_running_side_by_side_change_nothing  # noqa: F401
from contracts.test_contract_05_special_tokens import *  # noqa: F403
from contracts.test_contract_09_valid import (  # noqa: F401
    test_a_completion_is_valid_whatever_is_asked,
    test_a_constrained_request_is_a_function_of_its_seed,
    test_every_gap_is_valid_by_itself_and_all_else_verbatim,
)
from contracts.test_contract_10_trace import (  # noqa: F401
    test_a_trace_replays_to_every_canvas_of_the_run,
    test_committed_text_only_grows_and_begins_the_result,
)
from daguerre.model import Model

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def models(request: pytest.FixtureRequest, on_device: Any) -> dict[str, Model]:
    """One model for each context, by name."""
    return {name: on_device(request.param, **facts) for name, facts in CONTEXTS.items()}
