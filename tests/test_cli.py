"""The command line as a user meets it: the default model, one line and status 2 for every mistake.

What depends on the process (standard input, a whole run) starts one; the many mistakes are called in this one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import commands
from commands import Done
from daguerre.cli import SPINS, app, main, whole_command
from daguerre.commands.options import REQUEST
from daguerre.decoding.request import Decode
from daguerre.errors import MissingExtra
from daguerre.models.loading import model_folder, weights_hash
from torchless import skip_if_absent


def daguerre(*arguments: str, stdin: bytes | None = None, cwd: Path | None = None) -> Done:
    return commands.daguerre(*arguments, stdin=stdin, cwd=cwd, env=os.environ | {"COLUMNS": "200"})


Called = tuple[int, str, str]
TEXTS = ("--stop", "--keywords", "--forbidden", "--ending", "--choices")
"""Options that refuse a text that is not UTF-8, without another option."""


@cache
def command_line() -> Any:
    """The whole command line, made once, since making it takes longer than most commands."""
    return whole_command()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """`daguerre ARGUMENTS` in this process: (exit status, standard output, standard error)."""

    monkeypatch.setattr("daguerre.cli.whole_command", command_line)

    def run(*arguments: str) -> Called:
        monkeypatch.setattr(sys, "argv", ["daguerre", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capfd.readouterr()
        skip_if_absent(captured.err)
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


def assert_one_line(called: Called, *words: str) -> None:
    code, out, err = called
    assert code == 2, err
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("daguerre: ")
    for word in words:
        assert word in err


def test_generate_continues_the_prompt_and_says_what_it_took(call: Callable[..., Called]) -> None:
    code, out, err = call("generate", "import os\nimport ", "--max-tokens", "8", "--json")
    assert code == 0, err
    body = json.loads(out)
    assert set(body) == {"text", "finish_reason", "usage"}
    assert 0 < body["usage"]["completion_tokens"] <= 8


def test_backend_and_type_are_those_asked_for(call: Callable[..., Called], tmp_path: Path) -> None:
    asked = ("--backend", "torch", "--dtype", "bfloat16")
    assert call("generate", "import ", "--max-tokens", "4", *asked)[0] == 0
    assert_one_line(call("generate", "x", "--backend", "nativ"), "did you mean 'native'")
    assert_one_line(call("generate", "x", "--dtype", "bf16"), "did you mean 'bfloat16'")
    out = tmp_path / "report.json"
    code, _, err = call("eval", "--what", "draft", "--prompts", "2", "--out", str(out), *asked)
    assert code == 0, err
    model = json.loads(out.read_text())["model"]
    assert (model["backend"], model["dtype"]) == ("torch", "bfloat16")
    assert "bfloat16, torch backend" in out.with_suffix(".md").read_text()


def test_threads_sleep_soon_but_where_speed_is_measured(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command, want in (("bench", None), ("generate", SPINS)):
        monkeypatch.setenv("GOMP_SPINCOUNT", "1")
        monkeypatch.delenv("GOMP_SPINCOUNT")
        call(command, "--help")
        assert os.environ.get("GOMP_SPINCOUNT") == want
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    call("generate", "--help")
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_infill_with_whole_prints_both_sides_verbatim(call: Callable[..., Called]) -> None:
    before, after = "def add(a, b):\n    return ", "\n\n\nprint(add(1, 2))\n"
    request = ("infill", before, after, "--max-tokens", "6")
    middle = json.loads(call(*request, "--json")[1])["text"]
    code, out, err = call(*request, "--whole")
    assert code == 0, err
    assert out == before + middle + after


def test_fill_prints_the_template_filled(call: Callable[..., Called]) -> None:
    code, out, err = call("fill", "def §(a):\n    return §\n", "--mark", "§", "--max-tokens", "3", "--json")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert body["text"] == "def {}(a):\n    return {}\n".format(*body["texts"])
    assert len(body["spans"]) == 2


def test_a_length_is_searched_and_a_picture_drawn_where_they_are_asked(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    asked = ("infill", "def add(a, b):\n    return ", "\n\n\nadd(1, 2)\n", "--max-tokens", "5")
    code, out, err = call(*asked, "--search-length", "--picture", str(tmp_path / "a.png"), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["searched"]["lengths"] == [1, 2, 3, 4, 5]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "searched" not in json.loads(call(*asked, "--json")[1])
    for options, word in (
        (("--picture", str(tmp_path / "a.txt")), ".png"),
        (("--picture", str(tmp_path / "b.png"), "--n", "2"), "one sample"),
    ):
        assert_one_line(call(*asked, *options), word)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_edit_prints_the_rest_of_the_file_verbatim(call: Callable[..., Called], tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes("\ufeffx = 1\r\ny = 'é'\r\nz = 3".encode())
    code, out, err = call("edit", str(path), "--lines", "2", "--max-tokens", "3")
    assert (code, err) == (0, "")
    assert out.startswith("\ufeffx = 1\r\n")
    assert out.endswith("\r\nz = 3")
    body = json.loads(call("edit", str(path), "--pattern", r"\d", "--max-tokens", "2", "--json")[1])
    assert len(body["texts"]) == 2
    assert body["diff"].startswith("@@")
    assert call("edit", str(path), "--span", "1:2", "--diff", "--max-tokens", "2", "--seed", "1")[1].startswith("--- ")
    assert path.read_bytes().endswith(b"z = 3")


def test_every_option_of_a_request_is_an_option_of_both_commands() -> None:
    fields = {field.name for field in dataclasses.fields(Decode)} - {"logit_bias", "scorer"}
    assert set(REQUEST) == fields | {"max_tokens", "heal", "timeout"}
    for command in ("generate", "infill"):
        options = {parameter.name: parameter.default for parameter in get_command(app).commands[command].params}  # type: ignore[attr-defined]
        assert all(options[name] is None for name in REQUEST), f"{command}: what is left out is as the library has it"


def test_a_draft_is_a_text_or_a_file(call: Callable[..., Called], tmp_path: Path) -> None:
    path = tmp_path / "draft.py"
    path.write_text("width * height\n", encoding="utf-8")
    request = ("generate", "def area(width, height):\n    return ", "--max-tokens", "6", "--json", "--mode", "ar")
    plain, *drafted = (
        json.loads(call(*request, *more)[1]) for more in ((), ("--draft", "width * height\n"), ("--draft", f"@{path}"))
    )
    for body in drafted:
        assert body["text"] == plain["text"]
        assert body["usage"]["accepted_prediction_tokens"] + body["usage"]["rejected_prediction_tokens"] > 2
    assert_one_line(call(*request, "--draft", "@nowhere"), "cannot read nowhere")


def test_options_of_a_request_reach_it(call: Callable[..., Called]) -> None:
    given = (
        "--max-tokens 12 --min-tokens 12 --mode block --block-size 4 --policy confidence --steps 2 --temperature 0.9"
    )
    more = "--top-p 0.9 --top-k 40 --seed 7 --cache none --no-heal --timeout 600 --stop zzzz --stop qqqq --n 2 --json"
    for texts in (("generate", "import os\n"), ("infill", "import os\n", "\nprint(x)\n")):
        code, out, err = call(*texts, *given.split(), *more.split())
        assert code == 0, err
        body = json.loads(out)
        first, second = body["choices"]
        assert first["text"] == body["text"] != second["text"]
        for choice in (first, second):
            assert choice["usage"]["completion_tokens"] == 12
            assert choice["usage"]["forwards"] == 3 * 2


def test_a_schema_is_read_from_a_file_and_what_is_ignored_is_told(call: Callable[..., Called], tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"enum": ["é", 2], "faker": 1}', encoding="utf-8")
    asked = ("generate", "x = ", "--max-tokens", "6", "--schema", str(path))
    code, out, err = call(*asked, "--strict")
    assert (code, out) == (2, "")
    assert "keyword 'faker' at #" in err
    code, out, err = call(*asked)
    assert code == 0
    assert json.loads(out) in ("é", 2)
    assert err == "daguerre: ignored in the schema: keyword 'faker' at #\n"
    assert json.loads(call(*asked, "--json")[1])["ignored"] == ["keyword 'faker' at #"]
    assert call("generate", "x = ", "--max-tokens", "6", "--schema", '{"enum": ["é", 2]}')[1] == out
    path.write_text("{", encoding="utf-8")
    assert f"{path} is not JSON" in call(*asked)[2]
    assert "--schema is not JSON" in call("generate", "x = ", "--schema", "{")[2]
    assert call("infill", "x = ", "\n", "--max-tokens", "4", "--regex", "ab+c")[1].startswith("ab")


def test_what_the_output_must_and_must_not_say(call: Callable[..., Called]) -> None:
    words = ["--keywords", "sum", "--keywords", "for", "--forbidden", "len", "--forbidden", "#", "--ending", ")\n"]
    code, out, err = call("generate", "def total(x):\n", "--max-tokens", "24", *words, "--pins", "2:20=return")
    assert code == 0, err
    assert all(word in out for word in ("sum", "for", "return"))
    assert "len" not in out
    assert out.endswith(")\n\n")
    code, out, err = call("infill", "x = [", "]\n", "--max-tokens", "6", "--pins", "0=1", "--pins", "-1=2", "--whole")
    assert code == 0, err
    assert out.startswith("x = [1")
    assert out.endswith("2]\n")
    assert call("generate", "x", "--pins", "one")[2] == (
        "daguerre: 'one' is not a pin: write AT=TEXT, such as 3=def, -1=; or 0:9=x\n"
    )
    assert "contains 'b', which is forbidden" in call("fill", "x<gap>", "--keywords", "abc", "--forbidden", "b")[2]


def test_several_samples_are_all_printed(call: Callable[..., Called]) -> None:
    code, out, err = call("generate", "x = ", "--max-tokens", "4", "--temperature", "1", "--n", "3")
    assert code == 0, err
    assert [line for line in out.split("\n") if line.startswith("--- sample")] == [f"--- sample {i}" for i in (1, 2, 3)]


def test_a_model_is_inspected_as_text_and_as_json(call: Callable[..., Called]) -> None:
    values = json.loads(call("inspect", "--json")[1])
    assert values["context"] == "causal"
    assert [line.split()[0] for line in call("inspect")[1].splitlines()] == list(values)


def test_models_are_averaged_by_shares(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, err = call("average", "default=0.5", "default=0.5", "--out", str(tmp_path / "mean"), "--json")
    assert code == 0, err
    assert json.loads(out) == {"model": str(tmp_path / "mean")}
    assert weights_hash(tmp_path / "mean") == weights_hash(model_folder())


def test_an_evaluation_of_a_small_file_skips_what_it_cannot_feed(call: Callable[..., Called], tmp_path: Path) -> None:
    source, report = tmp_path / "a.py", tmp_path / "new" / "report.json"
    source.write_text("x = 1\n")
    code, out, err = call("eval", "--data", str(source), "--windows", "4", "--samples", "3", "--out", str(report))
    assert code == 0, err
    written = json.loads(report.read_text())
    assert set(written["skipped"]) == {
        "infill",
        "draft",
        "completion",
        "steps",
        "tokens",
        "correction",
        "edit",
        "constrained",
        "speculation",
        "deadline",
        "decide",
    }
    assert [figure["samples"] for figure in written["bits"]] == [1, 3, 3, 3, 3, 1, 1]
    assert written["settings"]["bound_windows"] == 4
    assert report.with_suffix(".md").read_text() + "\n" == out
    assert sorted(path.name for path in report.parent.iterdir()) == ["report-bits.png", "report.json", "report.md"]


def test_a_report_without_matplotlib_has_no_pictures_and_says_so(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*rest: object) -> None:
        raise MissingExtra("matplotlib", "train")

    monkeypatch.setattr("daguerre.evals.pictures.draw_pictures", fails)
    (tmp_path / "a.py").write_text("x = 1\n")

    code, _, err = call("eval", "--data", str(tmp_path / "a.py"), "--what", "bits", "--out", str(tmp_path / "r.json"))

    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("daguerre")] == [
        "daguerre: no pictures: matplotlib is not installed: run `pip install 'daguerre[train]'`"
    ]
    assert sorted(path.name for path in tmp_path.glob("r.*")) == ["r.json", "r.md"]


def test_an_evaluation_measures_only_what_is_asked(call: Callable[..., Called], tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("def area(width, height):\n    product = width * height\n    return product\n")
    code, out, err = call("eval", "--data", str(source), "--what", "infill", "--lines", "1", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert "bits" not in report
    assert [outcome["num"] for outcome in report["infill"]["outcomes"]] == [1] * 11


def test_a_decision_is_printed_with_its_probabilities(call: Callable[..., Called]) -> None:
    template = ("--before", " = ", "--after", "\n")
    code, out, err = call("decide", "x", *template, "--score", "0:3")
    assert code == 0, err
    assert out.startswith("answer: ")
    assert {line.split()[1] for line in out.splitlines()[1:]} == {"0", "1", "2", "3"}
    code, out, err = call("decide", "x", *template, "--label", "None", "--label", "not None", "--json")
    assert code == 0, err
    body = json.loads(out)
    assert body["answer"] in ("None", "not None")
    assert body["usage"]["forwards"] == 1
    code, out, err = call("decide", "x", *template, "--yes", "True", "--no", "False")
    assert out.split()[:3:2] in (["answer:", "expected:"],)


def test_a_model_is_calibrated_in_its_folder(call: Callable[..., Called], tmp_path: Path) -> None:
    folder = shutil.copytree(
        model_folder("default"), tmp_path / "model", ignore=shutil.ignore_patterns("decisions.json")
    )
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(f"def {name}(x):\n    if x == 1:\n        return 2\n    return 3\n")
    code, out, err = call("calibrate", str(folder), "--data", str(tmp_path), "--questions", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["file"] == str(folder / "decisions.json")
    code, out, err = call(
        "decide", "x", "--before", " = ", "--after", "\n", "--score", "0:9", "--calibration", "digit", "-m", str(folder)
    )
    assert code == 0, err


def test_standard_input_is_read_for_a_dash() -> None:
    done = daguerre("generate", "-", "--max-tokens", "4", "--mode", "ar", stdin=b"import sys\n")
    assert done.returncode == 0, done.stderr


MISTAKES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("generate", "x", "--mode", "bloc"), ("mode", "'block'")),
    (("generate", "x", "--policy", "treshold"), ("policy", "'threshold'")),
    (("generate", "x", "--max-tokens", "0"), ("--max-tokens",)),
    (("infill", "a", "b", "--mode", "ar"), ("--mode ar", "suffix")),
    (("generate", "x" * 9000, "--context", "whole"), ("positions", "shorten")),
    (("generate", "x", "--steps", "4", "--threshold", ".5"), ("steps", "threshold")),
    (("generate", "x", "--temperature", "-1"), ("temperature",)),
    (("generate", "x", "--model", "nowhere"), ("nowhere",)),
    (("train",), ("recipe",)),
    (("train", "smal"), ("'small'",)),
    (("train", "small", "--set", "optim.muon_lrr=1", "--data", "."), ("muon_lr",)),
    (("train", "small", "--data", "nowhere"), ("nowhere",)),
    (("train", "--from", "default", "--data", ".", "--max-minutes", "0"), ("max-minutes",)),
    (("infill", "a", "b", "--whole", "--json"), ("--whole", "--json")),
    (("infill", "-", "-"), ("standard input", "not both")),
    (("infill", "x"), ("a suffix", "--at")),
    (("infill", "x", "y", "--write"), ("--write", "FILE")),
    (("infill", "x", "y", "--at", "1:1"), ("--at", "second text")),
    (("infill", "-", "--at", "1:1", "--lines", "1:1"), ("one way",)),
    (("edit", "-", "--lines", "1", "--write"), ("standard input", "--write")),
    (("edit", "a.py", "--lines", "1", "--backup"), ("--backup", "--write")),
    (("edit", "a.py", "--lines", "1", "--diff", "--json"), ("--json", "--diff")),
    (("complete", "a.py", "--write", "-n", "2"), ("--write", "--n")),
    (("complete", "nothing.py:3"), ("nothing.py", "No such file")),
    (("generate", "x", "--context", "half"), ("context", "auto, whole")),
    (("fill", "x = 1"), ("no gap", "<gap>")),
    (("edit", "/no/such/file", "--lines", "1"), ("cannot read",)),
    (("edit", __file__, "--lines", "one"), ("two numbers",)),
    (("edit", __file__), ("one way",)),
    (("infill", "a", "b", "--whole", "-n", "2"), ("--whole", "--n")),
    (("generate", "x", "--mode", "ar", "--policy", "random"), ("policy", "'ar'")),
    (("eval", "nowhere"), ("nowhere",)),
    (("eval", "--out", "report.md"), ("report.md", ".json")),
    (("eval", "--out", "/dev/null/report.json"), ("/dev/null/report.json", "folder")),
    (("eval", "--what", "bit"), ("'bits'",)),
    (("eval", "--workers", "0"), ("workers", "1 or more")),
    (("eval", "--samples", "1"), ("samples", "2 or more")),
    (("eval", "--data", "nowhere"), ("nowhere", "check the path")),
    (("eval", "--data", "."), ("Python files", "check the path")),
    (("inspect", "nowhere"), ("nowhere",)),
    (("average", "default=1", "--out", "mean"), ("two models",)),
    (("average", "default", "default=0.5", "--out", "mean"), ("'default'", "MODEL=SHARE")),
    (("decide", "x"), ("--label", "--score")),
    (("decide", "x", "--label", "a", "--score", "1:2"), ("one kind",)),
    (("decide", "x", "--label", "a"), ("two labels or more",)),
    (("decide", "x", "--yes", "a"), ("--no",)),
    (("decide", "x", "--score", "2"), ("low below high",)),
    (("decide", "x", "--score", "0:1", "--calibration", "nothing"), ("calibration", "daguerre calibrate")),
    (("calibrate", "nowhere"), ("nowhere",)),
    (("calibrate", "--questions", "1"), ("2 or more",)),
    (("generate", "x", "--treshold", "0.5"), ("--threshold", "--help")),
    (("generate", "x", "--max-tokens", "many"), ("--max-tokens", "--help")),
    (("generat", "x"), ("'generate'", "--help")),
    (("generate",), ("prompt", "--help")),
    *((("generate", "x", option, "caf\udce9"), ("surrogate",)) for option in TEXTS),
    (("generate", "x", "--negative", "caf\udce9", "--guidance", "2"), ("surrogate",)),
    (("infill", "x", "y", "--draft", "caf\udce9"), ("draft", "surrogate")),
]
"""Command lines, and words of the one line that each is answered with."""


def test_a_mistake_is_one_line_that_says_what_to_do(
    subtests: pytest.Subtests, call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (arguments, words) in enumerate(MISTAKES):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        with subtests.test(" ".join(arguments)[:80].encode(errors="replace").decode()):
            assert_one_line(call(*arguments), *words)
            assert list(folder.iterdir()) == [], "nothing is written"


def test_text_that_is_not_utf8_is_refused() -> None:
    done = daguerre("generate", "-", stdin=b"caf\xe9 = 1\n")
    assert_one_line((done.returncode, done.stdout, done.stderr), "UTF-8")


def test_a_damaged_checkpoint_is_refused(
    subtests: pytest.Subtests, call: Callable[..., Called], tmp_path: Path
) -> None:
    for number, damage in enumerate((_truncate, _alter, _drop_a_tensor, _change_the_vocabulary, _remove_the_weights)):
        folder = tmp_path / str(number)
        shutil.copytree(model_folder("default"), folder)
        damage(folder)
        with subtests.test(damage.__name__):
            assert_one_line(call("generate", "x", "--model", str(folder)), "model")


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def _alter(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(content))


def _change_the_vocabulary(folder: Path) -> None:
    shutil.copy(model_folder("default").parent / "tokenizer-8k.json", folder / "tokenizer.json")


def _remove_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _drop_a_tensor(folder: Path) -> None:
    import hashlib

    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("layers.0.mlp.down.weight")
    save_file(tensors, path)
    config = json.loads((folder / "config.json").read_text())
    config["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


def test_adapting_to_a_folder_of_source_writes_a_model_that_generates(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in "abc":
        body = "".join(f"def {name}_{i}(value):\n    return value + {i}\n\n\n" for i in range(60))
        (source / f"{name}.py").write_text(body)
    done = daguerre(
        "train",
        "--from",
        "default",
        "--data",
        str(source),
        "--max-minutes",
        "5",
        "--set",
        "steps=2",
        "--out",
        "run",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"model": str(Path("run") / "model")}
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    code, _, err = call("generate", "def a_1(", "--model", str(tmp_path / "run" / "model"), "--max-tokens", "6")
    assert code == 0, err


def test_bench_refuses_what_it_cannot_measure(call: Callable[..., Called]) -> None:
    assert_one_line(call("bench", "--requests", "4"), "--requests", "--help")
    assert_one_line(call("bench", "--rounds", "3", "endpoint", "http://x/v1"), "--rounds is not for `endpoint`")
    assert_one_line(call("bench", "endpoint", "x"), "http://HOST")
    assert_one_line(call("bench", "endpoint", "http://x/v1", "--max-tokens", "0"), "max-tokens must be 1 or more")
    assert_one_line(call("bench", "--rounds", "0"), "rounds must be 1 or more")
    assert_one_line(call("bench", "--what", "speed"), "unknown part 'speed'")
    assert_one_line(call("bench", "--out", "x.txt"), "must end in .json")
