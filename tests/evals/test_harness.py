"""A whole evaluation of a tiny model: the report, its tables, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.evals.commands import EVALUATION
from daguerre.evals.documents import read_documents
from daguerre.evals.harness import evaluate
from daguerre.evals.infilling import BEAM, ENDED, NOVEL, SEARCH
from daguerre.evals.lines import LINE_ROOM, window
from daguerre.evals.options import QUICK, EvalLimits, EvalOptions
from daguerre.evals.pictures import PICTURES, draw_pictures
from daguerre.evals.questions import KINDS
from daguerre.evals.report import check_path, markdown, write_report
from daguerre.evals.tasks import TASKS
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.backends.native_backend import can_compile
from daguerre.models.loading import save_model
from published import CASES, made, write_tokenizer
from test_cli import Called, assert_one_line, call

__all__ = ["call"]

pytestmark = pytest.mark.usefixtures("few")
SHORT = Document("p", "1", "", "a", "", "x = 1\n")
LIMITS = EvalLimits(
    layouts=("ar", 4, "full", "chain 4"),
    bound_windows=2,
    lines=2,
    grid_lines=1,
    spans=1,
    texts=1,
    edits=2,
    literals=1,
    prompts=2,
    questions=4,
)


@pytest.fixture(scope="module")
def measured(causal: Model, documents: list[Document], few: None) -> tuple[dict[str, Any], set[str]]:
    """A report, and the parts whose progress was shown."""
    shown: set[str] = set()
    return evaluate(causal, documents, limits=LIMITS, progress=lambda what, done, total: shown.add(what)), shown


@pytest.fixture(scope="module")
def report(measured: tuple[dict[str, Any], set[str]]) -> dict[str, Any]:
    return measured[0]


def test_a_report_says_what_was_measured_and_with_what(report: dict[str, Any], causal: Model) -> None:
    assert set(report) == {"model", "data", "machine", "settings", "seconds", "skipped", *TASKS}
    assert report["skipped"] == report["data"]["skipped"] == {}
    assert [figure["layout"] for figure in report["bits"]] == ["ar", "4", "full", "chain 4"]
    assert {outcome["method"] for outcome in report["infill"]["outcomes"]} == {
        *("infill", ENDED, SEARCH, BEAM, NOVEL, "copy", "ar")
    }
    assert {o["length"] for o in report["infill"]["outcomes"] if o["method"] in (ENDED, SEARCH, NOVEL)} == {"unknown"}
    unknown = [example["predictions"]["unknown"] for example in report["infill"]["examples"]]
    assert [texts["infill"] for texts in unknown] == [texts[ENDED].split("\n")[0] for texts in unknown]
    assert len(report["infill"]["examples"]) == 2
    assert len(report["draft"]["match_by_position"]) == 16
    assert report["completion"]["rows"][0]["label"] == "ar"
    assert {row["num"] for row in report["completion"]["rows"]} == {1, 2}
    assert {(o["method"], o["length"]) for o in report["tokens"]["outcomes"]} == {
        (method, length) for method in ("default policy", "one shot", "ar") for length in (1, 4, 8, 16)
    }
    assert {quality["layout"] for quality in report["steps"]["texts"]} == {"canvas", "block", "ar", "truth"}
    assert [outcome["method"] for outcome in report["steps"]["spans"]] == [f"{n} steps" for n in (1, 2, 4, 8, 16)]
    assert {row["kind"] for row in report["correction"]["rows"]} >= {"none", "random"}
    assert {row["reading"] for row in report["correction"]["rows"]} == {"unmasked", "leave_one_out"}
    speculation = report["speculation"]
    assert [outcome["temperature"] for outcome in speculation["outcomes"]] == [0.0, 0.7, 1.0]
    assert [(row["temperature"], row["new_tokens"]) for row in speculation["first"]] == [(0.0, 16), (1.0, 16)]
    assert [row["drafter"] for row in speculation["drafters"]] == 2 * ["auto", "head", "lookup"]
    for part in ("outcomes", "first", "drafters"):
        assert all(row["identical"] == row["prompts"] == 2 for row in speculation[part])
    assert speculation["lines"]["identical"] == speculation["lines"]["lines"] == 2
    assert {row["text"] for row in speculation["acceptance"]} == {"held-out", "greedy"}
    assert speculation["edits"] == speculation["forced_edits"] == [], "the hunks are too long for the model"
    assert set(report["deadline"]["unhurried"]) == {"infill", "completion"}
    assert {outcome["kind"] for outcome in report["decide"]["outcomes"]} | set(report["decide"]["left_out"]) == set(
        KINDS
    )
    assert {"digit"} <= {outcome["kind"] for outcome in report["decide"]["outcomes"]}
    assert report["model"]["parameters"] == causal.backbone.num_parameters
    assert report["model"]["tokenizer_sha256"] == causal.tokenizer.sha256
    assert (report["model"]["backend"], report["model"]["quantize"]) == (
        "native" if can_compile() else "torch",
        None,
    )
    assert report["data"]["documents"] == 3
    assert report["settings"]["seed"] == 0
    assert report["machine"]["torch"]


def test_a_report_is_repeatable(report: dict[str, Any], causal: Model, documents: list[Document]) -> None:
    again = evaluate(causal, documents, what=["bits", "draft", "correction", "decide"], limits=LIMITS)
    lines = evaluate(causal, documents, what=["infill", "completion"], limits=dataclasses.replace(LIMITS, lines=1))

    assert again["bits"] == report["bits"]
    assert again["draft"] == report["draft"]
    for task in ("infill", "completion"):
        assert lines[task]["examples"] == report[task]["examples"][:1]
    assert again["correction"] == report["correction"]
    for one, other in zip(again["decide"]["outcomes"], report["decide"]["outcomes"], strict=True):
        assert one | {"decisions_per_second": 0} == other | {"decisions_per_second": 0}


def test_a_report_is_written_as_json_and_as_tables(report: dict[str, Any], tmp_path: Path) -> None:
    write_report(report, tmp_path / "report.json")

    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report))
    text = (tmp_path / "report.md").read_text()
    assert text == markdown(report)
    assert "| wrong tokens, reading, order | 0.3 | 0.5 | 0.6 | 0.7 | 0.8 | 0.9 | 0.95 | 0.99 |" in text
    assert re.search(r"\| random, 5%, unmasked, one \|  (\| \d+ / [\d.]+ ){7}\|\n", text)
    assert re.search(
        r"\| random, 5%, leave one out, all (\| \d+ / [\d.]+ ){2}(\|  ){3}\| \d+ / [\d.]+ (\|  ){2}\|\n", text
    )
    assert f"| spans of 4 | bound, 2 draws | {report['bits'][1]['value']:.4f} |" in text
    assert f"| spans of 4, left to right | exact | {report['bits'][3]['value']:.4f} |" in text
    assert "## Line infilling" in text
    assert "first line exact, %" in text
    assert "| 1, 128 | 2 of 2 |" in text
    assert "seconds per line" in text
    for heading in (
        "Next-line completion",
        "Steps",
        "Token spans of known length",
        "Correction",
        "Edits",
        "Constrained and unconstrained",
        "Speculation",
        "Deadline",
        "Decisions",
    ):
        assert f"## {heading}\n" in text
    for line in text.split("\n| "):
        assert line.count("|") == line.split("\n")[0].count("|"), "a row of a table is one line"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_a_model_folder_is_named_with_its_weights(causal: Model, documents: list[Document], tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", causal.backbone, causal.tokenizer)

    report = evaluate(folder, documents, what=["bits"], limits=EvalLimits(layouts=("ar",)))

    assert report["model"]["name"] == str(folder)
    assert len(report["model"]["weights_sha256"]) == 64
    assert "infill" not in report
    assert "## Drafts" not in markdown(report)


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("full", {"bits", "infill", "steps", "tokens", "correction", "edit", "constrained", "deadline", "decide"}),
        ("block", {"bits", "steps", "deadline", "decide"}),
    ],
)
def test_a_model_is_asked_what_its_context_allows(
    name: str, tasks: set[str], models: dict[str, Model], documents: list[Document]
) -> None:
    report = evaluate(
        models[name],
        documents,
        limits=EvalLimits(bound_windows=2, lines=1, spans=1, texts=1, edits=1, literals=1, questions=2),
    )

    assert tasks == set(report) & set(TASKS)
    assert set(report["skipped"]) == set(TASKS) - tasks
    assert "Not measured: draft, because 'draft' is for models with causal context" in markdown(report)


def test_what_cannot_be_done_is_refused(
    models: dict[str, Model], make_model: Callable[..., Model], documents: list[Document]
) -> None:
    with pytest.raises(UnsupportedError, match="draft"):
        evaluate(models["full"], documents, what=["draft"])
    with pytest.raises(InputError, match="did you mean 'infill'"):
        evaluate(models["causal"], documents, what=["infil"])
    with pytest.raises(DataError, match="no document has"):
        evaluate(models["causal"], [SHORT], what=["bits", "draft"], progress=no_work)
    with pytest.raises(DataError, match="two files or more"):
        evaluate(models["causal"], documents[:1], what=["decide"], progress=no_work)
    with pytest.raises(DataError, match="no text to score"):
        evaluate(models["causal"], [Document("p", "1", "", "a", "", "")], what=["bits"], progress=no_work)
    with pytest.raises(UnsupportedError, match="'completion' is for models with causal context"):
        evaluate(models["full"], documents, what=["completion"])
    for task in ("tokens", "correction"):
        with pytest.raises(UnsupportedError, match=f"leave '{task}' out"):
            evaluate(models["block"], documents, what=[task])
    for task in ("tokens", "steps"):
        with pytest.raises(DataError, match=f"leave '{task}' out"):
            evaluate(models["causal"], documents, what=[task], limits=EvalLimits(spans=0, texts=0))
    uniform = make_model(context="full", shift=False, process="uniform", time_input=True)
    for task in ("infill", "tokens", "steps", "correction", "decide"):
        with pytest.raises(UnsupportedError, match="uniform process"):
            evaluate(uniform, documents, what=[task])
    with pytest.raises(InputError, match="workers must be 1 or more"):
        evaluate(models["causal"], documents, workers=0)
    with pytest.raises(InputError, match="samples must be 2 or more, not 1"):
        EvalLimits(samples=1)


def no_work(what: str, done: int, total: int) -> None:
    raise AssertionError("measured before all was checked")


def test_what_the_data_cannot_feed_is_skipped_and_said(causal: Model, documents: list[Document]) -> None:
    report = evaluate(causal, [SHORT], limits=LIMITS)

    assert "bits" in report
    assert set(report["skipped"]) == set(TASKS) - {"bits"}
    text = markdown(report)
    assert "Not measured: infill, because no line to infill" in text
    assert "Not measured: draft, because no document has 256 tokens" in text
    nothing = evaluate(
        causal,
        documents,
        limits=dataclasses.replace(LIMITS, lines=0, spans=0, texts=0, edits=0, literals=0, questions=0),
    )
    assert set(nothing["skipped"]) == set(TASKS) - {"bits", "draft", "speculation"}


def test_progress_names_the_task(measured: tuple[dict[str, Any], set[str]]) -> None:
    shown = {re.sub(r" \(\d+ of \d+\)", "", part) for part in measured[1]}
    assert any(part.startswith("bits (1 of ") for part in measured[1])

    assert shown >= {
        "bits: ar",
        "bits: 4",
        "bits: full",
        "bits: chain 4",
        "infill: known length",
        "infill: unknown length",
        "draft",
    }
    assert shown >= {"completion: grid", "completion: ar", "steps: texts", "steps: spans", "tokens: spans of 8"}
    assert shown >= {"correction", "speculation: temperature 1"}


def test_several_processes_measure_the_same(
    report: dict[str, Any], causal: Model, documents: list[Document], preloaded: None
) -> None:
    again = evaluate(causal, documents, what=["infill"], limits=LIMITS, workers=2)

    assert again["infill"]["examples"] == report["infill"]["examples"]
    assert (report["settings"]["workers"], again["settings"]["workers"]) == (1, 2)
    assert "one process" in markdown(report)
    assert f"{report['machine']['instruction_set']}), float32, {report['model']['backend']} backend," in markdown(
        report
    )
    assert "2 processes of one thread" in markdown(again)


def test_a_folder_is_read_as_documents(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.py").write_bytes("x = 'é'\r\n".encode())
    (tmp_path / "a.py").write_text("y = 2\n")
    (tmp_path / "notes.txt").write_text("not Python")

    for folder in (".git", "__pycache__", "node_modules", "a-venv", "inner/.cache"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.py").write_text("z = 3\n")
    (tmp_path / "a-venv" / "pyvenv.cfg").write_text("")

    (first, second), skipped = read_documents(tmp_path)

    assert skipped == {}
    assert (first.file, second.file) == ("a.py", "inner/b.py")
    assert second.text == "x = 'é'\r\n"
    assert second.sha256 == hashlib.sha256(second.text.encode()).hexdigest()
    assert [each.text for each in read_documents(tmp_path / "notes.txt")[0]] == ["not Python"]


def test_a_folder_without_python_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="check the path"):
            read_documents(path)


UNREADABLE = (b"x = '\xe9'\n", b"# coding: nonesuch\n", b"# coding: hex\n00\n", b"# coding: unicode_escape\n\\ud800\n")


def test_what_cannot_be_read_is_skipped_and_named(causal: Model, tmp_path: Path) -> None:
    names = {f"bad{number}.py" for number in range(len(UNREADABLE))}
    for name, content in zip(sorted(names), UNREADABLE, strict=True):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"cannot read {re.escape(name)}"):
            read_documents(tmp_path / name)
    (tmp_path / "good.py").write_text("x = 1\n")

    documents, skipped = read_documents(tmp_path)

    assert [each.file for each in documents] == ["good.py"]
    assert set(skipped) == names
    report = evaluate(causal, documents, what=["bits"], limits=LIMITS, skipped_files=skipped)
    assert report["data"]["skipped"] == skipped
    for name in names:
        assert f"Not read: {name}, because {skipped[name]}." in markdown(report)


def test_every_task_works_on_a_folder_and_its_report_says_what_was_not_used(
    causal: Model, tmp_path: Path, unwritten: None
) -> None:
    body = "".join(f"def area_{i}(width, height):\n    product = width * {i}\n    return product\n" for i in range(40))
    (tmp_path / "a.py").write_text(body)
    (tmp_path / "b.py").write_bytes(body.replace("\n", "\r\n").encode())
    (tmp_path / "c.py").write_bytes(b"name = '\xe9'\n")

    documents, skipped = read_documents(tmp_path)
    least = dataclasses.replace(LIMITS, lines=1, edits=1)
    report = evaluate(causal, documents, limits=least, skipped_files=skipped)
    alone = evaluate(causal, read_documents(tmp_path / "a.py")[0], what=["bits"], limits=LIMITS)

    assert set(report["skipped"]) == {"decide"}  # nothing in it is a question
    assert (report["data"]["documents"], report["data"]["carriage_returns"]) == (2, 1)
    assert {example["file"] for example in report["infill"]["examples"]} == {"a.py"}
    assert report["draft"]["documents"] == 2
    assert report["bits"][0]["num_bytes"] == len(body) + (tmp_path / "b.py").stat().st_size
    assert "Not read: c.py, because" in markdown(report)
    assert "Documents with carriage returns, of which no line is taken out: 1." in markdown(report)
    assert "carriage returns" not in markdown(alone)
    drawn = {path.name for path in draw_pictures(report, tmp_path / "x.json")}
    assert drawn == {f"x-{task}.png" for task in PICTURES if task in report}


def test_a_declared_encoding_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"# -*- coding: latin-1 -*-\r\nx = '\xe9'\r\n")
    (tmp_path / "b.py").write_bytes(b"\xef\xbb\xbfy = 1\n")

    (first, second), _ = read_documents(tmp_path)

    assert first.text == "# -*- coding: latin-1 -*-\r\nx = 'é'\r\n"
    assert first.sha256 == hashlib.sha256(first.text.encode()).hexdigest()
    assert second.text == "y = 1\n"


def test_where_a_report_goes_is_checked_before(report: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for path, word in (("report.md", ".json"), ("report", ".json"), ("file/r.json", "folder"), ("folder.json", "file")):
        with pytest.raises(InputError, match=word):
            check_path(tmp_path / path)
    new = tmp_path / "new" / "inner" / "report.json"
    check_path(new)
    assert not new.parent.exists()
    write_report(report, new)
    assert sorted(path.name for path in new.parent.iterdir()) == ["report.json", "report.md"]


def test_quick_limits_are_smaller() -> None:
    assert (QUICK.lines, QUICK.prompts, QUICK.bound_windows, QUICK.spans, QUICK.texts) == (12, 16, 4, 8, 1)


def test_a_missing_line_is_shown_in_a_window_of_the_whole_context() -> None:
    shown = {256: (128, 64), 1024: (672, 256), 2048: (1696, 256), 8 * 2048: (1696, 256)}

    assert {room: window(room) for room in shown} == shown
    for room in (256, 1024, 2048):
        assert sum(window(room)) + min(LINE_ROOM, room // 4) == room


def test_options_are_made_from_those_given(causal: Model, documents: list[Document]) -> None:
    options = EvalOptions.flat(QUICK, {"lines": 3, "workers": 2, "what": ["bits"]})

    assert (options.limits.lines, options.limits.spans, options.workers, options.seed) == (3, QUICK.spans, 2, 0)
    assert EvalOptions.of(options, workers=1) == dataclasses.replace(options, workers=1)
    report = evaluate(causal, documents, EvalOptions(what=["draft"], limits=LIMITS), seed=3)
    assert set(report) & set(TASKS) == {"draft"}
    assert report["settings"]["seed"] == 3


def test_the_command_has_an_option_for_every_limit_that_it_can_set() -> None:
    fields = {field.name for kind in (EvalOptions, EvalLimits) for field in dataclasses.fields(kind)}

    assert set(EVALUATION) == fields - {"limits", "seed", "layouts", "exact_windows"}


def test_the_command_says_which_model_is_meant_as_others_do(call: Callable[..., Called], tmp_path: Path) -> None:
    folder = CASES["qwen2"].write(tmp_path, made("qwen2"))
    (tmp_path / "x.py").write_text("def f(x):\n    return x\n" * 40)
    other = tmp_path / "tokenizer"
    other.mkdir()
    write_tokenizer(other)
    (folder / "tokenizer.json").unlink()
    asked = ("eval", str(folder), "--data", str(tmp_path / "x.py"), "--what", "tokens", "--json")
    assert_one_line(call(*asked, "--family", "llada"), "not of family 'llada'")
    assert_one_line(call(*asked), "has no tokenizer")
    assert_one_line(call(*asked, "--tokenizer", str(other), "--adapter", str(other)), "adapter_config.json")
    report = evaluate(str(folder), [], what=[], family="qwen2", tokenizer=str(other))
    assert report["model"] | {"family": "qwen2", "tokenizer": str(other)} == report["model"]
