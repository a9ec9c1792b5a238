"""Reading outcomes and graded answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.errors import DataError
from daguerre.router.choose import BackendState, choose
from daguerre.router.log import config_line, decision_line
from daguerre.router.quality_rows import MOST_WEIGHT, read_outcomes
from routing import backend, config, request


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_equal_texts_without_a_group_are_held_out_together(tmp_path: Path) -> None:
    lines = [{"prompt": text, "outcomes": {"a": 1}} for text in ("x", "y", "x")]
    found = read_outcomes(written(tmp_path / "rows.jsonl", lines))
    assert found.groups[0] == found.groups[2] != found.groups[1] and not found.named.any()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "x", "outcomes": {"a": 2}}', "line 1 .* from 0 to 1, not 2"),
        ('{"prompt": "x", "outcomes": {"a": NaN}}', "line 1 .* from 0 to 1, not nan"),
        ('{"prompt": "x", "outcomes": []}', "line 1 .* must be an object"),
        ('{"outcomes": {"a": 1}}', "line 1 .* neither a prompt nor a body"),
        ('{"prompt": "x"}', "line 1 .* neither outcomes nor a decision"),
        ("[1]", "line 1 .* no JSON object"),
        ("{x}", "line 1 .* no JSON"),
        ('{"prompt": "x", "outc', "line 1 .* no JSON"),
    ],
)
def test_a_wrong_line_is_an_error_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_outcomes(tmp_path / "rows.jsonl")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 99)[:12])
    for name in ("none.jsonl", "cut.gz"):
        with pytest.raises(DataError, match="cannot read"):
            read_outcomes(tmp_path / name)


def logged(
    key: str, chosen: str = "a", propensity: float = 1.0, answered: str | None = None, **more: Any
) -> dict[str, Any]:
    """A line of a router's log."""
    settings, features = config(backend("a"), backend("b")), request("facts")
    decision = choose(features, {"a": BackendState()}, settings)
    line = {"id": key} | decision_line(features, {"a": BackendState()}, decision)
    line["decision"] |= {"backend": chosen, "propensity": propensity}
    return line | {
        "attempts": [{"backend": answered or chosen, "status": 200}],
        "body": {"messages": [{"role": "user", "content": f"question {key}"}]},
        **more,
    }


def test_a_log_gives_grades_with_their_weights(tmp_path: Path) -> None:
    lines = [
        config_line(config(backend("a"), backend("b"))),
        logged("1", grade=1.0, propensity=0.25),
        logged("2", grade=0.5, propensity=0.001),
        logged("3", chosen="b", propensity=0.1),
        {"shadow_of": "3", "backend": "a", "grade": 0.0, "main_grade": 1.0, "grader": "judge"},
        logged("4", grade=1.0, cache="hit"),
        logged("5", answered="b", grade=0.0, propensity=0.5),
        logged("6"),
        {"shadow_of": "6", "backend": "b", "grade": 1.0, "main_grade": None, "grader": "exact"},
        {"shadow_of": "gone", "backend": "b", "grade": 1.0, "main_grade": 1.0, "grader": "judge"},
        logged("7"),
        {"shadow_of": "7", "backend": None, "grade": None, "main_grade": 0.0, "grader": "schema"},
        logged("8", grade=1.0) | {"attempts": [{"backend": "a", "error": "refused"}]},
    ]
    path = written(tmp_path / "log.jsonl", lines)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"id": "9", "dec')
    found = read_outcomes(path)
    assert found.backends == ("a", "b")
    texts = [each.of("user")[0] for each in found.readings]
    assert texts == [f"question {key}" for key in "12357"]
    np.testing.assert_array_equal(found.right, [[1, np.nan], [0.5, np.nan], [0, 1], [np.nan, 0], [0, np.nan]])
    np.testing.assert_array_equal(found.weights, [[4, 0], [MOST_WEIGHT, 0], [1, 1], [0, 1], [1, 0]])
    assert found.unused == {
        "requests that the cache answered": 1,
        "shadows that were only compared (grader exact)": 1,
        "shadows of requests that are not used": 1,
        "requests without a grade": 1,
        "requests that no backend answered": 1,
        "lines that were cut off": 1,
    }


def test_a_log_without_texts_or_without_grades_says_what_to_set(tmp_path: Path) -> None:
    bare = logged("1", grade=1.0)
    del bare["body"]
    with pytest.raises(DataError, match="log_text = true"):
        read_outcomes(written(tmp_path / "bare.jsonl", [bare]))
    with pytest.raises(DataError, match="no graded answers"):
        read_outcomes(written(tmp_path / "plain.jsonl", [logged("1")]))
