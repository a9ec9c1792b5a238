"""The classifier of step types: what is certain, the weights' file, and how often it is right."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from daguerre.errors import CheckpointError
from daguerre.router.config import STEPS
from daguerre.router.reading import read, strings
from daguerre.router.step_loops import loop_of, parts_of
from daguerre.router.step_words import FOUND, PATTERNS, alternatives, form_of, holding, literal
from daguerre.router.steps import (
    FACTS,
    PLACES,
    ROWS,
    SETTINGS_HASH,
    StepModel,
    _rows,
    classify,
    facts,
    features,
    likeliest,
    load_steps,
    matrix,
    parse_steps,
)

ROOT = Path(__file__).parents[2]
ASSET = ROOT / "src" / "daguerre" / "assets" / "router" / "steps.npz"
RECORDED = ROOT / "tests" / "data" / "routing" / "recorded.jsonl.gz"
BLIND = RECORDED.with_name("recorded_blind.jsonl.gz")
EDITORS = RECORDED.with_name("recorded_editors.jsonl.gz")
PRIVATE = ("api_key", "127.0.0.1", "localhost", "/home/", "/root", "/tmp", "Bearer")
SCORES = json.loads((ROOT / "recipes" / "steps" / "scores.json").read_text(encoding="utf-8"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def share_right(some: list[dict[str, Any]]) -> float:
    """How many of the rows the package's model gets right."""
    right = sum(likeliest(classify(read(row["operation"], row["body"]), row["body"])) == row["step"] for row in some)
    return right / len(some)


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    return rows_of(RECORDED)


@pytest.fixture(scope="module")
def blind() -> list[dict[str, Any]]:
    return rows_of(BLIND)


@pytest.fixture(scope="module")
def editors() -> list[dict[str, Any]]:
    return rows_of(EDITORS)


@pytest.fixture(scope="module")
def generator() -> Any:
    sys.path.insert(0, str(ROOT / "recipes" / "steps"))
    try:
        import rows
    finally:
        sys.path.pop(0)
    return rows


@pytest.fixture(scope="module")
def few_rows(generator: Any) -> list[dict[str, Any]]:
    """Training rows, 8 of each family."""
    return list(generator.rows(each=8))


@pytest.fixture(scope="module")
def many_rows(generator: Any) -> list[dict[str, Any]]:
    """Training rows, 30 of each family."""
    return list(generator.rows(each=30))


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def of(body: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return features(read("chat", body), body)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def saved(model: StepModel, folder: Path) -> bytes:
    path = folder / "steps.npz"
    model.save(path)
    return path.read_bytes()


def rewritten(**arrays: np.ndarray) -> bytes:
    """The package's file with other arrays."""
    own = load_steps()
    file = io.BytesIO()
    np.savez(file, **({"weights": own.weights, "bias": own.bias, "settings": np.array(SETTINGS_HASH)} | arrays))
    return file.getvalue()


@pytest.mark.parametrize(
    ("operation", "body", "step"),
    [
        ("decisions", {"state": "x", "questions": {"q": {"type": "noul"}}}, "classify"),
        ("fim", {"prompt": "def f("}, "infill"),
        ("edit", chat("x"), "edit"),
        ("embeddings", {"input": "x"}, "look_up"),
        ("completions", {"prompt": "a", "suffix": "b"}, "infill"),
    ],
)
def test_where_the_request_says_its_type_nothing_is_predicted(operation: str, body: dict[str, Any], step: str) -> None:
    assert classify(read(operation, body), body) == {name: float(name == step) for name in STEPS}


@pytest.mark.parametrize(
    "body", [{}, None, [], chat(""), chat("\ud800 x"), {"messages": [{"role": "tool"}]}, chat("x" * 10**6)]
)
def test_every_body_has_probabilities_that_add_up(body: object) -> None:
    found = classify(read("chat", body), body)

    assert tuple(found) == STEPS
    assert all(0 <= one <= 1 for one in found.values())
    assert sum(found.values()) == pytest.approx(1)


def test_probabilities_are_the_softmax_of_the_sums_of_weights() -> None:
    body = chat("Summarize this text: the boat was late.", max_tokens=50)
    model = load_steps()
    row = matrix([("chat", body)]).toarray()[0]

    scores = row @ model.weights.astype(np.float64) + model.bias
    expected = np.exp(scores) / np.exp(scores).sum()

    assert list(model.of(read("chat", body), body).values()) == pytest.approx(expected.tolist(), abs=1e-4)


def test_features_are_rows_of_the_table_and_facts_have_a_row_each() -> None:
    assert len(set(FACTS)) == len(FACTS)
    assert sorted(PLACES.values()) == list(range(ROWS, ROWS + len(FACTS)))
    rows, values = of(chat("Plan a trip to Lisbon, then book it."))
    assert rows.min() >= 0 and rows.max() < ROWS + len(FACTS)
    assert len(rows) == len(values) and (values > 0).all()


def test_facts_say_what_the_structure_is() -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}]}
    body = {
        "messages": [{"role": "user", "content": "Find it, then tell me."}, called, {"role": "tool", "content": "x"}]
    }
    reading = read("chat", body | {"tools": [tool("find")], "max_tokens": 200})

    found = facts(reading, "Find it, then tell me.", "")

    assert {"last tool", "tools 1", "results 1", "more to do", "tools and last tool", "limit over 100"} <= set(found)
    assert not {"last user", "tools 2", "results 2", "limit over 300", "format json_object"} & set(found)


@pytest.mark.parametrize(
    ("properties", "holds"),
    [
        ({"label": {"enum": ["a", "b"]}}, {"form one", "form choice", "form labels"}),
        ({"label": {"$ref": "#/$defs/Kind"}}, {"form one", "form choice", "form labels"}),
        ({"ok": {"type": "boolean"}, "why": {"type": "string"}}, {"form two", "form yes or no", "form labels"}),
        ({"steps": {"type": "array"}}, {"form one", "form list", "form list alone"}),
        ({"answer": {"type": "string"}}, {"form one", "form text alone"}),
        ({"name": {"type": "string"}, "age": {"type": "integer"}}, {"form two", "form number", "form record"}),
        ({key: {"anyOf": []} for key in "abcde"}, {"form three", "form five", "form record"}),
    ],
)
def test_facts_say_what_object_the_answer_has_to_be_on_every_surface(
    properties: dict[str, Any], holds: set[str]
) -> None:
    schema = {"type": "object", "properties": properties, "$defs": {"Kind": {"enum": ["a", "b"]}}}
    named = {"name": "Held", "schema": schema}
    bodies: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"text": {"format": {"type": "json_schema", **named}}},
        {"tools": [{"type": "function", "function": {"name": "Held", "parameters": schema}}]},
        {"tools": [{"type": "function", "name": "Held", "parameters": schema}]},
    ]

    for body in bodies:
        found, names = form_of(body)
        assert {fact for fact in found if fact.startswith("form ")} == holds
        assert names.startswith("Held ") and next(iter(properties)) in names


def test_a_tool_that_holds_is_told_from_one_that_acts() -> None:
    assert form_of({"tools": [tool("Invoice", total={})], "tool_choice": "required"})[0][:2] == [
        "tool noun",
        "tool forced",
    ]
    assert form_of({"tools": [tool("sendMail", to={})]})[0][:2] == ["some tool acts", "tool acts"]
    assert form_of({"tools": [tool("final_result", to={}), tool("get_time")]}) == (["some tool acts"], "")
    assert form_of({"tools": "x", "response_format": [], "text": {"format": 3}}) == form_of(None) == ([], "")


def looped(ask: str, *calls: tuple[str, str], tools: tuple[str, ...]) -> set[str]:
    """Facts about a loop: the user's message, calls with their results, and the tools."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": ask}]
    for name, result in calls:
        messages.append({"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": "{}"}}]})
        messages.append({"role": "tool", "content": result})
    body = {"messages": messages, "tools": [tool(name) for name in tools]}
    return set(loop_of(read("chat", body), body, ask))


def test_what_is_left_in_a_loop_of_tools_is_told_from_what_was_called() -> None:
    ask = "Find the parcel of Mia, then refund it."
    tools = ("find_parcel", "refund_parcel")

    before = looped(ask, tools=tools)
    between = looped(ask, ("find_parcel", "id 3"), tools=tools)
    after = looped(ask, ("find_parcel", "id 3"), ("refund_parcel", "error: denied"), tools=tools)

    assert before == set()
    assert {"left acts", "left act named", "asks not acted", "parts two", "parts left", "result short"} <= between
    assert not {"called all", "called acts last", "asks and acted", "parts done", "result failed"} & between
    assert {"called all", "called acts last", "asks and acted", "parts done", "result failed"} <= after
    assert not {"left acts", "left named", "asks not acted", "parts left", "called twice"} & after
    assert "called twice" in looped(ask, ("find_parcel", "a"), ("find_parcel", "b"), tools=tools)


def test_a_loop_that_stands_in_texts_is_read_as_well() -> None:
    told = "> Tool Name: find_parcel\nTool Description: x\n\n> Tool Name: refund_parcel\nTool Description: y"
    turns = [("user", "Find the parcel, then refund it."), ("assistant", "Action: find_parcel\nAction Input: {}")]
    turns += [("user", "Observation: id 3")]
    body = {"messages": [{"role": "system", "content": told}, *({"role": a, "content": b} for a, b in turns)]}

    found = set(loop_of(read("chat", body), body, turns[0][1]))

    assert {"loop in text", "left acts", "left act named", "parts left", "asks not acted"} <= found
    assert "called all" not in found


def test_clauses_that_ask_for_something_are_counted() -> None:
    parts = {
        "What is the weather?": 1,
        "book a table for two and three children": 1,
        "Find the file, then send it to Ann and tell me.": 3,
        "1. List the tasks\n2. close them": 2,
        "the blue one": 0,
        "": 0,
    }
    assert {ask: parts_of(ask) for ask in parts} == parts


def test_names_of_fields_say_what_an_object_holds_in_schemas_and_in_signatures() -> None:
    system = (
        "Your input fields are:\n1. `task` (str):\nYour output fields are:\n1. `reasoning` (str):\n"
        "2. `sqlCode` (str):\n3. `ok` (bool):\nAll interactions will be structured so:\nyour objective is: x"
    )
    body = {"messages": [{"role": "system", "content": system}]}
    properties = {"sqlCode": {"type": "string"}, "ok": {"type": "boolean"}}
    schema = {"response_format": {"json_schema": {"schema": {"properties": properties}}}}

    found, names = form_of(body)

    assert set(found) == {"signature", *form_of(schema)[0]} - {"some tool acts"}
    assert {"names code", "form two", "form yes or no"} <= set(found) and names == "sqlCode ok"
    assert not {"names prose", "names thought", "names data"} & set(found)
    assert "names data" in form_of({"tools": [tool("X", age={}, height={})]})[0]


def test_every_type_is_wrapped_in_objects_and_stands_in_frames(few_rows: list[dict[str, Any]]) -> None:
    wrapped, framed = Counter[str](), Counter[str]()
    for row in few_rows:
        text = json.dumps(row["body"])
        wrapped[row["step"]] += "response_format" in text or "tool_choice" in text or '"format"' in text
        framed[row["step"]] += "[[ ## completed ## ]]" in text

    assert all(wrapped[step] > 5 and framed[step] > 5 for step in STEPS)


def test_loops_of_the_training_rows_stop_before_or_after_the_last_call(few_rows: list[dict[str, Any]]) -> None:
    steps = {"look_up": 0, "tool_arguments": 0}
    for row in few_rows:
        if "loop_calls" in row["family"]:
            turns = read(row["operation"], row["body"]).turns
            assert turns[-1].role in ("tool", "user") and (turns[-1].role == "tool" or row["step"] == "tool_arguments")
            steps[row["step"]] += 1

    assert min(steps.values()) >= 80


def test_what_a_client_puts_around_every_request_is_not_read() -> None:
    framed = (
        "[[ ## request ## ]]\nFix the commas.\n\nRespond with the corresponding output fields, starting with the field"
    )
    told = "Your input fields are: x\nAll interactions will be structured so:\n[[ ## x ## ]]\n{x}\nyour objective is:"

    rows, values = of(
        {"messages": [{"role": "system", "content": f"{told}\n Be brief."}, {"role": "user", "content": framed}]}
    )
    bare = "Your input fields are: x\n \n Be brief."
    expected = of({"messages": [{"role": "system", "content": bare}, {"role": "user", "content": "Fix the commas."}]})
    lengths = {PLACES[name] for name in FACTS if " over " in name}

    assert {row for row in rows if row not in lengths} == {row for row in expected[0] if row not in lengths}
    assert values.min() > 0


def test_an_instruction_is_found_at_either_end_of_a_long_message() -> None:
    filling = "The tram was late again and nobody said why. " * 12

    for text in (f"Translate this into Dutch. {filling}", f"{filling}\nTranslate this into Dutch."):
        reading = read("chat", chat(text))
        found = facts(reading, text, "")
        assert {"any translate"} <= set(found) and not {"any summary", "any labels"} & set(found)


def test_the_time_is_bounded_by_the_ends_of_long_texts() -> None:
    rows, _ = of(chat("one two three. " * 100_000, system="four five. " * 100_000))

    assert len(rows) < 2000


def test_the_package_has_weights_without_pickles_that_are_small() -> None:
    assert ASSET.stat().st_size < 1_000_000
    with np.load(ASSET, allow_pickle=False) as arrays:
        assert sorted(arrays.files) == ["bias", "settings", "weights"]
        assert not any(arrays[name].dtype.hasobject for name in arrays.files)


def test_the_weights_are_those_whose_scores_are_recorded() -> None:
    model = load_steps()

    assert hashlib.sha256(model.weights.tobytes() + model.bias.tobytes()).hexdigest() == SCORES["sha256"]


def test_saving_and_loading_gives_the_same_model(tmp_path: Path) -> None:
    model = load_steps()

    data = saved(model, tmp_path)
    again = load_steps(tmp_path / "steps.npz")

    assert np.array_equal(again.weights, model.weights) and np.array_equal(again.bias, model.bias)
    assert saved(again, tmp_path) == data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no weights"),
        (b"PK\x03\x04 nothing", "no weights"),
        (b"\x80\x04K\x01.", "no weights"),
        ("settings", "other features"),
        ("shape", "shapes"),
        ("type", "float16"),
        ("nan", "finite"),
        ("object", "no weights"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(data: bytes | str, says: str) -> None:
    own = load_steps()
    broken = own.weights.copy()
    broken[0, 0] = np.nan
    made = {
        "settings": lambda: rewritten(settings=np.array("0" * 64)),
        "shape": lambda: rewritten(weights=own.weights[1:]),
        "type": lambda: rewritten(weights=own.weights.astype(np.float32)),
        "nan": lambda: rewritten(weights=broken),
        "object": lambda: rewritten(weights=np.array([{"a": 1}], dtype=object)),
    }

    with pytest.raises(CheckpointError, match=says):
        parse_steps(data if isinstance(data, bytes) else made[data](), "a file")


def test_a_file_that_is_cut_off_is_refused() -> None:
    data = ASSET.read_bytes()

    for size in (10, len(data) // 2, len(data) - 1):
        with pytest.raises(CheckpointError):
            parse_steps(data[:size], "a file")


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        load_steps(Path("no such file"))


def test_training_rows_are_varied_and_fixed_by_the_seed(
    generator: Any, few_rows: list[dict[str, Any]], many_rows: list[dict[str, Any]]
) -> None:
    some = many_rows
    families = {row["family"] for row in some}
    texts = Counter(json.dumps(row["body"]) for row in some)

    assert list(generator.rows(each=8)) == few_rows
    assert len(some) >= 18_000 and len(texts) > 0.9 * len(some)
    assert {row["step"] for row in some} == set(STEPS)
    assert all(sum(name.startswith(f"{step}.") for name in families) >= 34 for step in STEPS)
    assert {row["operation"] for row in some} == {"chat", "completions", "responses"}


def test_no_family_is_in_two_folds_and_folds_share_no_content(generator: Any) -> None:
    folds = dict[str, int]()
    for row in generator.rows(each=2):
        assert folds.setdefault(row["family"], row["fold"]) == row["fold"]
    pools = {"fact": [str(n) for n in range(20)], "n": ["1"]}
    dealt = [generator.dealt(pools, fold)["fact"] for fold in range(generator.FOLDS)]

    assert sorted(item for one in dealt for item in one) == sorted(pools["fact"])


def test_recorded_rows_are_many_of_several_clients_and_have_nothing_private(recorded: list[dict[str, Any]]) -> None:
    text = json.dumps(recorded)

    assert len(recorded) >= 300 and RECORDED.stat().st_size < 300_000
    assert {row["step"] for row in recorded} == set(STEPS)
    assert len({row["client"] for row in recorded}) >= 5
    assert not [word for word in PRIVATE if word in text]


def test_rows_of_editors_are_of_several_plugins_and_have_nothing_private(editors: list[dict[str, Any]]) -> None:
    text = json.dumps(editors)
    plugins = Counter(row["client"].partition(" ")[0] for row in editors)

    assert len(editors) >= 100 and EDITORS.stat().st_size < 100_000
    assert {row["step"] for row in editors} == set(STEPS)
    assert sum(number >= 10 for number in plugins.values()) >= 4
    assert all(set(row) == {"step", "task", "client", "operation", "body"} for row in editors)
    assert not [word for word in PRIVATE if word in text]


@pytest.fixture(scope="module")
def tasks(recorded: list[dict[str, Any]], blind: list[dict[str, Any]], editors: list[dict[str, Any]]) -> set[str]:
    """How the tasks of all recorded rows begin, as JSON has it."""
    found = set[str]()
    for row in [*recorded, *blind, *editors]:
        reading = read(row["operation"], row["body"])
        found.add(json.dumps((reading.of("user") or [""])[-1][:60]).lower().strip('"'))
    return found


def shared(tasks: set[str], rows: Iterable[dict[str, Any]]) -> set[str]:
    """The tasks that are in rows, too; but for one word, which is also a part of others."""
    trained = "\n".join(json.dumps(row["body"]).lower() for row in rows)
    return {task for task in tasks if task in trained} - {"ping"}


def test_no_recorded_task_is_in_training_rows_of_each_family(tasks: set[str], many_rows: list[dict[str, Any]]) -> None:
    assert shared(tasks, many_rows) == set()


@pytest.mark.slow
def test_no_recorded_task_is_in_the_training_rows(tasks: set[str], generator: Any) -> None:
    assert shared(tasks, generator.rows()) == set()


def test_the_score_on_recorded_rows_is_the_one_that_is_documented(recorded: list[dict[str, Any]]) -> None:
    assert share_right(recorded) == pytest.approx(SCORES["recorded"]["accuracy"], abs=0.006)


def test_the_score_on_blind_rows_is_the_one_that_is_documented(blind: list[dict[str, Any]]) -> None:
    found = share_right(blind)

    assert len(blind) == SCORES["recorded_blind"]["rows"] and found >= 0.85
    assert found == pytest.approx(SCORES["recorded_blind"]["accuracy"], abs=0.006)


def test_the_score_on_rows_of_editors_is_the_one_that_is_documented(editors: list[dict[str, Any]]) -> None:
    found = share_right(editors)

    assert found >= 0.76
    assert found == pytest.approx(SCORES["recorded_editors"]["accuracy"], abs=0.02)


def test_documented_scores_are_those_of_the_last_training() -> None:
    text = (ROOT / "docs" / "routing-evaluation.md").read_text(encoding="utf-8")

    for name in ("held_out", "recorded", "recorded_blind", "recorded_editors"):
        said = SCORES[name]
        diagonal = sum(row[place] for place, row in enumerate(said["confusion"]))
        assert said["accuracy"] == pytest.approx(diagonal / said["rows"], abs=1e-4)
        assert f"{said['accuracy']:.3f}" in text


def test_rows_that_are_hashed_together_are_those_of_each_n_gram() -> None:
    lists: list[list[str]] = [[], ["a"], ["der", "die das", "der", "naïve", "\ud800"], ["x y"] * 3 + ["#4", "…"]]
    for items in lists:
        texts = [one.encode("utf-8", "surrogatepass") for one in dict.fromkeys(items)]
        assert _rows("pairs", items) == [zlib.crc32(text, zlib.crc32(b"pairs")) % ROWS for text in texts]


def test_words_apart_from_patterns_find_what_the_patterns_find() -> None:
    said = [word for pattern in PATTERNS.values() for word in re.findall(r"[\w'-]+", pattern)]
    said += ["who's", "_who", "who_", "why-not", "2", "%", "?", ":", ";", "/", ",", "HOLE", "[fill", *"\n ."]
    random, texts = Random(0), [""]
    for _ in range(1000):
        between = random.choice([" ", " ", "", "_", "\n"])
        texts.append(random.choice(["", "\n", " "]) + between.join(random.choices(said, k=random.randint(1, 9))))
    with gzip.open(BLIND, "rt") as lines:
        texts += [text for line in list(lines)[:200] for text in strings(json.loads(line))]
    for text in texts:
        wanted = {name for name, pattern in FOUND.items() if text and pattern.search(text.lower())}
        assert holding(text) == wanted, text


def test_bars_in_parentheses_and_brackets_part_nothing() -> None:
    assert alternatives(r"\b(a|b)\b|[|(]c|\|d|\(|e(f|(g|h))") == [r"\b(a|b)\b", "[|(]c", r"\|d", r"\(", "e(f|(g|h))"]


def test_a_literal_stands_in_all_that_a_pattern_matches() -> None:
    wanted = {"a?bc": "bc", "abc+d": "abc", "ab*cd": "cd", r"\d+ words": " words", "(ab|c)def": "def", "[abc]de": "de"}
    wanted |= {r"\bx{0,2}yz\b": "yz", "wie viele?": "wie viel", r"\.\w+": "", "(abc)": "", "a.b": "a"}
    assert {pattern: literal(pattern) for pattern in wanted} == wanted
