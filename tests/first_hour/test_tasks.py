"""The twenty-two tasks of a newcomer's first hour, and the tests that do each of them with real processes."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent
TASKS = {
    "complete": "test_files.test_a_file_is_completed_at_a_place",
    "infill by file": "test_files.test_a_gap_in_a_file",
    "known length": "test_newcomer.test_a_gap_of_known_length",
    "edit and apply": "test_files.test_a_difference_is_applied_by_git_and_patch",
    "JSON and a tool call": "test_newcomer.test_json_and_a_tool_call",
    "regex and choices": "test_newcomer.test_regex_and_choices",
    "watch": "test_watch.test_the_text_is_drawn_and_standard_output_is_what_it_was",
    "picture": "test_newcomer.test_a_picture",
    "stream": "test_newcomer.test_a_stream_in_python",
    "choose a mode": "test_newcomer.test_choosing_a_mode",
    "score": "test_score.test_each_line_has_its_bits_and_wrong_ones_are_marked",
    "decide": "test_newcomer.test_a_decision",
    "fine-tune and compare": "test_train.test_adapting_says_everything_within_eighty_columns",
    "evaluate": "test_eval.test_a_killed_evaluation_goes_on",
    "train tiny": "test_train.test_a_first_model_from_a_folder",
    "load a published layout and chat": "test_published.test_loading_and_chatting",
    "serve and call it from curl, a client and an editor's plugin": "test_newcomer.test_curl",
    "steer and explain": "test_newcomer.test_explaining_and_steering",
    "route": "test_newcomer.test_routing",
    "extend by a policy": "test_extend.test_a_policy_is_added_as_told",
    "extend by a schedule": "test_extend.test_a_schedule_is_added_as_told",
    "install from a wheel": "test_install.test_from_a_wheel",
}


def test_every_task_has_its_test() -> None:
    assert len(TASKS) == 22
    for task, place in TASKS.items():
        module, name = place.split(".")
        tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], task
