"""The documents are true: names exist, the README's Python runs, its commands are commands."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from bench_report import REPORT
from daguerre.cli import app
from daguerre.errors import DataError
from daguerre.evals.report import markdown
from test_house import BOUNDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
DESIGN = ["ARCHITECTURE.md", *(f"docs/{name}.md" for name in ("constraints", "decoding", "noise", "speed", "training"))]
"""Pages that name modules, classes and functions."""


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def resolves(name: str) -> bool:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            place = importlib.import_module(".".join(["daguerre", *parts[:split]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            if not hasattr(place, attribute):
                return False
            place = getattr(place, attribute)
        return True
    return False


def dotted_names(text: str) -> list[str]:
    return sorted(
        {
            n
            for n in re.findall(r"`([a-z_]+(?:\.\w+)+)`", text)
            if not n.endswith((".py", ".md", ".json", ".toml", ".cpp", ".h"))
        }
    )


def test_the_names_of_a_page_exist(subtests: pytest.Subtests) -> None:
    assert not resolves("decoding.denoise.denoised") and not resolves("nowhere.denoise")
    for page in DESIGN:
        with subtests.test(page):
            names = dotted_names((ROOT / page).read_text(encoding="utf-8"))
            assert len(names) > 2
            assert [name for name in names if not resolves(name)] == []


def printed(code: str, name: str, names: dict[str, Any]) -> str:
    """What code prints, run with these names."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, name, "exec"), names)
    return out.getvalue()


def test_the_python_of_the_readme_prints_what_it_says() -> None:
    (code,), (output,) = fenced(README, "python"), fenced(README, "text")
    assert printed(code, "README.md", {}).rstrip() == output.rstrip()


@pytest.mark.parametrize("page", ["canvas", "control"])
def test_the_python_of_a_page_does_what_it_says(page: str) -> None:
    names: dict[str, Any] = {}
    for number, code in enumerate(fenced((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), "python"), 1):
        said = [line.encode().decode("unicode_escape") for line in re.findall(r'# prints "(.*)"$', code, flags=re.M)]
        assert printed(code, f"docs/{page}.md, block {number}", names) == "".join(f"{line}\n" for line in said)


def commands() -> list[str]:
    pages = (README, (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"))
    blocks = [block for page in pages for block in fenced(page, "")]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("daguerre ")]


def test_a_command_of_the_documents_parses(subtests: pytest.Subtests) -> None:
    group = typer.main.get_command(app)
    lines = commands()
    assert len(lines) > 15
    for line in lines:
        with subtests.test(line):
            arguments = shlex.split(line.replace("$'", "'"))[1:]
            context = group.make_context("daguerre", list(arguments), resilient_parsing=False)
            name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
            if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
                name, command, rest = command.resolve_command(context, rest)
            assert command.make_context(name, list(rest), parent=context)


def test_a_page_is_as_long_as_one_reads() -> None:
    """README: one page, a table of at most eight rows. ARCHITECTURE: 150 lines."""
    assert len(README.splitlines()) <= 90 and len(README.split()) <= 800
    assert 0 < sum(line.startswith("|") for line in README.splitlines()) - 2 <= 8
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_architecture_counts_what_there_is() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tables = re.findall(r"`([\w.]+)\.(\w+)` \| (\d+) \|$", text, flags=re.M)
    assert len(tables) == 5
    for module, name, number in tables:
        assert len(getattr(importlib.import_module(f"daguerre.{module}"), name)) == int(number), name
    bounds = text.split("| count | at most |")[1].split("\n\n")[0]
    shown = {name: int(number) for name, number in re.findall(r"^\| (.+) \| (\d+) \|$", bounds, flags=re.M)}
    assert len(shown) > 2 and shown.items() <= BOUNDS.items()
    folders = sorted(path.parent.name for path in (ROOT / "src" / "daguerre").glob("*/__init__.py"))
    assert [name for name in folders if f"`{name}/`" not in text] == []
    recorded = json.loads((ROOT / "tests" / "equivalence" / "recorded.json").read_text(encoding="utf-8"))
    assert f"{len(recorded)} recorded requests" in text


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}


def test_the_readme_shows_its_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert f"\n{target}:" in makefile


def test_links_of_a_document_lead_to_files() -> None:
    targets = [
        (name, target)
        for name in DOCUMENTS
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert len(targets) > 100
    assert [(name, target) for name, target in targets if not (ROOT / name).parent.joinpath(target).exists()] == []


def test_a_recipe_says_what_it_is_for() -> None:
    recipes = sorted((ROOT / "recipes").glob("*.toml"))
    assert recipes
    for recipe in recipes:
        assert recipe.read_text(encoding="utf-8").startswith("# "), recipe
        assert tomllib.loads(recipe.read_text(encoding="utf-8"))["name"] == recipe.stem


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """The script docs/write_figures.py."""
    spec = importlib.util.spec_from_file_location("write_figures", ROOT / "docs" / "write_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(figures: ModuleType) -> dict[str, Any]:
    return figures.read_tasks(sorted(figures.RESULTS.glob("default-*.json")))


def test_the_figures_of_the_documents_are_those_of_the_reports(figures: ModuleType) -> None:
    tasks = committed(figures)

    assert {"bits", "infill", "draft"} <= set(tasks)
    for name in figures.DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert len(figures.BLOCK.findall(text)) > 1
        assert figures.rewritten(text, tasks) == text, "run `python docs/write_figures.py`"


def test_a_figure_that_changes_changes_its_row_and_its_verdict(figures: ModuleType) -> None:
    text = "before\n<!-- figures: bars -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    tasks = committed(figures)
    missed = figures.rewritten(text, tasks)
    draft = tasks["draft"] | {"match_by_position": [0.9] * 16, "match_stderr": [0.01] * 16}
    met = figures.rewritten(text, tasks | {"draft": draft})

    assert "| one-shot draft equal to its own greedy text, position 2 | 0.90 ± 0.01 | 0.55 | met |" in met
    assert "position 2 | 0.90" not in missed
    assert missed.startswith("before\n<!-- figures: bars -->\n| ")
    assert missed.endswith("|\n<!-- end -->\nafter <!-- end -->\n")
    assert figures.rewritten(met, tasks) == missed


def test_a_task_that_was_not_measured_has_no_row(figures: ModuleType) -> None:
    tasks = committed(figures)
    some = {"reports": tasks["reports"], "draft": tasks["draft"]}

    assert "NELBO" not in figures.bars(some)
    assert "position 8" in figures.bars(some)


def test_every_bar_is_met_or_missed(figures: ModuleType) -> None:
    def line(method: str, length: str, exact: float) -> dict[str, Any]:
        return {"method": method, "length": length, "exact": exact, "exact_interval": [0.0, 1.0], "num": 10}

    known, others = line("infill", "known", 0.2), [line("copy", "unknown", 0.0), line("ar", "unknown", 0.1)]
    others.append(line("infill, ended by itself", "unknown", 0.19))
    rows = [{"reading": "leave_one_out", "fixed": 0.6, "broken": 0.01, "threshold": 0.9}]
    speeds = [{"label": "ar", "tokens_per_forward": 0.9}, {"label": "block 8", "tokens_per_forward": 1.6}]
    good = {
        "infill": {"outcomes": [line("infill", "unknown", 0.18), known, *others]},
        "correction": {"rows": rows, "best": {"random 0.05": 0}},
        "completion": {"rows": speeds, "best_no_worse": "block 8"},
    }
    bad = {
        "infill": {"outcomes": [line("infill", "unknown", 0.1), known, *others]},
        "correction": {"rows": rows, "best": {"random 0.05": None}},
        "completion": {"rows": speeds, "best_no_worse": None},
    }

    assert "missed" not in figures.bars(good)
    assert figures.bars(good).count("| met |") == 5
    assert figures.bars(bad).count("| **missed** |") == 4
    assert "| 60% fixed, 1.0% broken (each token masked, threshold 0.9) | 50% | met |" in figures.bars(good)
    assert "| 90% | 80% | met |" in figures.bars(good)
    assert "| `copy` 0.0%, `ar` 10.0% | below | met |" in figures.bars(good)
    assert "| 1.60 (block 8) | 1.5 | met |" in figures.bars(good)


def test_the_tables_beside_a_report_are_those_of_its_figures(figures: ModuleType) -> None:
    for path in sorted(figures.RESULTS.glob("default-*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        assert markdown(report) == path.with_suffix(".md").read_text(encoding="utf-8"), path.name


def test_reports_of_other_weights_or_of_a_task_twice_are_refused(figures: ModuleType, tmp_path: Path) -> None:
    path = figures.RESULTS / "default-draft.json"
    with pytest.raises(DataError, match="'draft', which another report has too"):
        figures.read_tasks([path, path])
    report = json.loads(path.read_text(encoding="utf-8"))
    report["model"]["weights_sha256"] = "0" * 64
    (tmp_path / "default-old.json").write_text(json.dumps(report))
    with pytest.raises(DataError, match=r"default-old\.json is of other weights"):
        figures.read_tasks([tmp_path / "default-old.json"])
    with pytest.raises(DataError, match="no table is called 'barz'"):
        figures.rewritten("<!-- figures: barz -->\n<!-- end -->", {})


def test_tables_of_speed_say_what_was_measured_and_what_was_not(figures: ModuleType) -> None:
    names = [name for name in figures.TABLES if name.startswith("speed_")]

    assert {figures.TABLES[name]({}) for name in names} == {figures.NOT_MEASURED}
    assert {figures.TABLES[name]({"speed": {"infill": REPORT["infill"]}}) for name in names[1:]} == {
        figures.NOT_MEASURED
    }
    tasks = {"speed": REPORT}
    assert "| one thread, native float32 | 1.00 | 2.00 | 5.00 |" in figures.speed_rows(tasks)
    assert "| 4 tokens a forward | 2.10 | 3.8 |" in figures.speed_crossing(tasks)
    missed = figures.speed_missed(tasks)
    assert "block 8: one request by `Together`, longer than by `drive` | 3% or less | **+4.0%** | **+4.0%** |" in missed
    assert "32-row forward" not in missed
