"""Tasks of recipes/instructions against checks that know nothing of how they were made; and the recipe for a moment."""

from __future__ import annotations

import ast
import inspect
import io
import json
import math
import random
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from difflib import SequenceMatcher
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.instructions import (
    apply_pattern,
    bounds_of,
    lettered,
    lines_of,
    read_listing,
    read_merge,
    read_rename,
    rename_prompt,
)
from daguerre.model import load
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import score_tokens
from daguerre.train.corpus.sources import Package
from daguerre.train.recipe import load_recipe
from daguerre.train.run import run_training
from recipe_scripts import recipe_scripts

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "instructions"
TINY = [
    *(
        "steps=2",
        "minutes=0",
        "tokenizer=bytes",
        "precision=float32",
    ),
    *(
        "stages.0.length=2048",
        "stages.0.sequences=1",
        "sft.held_out=0.1",
        "sft.keep=0",
        "model.width=32",
        "model.num_layers=1",
        "rope_scaling=",
    ),
    *("model.num_heads=2", "model.num_kv_heads=1", "model.mlp_width=32", "model.max_positions=2048"),
]


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The scripts of recipes/instructions."""
    with recipe_scripts(
        "instructions", "pieces", "statements", "merges", "tasks", "make", "evaluate", "prove", "hard"
    ) as found:
        yield found


@pytest.fixture(scope="module")
def made(scripts: SimpleNamespace) -> dict[str, list[Any]]:
    """Rows of every task, of files of the frozen sample."""
    tokenizer, rng = Tokenizer.default("2k"), random.Random(1)
    files = list(scripts.pieces.held_files())[::6]
    pieces = [piece for file in files for piece in scripts.pieces.pieces_of(*file, tokenizer, rng, 6)]
    donors = scripts.statements.Donors()
    for piece in pieces:
        donors.add(piece)
    return {
        task: list(scripts.make.rows_of(pieces, donors, {task: 1.0}, 0, tokenizer)) for task in scripts.tasks.MAKERS
    }


def test_every_task_is_made(made: dict[str, list[Any]]) -> None:
    assert all(len(rows) >= 10 for rows in made.values()), {task: len(rows) for task, rows in made.items()}


def test_a_merge_is_what_its_edit_makes(scripts: SimpleNamespace, made: dict[str, list[Any]]) -> None:
    kinds = set()
    for row in made["apply"]:
        facts, kinds = row.facts, kinds | set(row.kind.split("+"))
        assert read_merge(facts["code"], row.completion) == facts["merged"]
        assert re.sub(r" #\d+$", "", row.completion, flags=re.M) == lettered(facts["snippet"]).replace(" #\n", "\n")
        ast.parse("\n".join(facts["merged"]))
        assert facts["merged"] != facts["code"] and len(facts["snippet"]) < len(facts["merged"])
        assert scripts.merges.merge_by_rule(facts["code"], facts["snippet"]) == facts["merged"]
    assert kinds >= {"insert", "replace", "mutate", "delete"}


@pytest.mark.parametrize("task", ["repeated", "bare", "touches"])
def test_what_a_rule_does_not_find_is_an_edit_too(made: dict[str, list[Any]], task: str) -> None:
    for row in made[task]:
        code, snippet = row.facts["code"], row.facts["snippet"]
        assert read_merge(code, row.completion) == row.facts["merged"]
        assert re.sub(r" ?#\+?\d+$", "", row.completion, flags=re.M) == re.sub(
            r" ?#$", "", lettered(snippet), flags=re.M
        )
        assert re.fullmatch(apply_pattern(code, snippet, equal=False), row.completion)


def test_new_lines_at_the_end_of_a_chunk_take_no_line_away(made: dict[str, list[Any]]) -> None:
    kinds = set()
    for row in made["bare"]:
        code, merged, snippet = (row.facts[name] for name in ("code", "merged", "snippet"))
        kinds.add(row.kind)
        ast.parse("\n".join(merged))
        how = {tag for tag, *_ in SequenceMatcher(None, code, merged, autojunk=False).get_opcodes()} - {"equal"}
        if row.kind == "changed":
            assert len(merged) == len(code) and not how - {"replace"}
            assert {new for old, new in zip(code, merged, strict=True) if old != new} <= set(snippet)
        else:
            assert how == {"insert"}
        if row.kind in ("appended", "prepended"):
            assert code == (merged[: len(code)] if row.kind == "appended" else merged[-len(code) :])
        if row.kind == "body":  # the body whose head is shown has another statement
            head = snippet[0 if code[0] == snippet[0] else 1]
            assert _num_statements(merged, head) == 1 + _num_statements(code, head)
    assert kinds == {"appended", "prepended", "body", "beside", "changed"}


def _num_statements(lines: list[str], head: str) -> int:
    """The number of statements in the body below a line."""
    at, tree = lines.index(head) + 1, ast.parse("\n".join(lines))
    (node,) = (one for one in ast.walk(tree) if getattr(one, "lineno", 0) == at and hasattr(one, "body"))
    return len(node.body)


def test_lines_that_a_file_has_twice_are_told_apart_by_the_next_ones(
    scripts: SimpleNamespace, made: dict[str, list[Any]]
) -> None:
    found = []
    for row in made["repeated"]:
        code, snippet = row.facts["code"], row.facts["snippet"]
        bounds = [line for line, bound in zip(snippet, bounds_of(snippet), strict=True) if bound]
        assert any(code.count(line) > 1 for line in bounds)
        found.append(scripts.merges.merge_by_rule(code, snippet) == row.facts["merged"])
    assert 0 < sum(found) < len(found)


def test_the_rule_needs_the_lines_that_it_looks_for(scripts: SimpleNamespace) -> None:
    rule, gap = scripts.merges.merge_by_rule, "# ... existing code ..."
    code = ["a", "b", "c", "d"]
    assert rule(code, [gap, "b", "x", "c", gap]) == ["a", "b", "x", "c", "d"]
    assert rule(code, ["x", "b", gap]) == ["x", "b", "c", "d"]
    assert rule(code, [gap, "c", "x"]) == ["a", "b", "c", "x"]
    assert rule(code, [gap, "a", gap, "c", "x", "d", gap]) == ["a", "b", "c", "x", "d"]
    assert rule(code, [gap, "y", "x", "c", gap]) is None
    assert rule(code, [gap, "b", "x", "y", gap]) is None


class Renamed(ast.NodeTransformer):
    """Every identifier `old` of a tree, or of one function's variables, as `new`."""

    def __init__(self, old: str, new: str, function: str | None) -> None:
        self.old, self.new, self.function, self.inside = old, new, function, function is None

    def visit(self, node: ast.AST) -> Any:
        before = self.inside
        self.inside |= isinstance(node, ast.FunctionDef) and node.name == self.function
        fields = ("id", "arg") if self.function and not isinstance(node, ast.keyword) else ()
        fields = fields if self.function else ("id", "arg", "attr", "name", "asname", "module", "rest")
        for name in fields if self.inside else ():
            value = getattr(node, name, None)
            if isinstance(value, str):
                setattr(node, name, ".".join(self.new if part == self.old else part for part in value.split(".")))
        if self.inside and isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self.new if name == self.old else name for name in node.names]
        self.generic_visit(node)
        self.inside = before
        return node


def test_a_rename_is_that_of_the_tree(made: dict[str, list[Any]]) -> None:
    kinds = []
    for row in made["rename"]:
        code, names, region = (row.facts[name] for name in ("code", "names", "region"))
        said, shown = row.prompt.rsplit("#> rename ", 1)[1].removesuffix("#> result\n").split("\n", 1)
        assert said.split(" to ") == names
        tree = ast.parse("\n".join(code))
        functions = {node.lineno: node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        wanted = Renamed(*names, functions[region[0]] if row.kind == "here" else None).visit(tree)
        made = read_rename(code, *names, row.completion, *region)
        assert made == row.facts["result"] and ast.dump(ast.parse("\n".join(made))) == ast.dump(wanted)
        numbers = [int(line.split(" ", 1)[0]) for line in lines_of(shown)]
        assert read_listing(re.sub(r"\$[a-zA-Z]\b", names[0], shown)) == "".join(code[n - 1] + "\n" for n in numbers)
        kinds.append(row.kind)
    assert min(kinds.count("here"), kinds.count("everywhere")) > 3


def test_an_answer_names_the_places_of_a_rename() -> None:
    code = ["x = 1", "def f(x):", "    return x + g(x=x, y='x')", "max = x"]
    prompt = rename_prompt(code, "x", "y", 2, 3)
    assert prompt.endswith("#> rename x to y\n2 def f($a):\n3     return $b + g($c=$d, y='$e')\n#> result\n")
    assert read_rename(code, "x", "y", "a b d\n", 2, 3)[1:3] == ["def f(y):", "    return y + g(x=y, y='x')"]
    assert read_rename(code, "x", "longer", "f g ! a\n")[0] == "longer = 1"
    assert read_rename(code, "x", "y", "\n") == code
    with pytest.raises(InputError, match="52 places can be shown"):
        rename_prompt(["x x x"] * 18, "x", "y")


def test_a_planted_error_is_in_one_line(made: dict[str, list[Any]]) -> None:
    for row in made["fix"]:
        code, at = row.facts["code"], row.facts["line"]
        assert row.completion == f"{at + 1} {row.facts['right']}\n" and code[at] != row.facts["right"]
        ast.parse("\n".join([*code[:at], row.facts["right"], *code[at + 1 :]]))
    assert len({row.kind for row in made["fix"]}) >= 4


def test_a_type_fits_where_it_was_taken_away(made: dict[str, list[Any]]) -> None:
    for row in made["type"]:
        code = read_listing(row.prompt.split("#> ", 2)[1].split("\n", 1)[1])
        where, _, function = row.prompt.rsplit("#> type ", 1)[1].split("\n")[0].rpartition(" of ")
        nodes = [
            node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef) and node.name == function
        ]
        args = [a for node in nodes for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
        missing = [node.returns for node in nodes] if not where else [a.annotation for a in args if a.arg == where]
        assert None in missing
        ast.parse(row.completion.strip(), mode="eval")


def test_a_call_binds_the_values_to_the_parameters(made: dict[str, list[Any]]) -> None:
    for row in made["call"]:
        name, _, said = row.prompt.rsplit("#> call ", 1)[1].split("\n")[0].partition(" with ")
        wanted = {one.arg: ast.unparse(one.value) for one in ast.parse(f"f({said})", mode="eval").body.keywords}  # type: ignore[attr-defined]
        call = ast.parse(row.completion.strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        code = ast.parse(read_listing(row.prompt.split("#> ", 2)[1].split("\n", 1)[1]))
        nodes = [node for node in ast.walk(code) if isinstance(node, ast.FunctionDef) and node.name == name]
        assert any(_bound(node.args, call) == wanted for node in nodes)


def _bound(args: ast.arguments, call: ast.Call) -> dict[str, str] | None:
    """What Python itself makes of a call of a function with these parameters."""
    head = ast.unparse(
        ast.arguments(**{**dict(ast.iter_fields(args)), "defaults": [ast.Constant(0)] * len(args.defaults)})
    )
    for one in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
        if one.annotation is not None:
            head = head.replace(f"{one.arg}: {ast.unparse(one.annotation)}", one.arg)
    head = head.removeprefix("self, ").removeprefix("cls, ")
    try:
        signature = inspect.signature(eval(f"lambda {head}: None", dict.fromkeys(_names(head), 0)))
        bound = signature.bind(
            *map(ast.unparse, call.args), **{one.arg: ast.unparse(one.value) for one in call.keywords if one.arg}
        )
    except (SyntaxError, TypeError):
        return None
    return dict(bound.arguments)


def _names(head: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(f"lambda {head}: None")) if isinstance(node, ast.Name)}


def test_a_next_edit_is_done_wherever_the_region_has_it(scripts: SimpleNamespace, made: dict[str, list[Any]]) -> None:
    """By tokens and trees: in the region no name is left that was to change, no call without its argument; what is not
    in the region, comments and texts are as they were.
    """
    kinds = Counter(row.kind for row in made["next_edit"])
    assert set(kinds) == {"rename", "argument", "nothing due"}
    for row in made["next_edit"]:
        code, right, change = row.facts["code"], row.facts["right"], row.facts["change"]
        first, last = row.facts["region"]
        assert (row.kind == "nothing due") == (row.completion == "None\n") == (code == right)
        assert code[:first] == right[:first] and code[last:] == right[last:]
        read = scripts.tasks.TaskRow(**json.loads(json.dumps(asdict(row))))
        assert scripts.evaluate.is_exact(read, row.completion)
        assert not scripts.evaluate.is_exact(read, row.completion.removesuffix("\n"))
        tree = ast.parse("\n".join(right))
        if change["argument"]:
            name, _, value = change["text"].partition("=")
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and node.lineno == node.end_lineno and first < node.lineno <= last:
                    function = ast.unparse(node.func).rpartition(".")[2]
                    given = {one.arg: ast.unparse(one.value) for one in node.keywords}
                    assert function != change["word"] or given.get(name) == value
        else:
            before, after = (list(tokens(lines)) for lines in (code, right))
            for old, new in zip(before, after, strict=True):
                due = old == (tokenize.NAME, change["word"], old[2]) and first < old[2] <= last
                assert new == ((tokenize.NAME, change["text"], old[2]) if due else old)


def tokens(lines: list[str]) -> Iterator[tuple[int, str, int]]:
    """Kind, text and line of each token."""
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        yield token.type, token.string, token.start[0]


def test_files_of_held_out_packages_are_not_trained_on(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    functions = (
        f"def {name}(path):\n    return os.path.join(path, '{name}')\n" for name in ("first", "second", "third")
    )
    text = "\n\n".join(["import os\n", *functions])
    held = next(text for package, text in scripts.pieces.held_files() if package == "flask")
    for name, content in (("a.py", text), ("copy.py", held)):
        (tmp_path / name).write_text(content)
    names = ("ours", "flask", "urllib3", "httpx2")
    packages = [Package(name, "1", "MIT", tmp_path, ("a.py", "copy.py")) for name in names]
    monkeypatch.setattr(scripts.pieces, "find_packages", lambda sources: packages)
    assert [package for package, _ in scripts.pieces.training_files(0)] == ["ours"]  # and no near duplicate


def test_answers_are_checked_as_the_task_says(scripts: SimpleNamespace) -> None:
    exact, row = scripts.evaluate.is_exact, scripts.tasks.TaskRow
    facts = {"code": ["a", "b"], "merged": ["a", "c"]}
    for answer in ("...\na a #1\nb c\n", "...\na c #2\n", "a a\nb c #2\n...\n"):  # the file is what counts
        assert exact(row("apply", "", "", "", facts), answer)
        assert not exact(row("apply", "", "", "", facts), answer.removesuffix("\n"))
    assert not exact(row("apply", "", "", "", facts), "...\na c\n...\n")
    assert not exact(row("fix", "", "", "3 a\n"), "4 a\n")
    assert exact(row("type", "", "", "'a | None'\n"), '"a | None"\n')
    assert not exact(row("call", "", "", "f(1, b=2)\n"), "f(1, 2)\n")
    assert not exact(row("call", "", "", "f(1)\n"), "f(1\n")


def test_the_recipe_makes_a_model_that_says_its_tasks(
    scripts: SimpleNamespace, made: dict[str, list[Any]], tmp_path: Path
) -> None:
    rows = [row for task in made for row in made[task][:4]]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": row.prompt, "completion": row.completion}) + "\n" for row in rows))
    recipe = str(FOLDER / "instructions.toml")
    folder = run_training(recipe, overrides=TINY, data=data, out=tmp_path / "run", device="cpu", quiet=True)
    model = load(folder)
    assert model.tasks == load_recipe(recipe).sft.tasks  # type: ignore[union-attr]
    short = sorted(rows, key=lambda row: len(row.prompt))[:2]
    found, wrong = scripts.evaluate.evaluate(model, short)
    assert sum(one.all.num for one in found) == 2 and len(wrong) <= 2
    with pytest.raises(InputError, match=r"sft\.tasks"):
        load_recipe(recipe, ["sft.tasks=['dance']"])


def test_the_report_has_what_was_measured(scripts: SimpleNamespace, made: dict[str, list[Any]], tmp_path: Path) -> None:
    prove, evaluate = scripts.prove, scripts.evaluate
    rows = made["apply"][:4]
    found = evaluate.measured("apply", rows, [True, False, True, True], [50, 150, 250, 90])
    share = asdict(evaluate.TaskShare.of([True, False]))
    values = {
        "machine": {"processor": "P", "instruction_set": "avx2"},
        "trained": {"minutes": 2.0, "step": 7, "tokens": 900},
        "tasks": {"shares": [asdict(found)], "wrong": []},
        "revise": {"ways": [{"revision": asdict(prove.WAYS[0]), "all": share, "as_long": share}]},
        "bits": {"before": {"ar": 0.8}, "after": {"ar": 0.84}},
    }
    (tmp_path / "measured.json").write_text(json.dumps(values))
    point = {"tokens": 900, "exact": {"apply": share}}
    (tmp_path / "curve.jsonl").write_text(json.dumps(point) + "\n")
    prove.report(tmp_path, tmp_path / "out.json")
    page = (tmp_path / "out.md").read_text()
    for said in (
        "75.0% of 4",
        "rule: 100.0% of 4",
        "201 to 300 | 100.0% of 1",
        "unmasked, all, 0.5 | 50.0% of 2",
        "+5.0%",
    ):
        assert said in page
    assert "| 900 | 50% |" in page and (tmp_path / "out.png").stat().st_size > 1000


def test_the_least_likely_token_is_that_of_the_answer_a_token_at_a_time(scripts: SimpleNamespace) -> None:
    model, prompt, answer = load(), "def area(width, height):\n    return ", "width * height\n"
    begin = [model.tokenizer.start_id, *model.tokenizer.encode(prompt)]
    tokens = [*begin, *model.tokenizer.encode(answer)]
    each = [
        math.exp(-score_tokens(model.denoiser.backend, tokens[: at + 1], given=at).value)
        for at in range(len(begin), len(tokens))
    ]
    assert scripts.hard.least(model, prompt, answer) == pytest.approx(min(each), rel=1e-3)
    assert max(each) > 2 * min(each)


def test_hard_merges_and_shares_of_all_else_are_gone_on_with(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges = [{"prompt": f"#> file\nx #1\n#> apply\n{i}", "completion": "y"} for i in range(100)]
    others = [{"prompt": f"#> file\n#> rename\n{i}", "completion": "a"} for i in range(100)]
    plain = [{"text": f"x = {i}\n"} for i in range(100)]
    rows = [row for three in zip(merges, others, plain, strict=True) for row in three]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = list[str]()

    def least(model: object, prompt: str, answer: str) -> float:
        asked.append(prompt)
        return 0.59 if int(prompt.rsplit("\n", 1)[1]) % 2 else 0.6

    monkeypatch.setattr(scripts.hard, "least", least)
    command = ["hard.py", "--data", str(tmp_path), "--model", "default", "--out", str(tmp_path / "out"), "--num", "80"]
    monkeypatch.setattr(sys, "argv", command)
    scripts.hard.main()
    found = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert asked == [row["prompt"] for row in merges[:80]]
    assert [row for row in merges if row in found and row in merges[1:80:2]] == merges[1:80:2]
    kinds = [sum(row in some for row in found) for some in (merges[1:80:2], merges[0:80:2], others, plain)]
    assert kinds == [40, 4, 16, 20] and len(found) == 80
    assert found != sorted(found, key=rows.index)
