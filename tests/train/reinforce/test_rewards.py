"""Functions of modules and files as rewards."""

import pytest

from daguerre.errors import InputError
from daguerre.train.reinforce.rewards import reward_function


def test_a_function_of_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def same(prompt, answer):\n    return prompt == answer\n\ndef odd(prompt, answer):\n    return 1e999\n"
    )
    assert reward_function(f"{file}:same")("a", "a") == 1.0
    assert reward_function(f"{file}:same")("a", "b") == 0.0
    with pytest.raises(InputError, match="finite"):
        reward_function(f"{file}:odd")("a", "b")


def test_a_function_of_a_module():
    assert reward_function("operator:eq")("a", "a") == 1.0


def test_names_that_lead_nowhere(subtests):
    for name in ("", "eq", "operator:", ":eq", "operator:no_such", "no_such_module:eq", "no.py:eq"):
        with subtests.test(name), pytest.raises(InputError, match="reward"):
            reward_function(name)
