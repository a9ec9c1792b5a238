"""What CONTRIBUTING says of adding a policy and a schedule, done as it is written."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import daguerre
from daguerre import Decode
from daguerre.errors import InputError, UnsupportedError
from daguerre.noise.schedule import SCHEDULES
from daguerre.sampling.policies import Confidence, Threshold
from daguerre.train.objectives import Objective

ROOT = Path(__file__).parents[2]


def told(heading: str) -> str:
    """The code under a heading of CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return code


def done(heading: str) -> tuple[dict[str, Any], str, str]:
    """Names that the code makes, what it prints, and what it says that it prints."""
    code, names = told(heading), dict[str, Any]()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    (said,) = re.findall(r'# prints "(.*)"$', code, flags=re.MULTILINE)
    return names, out.getvalue().strip(), said


@pytest.fixture
def schedules() -> Iterator[None]:
    """The table as it was, afterward."""
    before = dict(SCHEDULES)
    yield
    SCHEDULES.clear()
    SCHEDULES.update(before)


def test_a_policy_is_added_as_told() -> None:
    names, printed, said = done("Add a policy")

    assert printed == said
    assert names["result"].usage.mode == "block"


def test_a_schedule_is_added_as_told(schedules: None) -> None:
    names, printed, said = done("Add a schedule")
    schedule, t = SCHEDULES["squared_cosine"](), torch.linspace(0.01, 0.99, 99, dtype=torch.float64)

    assert printed == said
    assert schedule.alpha(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([1, 0], abs=1e-7)
    slope = (schedule.alpha(t + 1e-6) - schedule.alpha(t - 1e-6)) / 2e-6
    assert torch.allclose(schedule.alpha_prime(t), slope, atol=1e-6)
    assert torch.allclose(schedule.weight(t), super(type(schedule), schedule).weight(t))
    assert Objective(layout="infill", schedule="squared_cosine").schedule == "squared_cosine"
    assert names["SquaredCosine"] is SCHEDULES["squared_cosine"]


def test_a_schedule_without_a_weight_of_its_own_is_no_nan_early(schedules: None) -> None:
    names, _, _ = done("Add a schedule")
    plain = type("Plain", (names["SquaredCosine"],), {"weight": names["Schedule"].weight})()
    t = torch.tensor([1e-6, 1e-4, 0.5])

    assert plain.weight(t).tolist() == pytest.approx([*(2 / t)[:2].tolist(), 3.14159265], rel=1e-3)


def test_a_policy_that_is_an_object_is_the_one_of_its_name() -> None:
    model, how = daguerre.load(), {"mode": "block", "block_size": 8, "max_tokens": 24}
    for policy, options in ((Threshold(0.6), {"policy": "threshold", "threshold": 0.6}), (Confidence(4), {"steps": 4})):
        named = model.generate("def mean(values):\n", **how, **({"policy": "confidence"} | options))
        given = model.generate("def mean(values):\n", **how, policy=policy)
        assert (given.text, given.usage.forwards) == (named.text, named.usage.forwards)


def test_a_policy_that_is_an_object_has_its_values_already() -> None:
    with pytest.raises(InputError, match=r"^threshold is not used by policy"):
        Decode(mode="block", policy=Threshold(0.6), threshold=0.5)
    with pytest.raises(InputError, match=r"^unknown policy"):
        Decode(mode="block", policy=Threshold)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^policy is not used in mode .ar."):
        Decode(mode="ar", policy=Confidence(4))
    with pytest.raises(UnsupportedError, match=r"^policy .chain. cannot honor"):
        Decode(mode="block", policy="chain", regex="a+")
