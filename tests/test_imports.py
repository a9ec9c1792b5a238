"""What importing the package needs, which way its imports point, and what importing does (nothing)."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from daguerre.commands import group, table

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = "daguerre"

# The runtime, from the bottom up. A part imports parts of its own layer or below; `daguerre` itself is the public API.
LAYERS = (
    ("kinds", "errors", "extras", "files", "lazily", "assets", "heldout", "cancellation"),
    ("http",),
    ("canvas", "trace"),
    ("models", "noise", "sampling"),
    ("decoding",),
    ("scoring", "instructions", "next_edits", "editing"),
    ("model",),
    ("engine",),
    ("daguerre",),
    ("server", "view"),
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
# They import any layer, and one another without cycles; the runtime, its command line included, imports none of them.
CAPABILITIES = ("train", "evals", "concepts", "overlap", "audit", "router")
# The command line, which imports slow parts only inside the functions that need them. Nobody imports it but the
# commands of capabilities, modules `commands` and `*_commands`, which it finds by the table.
TOP = ("commands", "cli", "__main__")
LATE = ("http", "server", "view")
TABLE = "daguerre.commands.table"
# What these share is in http, and neither imports the other; nobody else imports http.
APART = ("server", "router")
# These compute with PyTorch, or hand tensors on.
TORCH = ("extras", "models", "noise", "scoring", "model", "train", "evals")
# Importing these needs an extra; the commands that start them say which.
EXTRA = ("http", "server", "router")


@dataclass(frozen=True)
class Import:
    """One import of a module of the package by another. `scope`: module, function, or typing (under TYPE_CHECKING)."""

    importer: str
    target: str
    line: int
    scope: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def part(module: str) -> str:
    """daguerre.train.corpus.select -> train; daguerre -> daguerre."""
    return module.split(".")[1] if "." in module else module


def has_commands(module: str) -> bool:
    """daguerre.router.fit_commands -> True"""
    return part(module) in CAPABILITIES and module.endswith(("_commands", ".commands"))


def find_modules(source: Path) -> dict[str, Path]:
    names = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def find_imports(source: Path) -> list[Import]:
    modules = find_modules(source)
    found = []
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node, scope in walk(ast.parse(path.read_text(encoding="utf-8")), "module"):
            for name in named(node, package):
                target = name if name in modules else name.rpartition(".")[0]
                if target in modules and target != module:
                    found.append(Import(module, target, node.lineno, scope))
    return found


def walk(node: ast.AST, scope: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # no import is in an expression
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, scope
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from walk(child, "typing")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from walk(child, "function")
        else:
            yield from walk(child, scope)


def named(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The dotted names that an import statement asks for, each a module or something in one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
        base = f"{above}.{base}" if base else above
    return [f"{base}.{alias.name}" for alias in node.names]


def allowed(found: Import) -> bool:
    importer, target = part(found.importer), part(found.target)
    if has_commands(found.target):
        return importer == target and has_commands(found.importer)
    if target in TOP:
        ours = importer == "cli" or has_commands(found.importer)
        return importer in (target, "__main__") or (target == "commands" and ours)
    if target in CAPABILITIES and importer not in CAPABILITIES:
        return False
    if importer in TOP or has_commands(found.importer):
        return target not in (*LATE, *CAPABILITIES) or found.scope == "function"
    if {importer, target} == {*APART} or (target == "http" and importer not in ("http", *APART)):
        return False
    return importer == target or importer in CAPABILITIES or RANK[target] <= RANK[importer]


def violations(source: Path) -> list[str]:
    """What is wrong with the imports of the package under `source`: parts without a layer, wrong directions, cycles."""
    known = {*RANK, *CAPABILITIES, *TOP}
    strays = sorted({part(module) for module in find_modules(source)} - known)
    if strays:
        return [f"{stray} has no layer: give it one here and in ARCHITECTURE.md" for stray in strays]
    imports = find_imports(source)
    wrong = [f"{found}, which is not below it" for found in imports if not allowed(found)]
    modules = cycle((found.importer, found.target) for found in imports if found.importer != PACKAGE)
    parts = cycle((part(found.importer), part(found.target)) for found in imports if found.importer != PACKAGE)
    return wrong + [f"import cycle: {' -> '.join(names)}" for names in (modules, parts) if names]


def cycle(edges: Iterator[tuple[str, str]]) -> list[str]:
    """A cycle in a graph, or an empty list."""
    graph: dict[str, set[str]] = {}
    for importer, target in edges:
        if importer != target:
            graph.setdefault(importer, set()).add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_imports_point_one_way_without_cycles() -> None:
    assert violations(SOURCE) == []


PLANTED: list[tuple[dict[str, str], str]] = [
    ({"errors.py": "from daguerre.canvas import Canvas"}, "errors:1 imports daguerre.canvas"),
    ({"model.py": "import daguerre.engine.engine"}, "model:1 imports daguerre.engine.engine"),
    (
        {"decoding/generate.py": "def f():\n    from daguerre.train import optim"},
        "decoding.generate:2 imports daguerre.train.optim",
    ),
    (
        {"models/rope.py": "from ..decoding.generate import fill"},
        "models.rope:1 imports daguerre.decoding.generate",
    ),
    ({"trace.py": "if TYPE_CHECKING:\n    from daguerre import model"}, "trace:2 imports daguerre.model"),
    ({"sampling/policy.py": "from daguerre import Model"}, "sampling.policy:1 imports daguerre,"),
    ({"cli.py": "try:\n    from daguerre import server\nexcept ImportError: ..."}, "cli:2 imports daguerre.server"),
    ({"commands/asking.py": "from daguerre import server"}, "commands.asking:1 imports daguerre.server"),
    ({"commands/asking.py": "def f():\n    from daguerre import cli"}, "commands.asking:2 imports daguerre.cli"),
    ({"train/optim.py": "from daguerre.cli import main"}, "train.optim:1 imports daguerre.cli"),
    (
        {"view/demo.py": "def f():\n    from daguerre.commands import asking"},
        "view.demo:2 imports daguerre.commands",
    ),
    ({"canvas.py": "import daguerre.trace", "trace.py": "import daguerre.canvas"}, "import cycle: "),
    (
        {"canvas.py": "if TYPE_CHECKING:\n    import daguerre.trace", "trace.py": "import daguerre.canvas"},
        "import cycle: ",
    ),
    (
        {"train/optim.py": "import daguerre.evals", "evals/tasks.py": "import daguerre.train"},
        "import cycle: ",
    ),
    ({"router/app.py": "from daguerre.server import app"}, "router.app:1 imports daguerre.server.app"),
    ({"server/app.py": "def f():\n    from daguerre.router import app"}, "server.app:2 imports daguerre.router.app"),
    (
        {"http/middleware.py": "if TYPE_CHECKING:\n    from daguerre.server import app"},
        "http.middleware:2 imports daguerre.server",
    ),
    ({"http/middleware.py": "from daguerre.models import rope"}, "http.middleware:1 imports daguerre.models.rope"),
    ({"evals/tasks.py": "from daguerre.http import middleware"}, "evals.tasks:1 imports daguerre.http.middleware"),
    (
        {"server/app.py": "def f():\n    from daguerre.evals import tasks"},
        "server.app:2 imports daguerre.evals.tasks",
    ),
    (
        {"commands/asking.py": "def f():\n    from daguerre.evals import tasks"},
        "commands.asking:2 imports daguerre.evals.tasks",
    ),
    ({"view/demo.py": "from daguerre.train import optim"}, "view.demo:1 imports daguerre.train.optim"),
    ({"evals/commands.py": "from daguerre.evals import tasks"}, "evals.commands:1 imports daguerre.evals.tasks"),
    ({"evals/commands.py": "", "evals/tasks.py": "from daguerre.evals import commands"}, "evals.tasks:1 imports"),
    ({"evals/tasks.py": "from daguerre.commands import asking"}, "evals.tasks:1 imports daguerre.commands.asking"),
    ({"misc.py": ""}, "misc has no layer"),
]


def test_the_runtime_names_modules_of_capabilities_in_its_table_alone() -> None:
    named = re.compile(rf"daguerre\.({'|'.join(CAPABILITIES)})[.:][\w.:]+")
    found = {
        module
        for module, path in find_modules(SOURCE).items()
        if part(module) not in CAPABILITIES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value)
    }

    assert found == {TABLE}


def test_only_these_parts_import_torch() -> None:
    found = {
        part(module)
        for module, path in find_modules(SOURCE).items()
        for node, _ in walk(ast.parse(path.read_text(encoding="utf-8")), "module")
        if any(name.partition(".")[0] == "torch" for name in named(node, module))
    }

    assert found == {*TORCH}


def test_every_name_of_the_table_is_there() -> None:
    for name in (table.RECORDER, table.TRAINING_NEEDS):
        assert callable(table.at(name))
    of = {part(command.place) for command in table.COMMANDS.values()}
    assert of == {*CAPABILITIES, "commands"} - {"overlap"}  # whose command is of `data`


def test_the_table_says_of_a_command_what_it_says_itself() -> None:
    for name, (place, sentence, is_group) in table.COMMANDS.items():
        made = group.made(name)
        said = " ".join((made.help or "").split("\n\n")[0].split())
        assert said == sentence or said.startswith(f"{sentence[:-1]}. "), place
        assert sentence.endswith(".") and bool(getattr(made, "commands", {})) == is_group, place


def test_a_planted_violation_is_found(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for number, (files, complaint) in enumerate(PLANTED):
        plant(tmp_path / str(number), files)
        with subtests.test(complaint):
            assert any(complaint in violation for violation in violations(tmp_path / str(number)))


def test_what_the_design_allows_is_not_a_violation(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "__init__.py": "from daguerre.model import Model",
            "model.py": "from daguerre import errors\nfrom daguerre.decoding import generate",
            "decoding/generate.py": "from ..canvas import Canvas\nfrom ..sampling import policy\nimport torch",
            "sampling/policy.py": "from daguerre.noise import Schedule",
            "train/optim.py": "from daguerre import Model\nif TYPE_CHECKING:\n    from daguerre.models import rope",
            "train/data.py": "from . import optim",
            "server/app.py": "from daguerre.http import middleware",
            "router/app.py": "from daguerre.http import middleware",
            "http/middleware.py": "from daguerre.errors import shown",
            "evals/commands.py": "from daguerre.commands import asking\ndef f():\n    from daguerre.evals import tasks",
            "commands/asking.py": "from daguerre import errors\ndef f():\n    from daguerre.server import app",
            "cli.py": "from daguerre.commands import asking\ndef f():\n    from daguerre.view import demo",
            "__main__.py": "from daguerre.cli import main",
        },
    )

    assert violations(tmp_path) == []


def plant(source: Path, files: dict[str, str]) -> None:
    """A package with every module that the tests above name, empty except for `files`."""
    parts = (
        "models",
        "noise",
        "sampling",
        "decoding",
        "engine",
        "http",
        "server",
        "router",
        "evals",
        "train",
        "view",
        "commands",
    )
    modules = ("errors", "canvas", "trace", "model", "cli", "models/rope", "sampling/policy", "decoding/generate")
    modules += (
        "commands/asking",
        "engine/engine",
        "http/middleware",
        "server/app",
        "router/app",
        "evals/tasks",
        "train/optim",
    )
    names = ("__init__", *modules, *(f"{part}/__init__" for part in parts))
    for name, text in ({f"{name}.py": "" for name in names} | files).items():
        path = source / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def core_requirements() -> list[Requirement]:
    """With PyTorch, which modules may need that compute with it; tests/test_without_torch.py has the others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["torch"]]


def core_distributions() -> set[str]:
    """The core dependencies, and all that these need in turn, here."""
    core: set[str] = set()
    waiting = core_requirements()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in core and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            core.add(name)
            waiting += [Requirement(line) for line in importlib.metadata.requires(name) or []]
    return core


def importable(distributions: set[str]) -> set[str]:
    """The top-level names that installed distributions bring."""
    owners = importlib.metadata.packages_distributions()
    return {top for top, names in owners.items() if distributions & {canonicalize_name(name) for name in names}}


def outside_core() -> list[str]:
    """The top-level names that can be imported here and belong neither to the core nor to this package."""
    return sorted(set(importlib.metadata.packages_distributions()) - importable(core_distributions() | {PACKAGE}))


def in_new_process(script: str, folder: Path) -> str:
    """The output of a script run in an empty folder; it has `modules`, `core` and `outside`: names to import."""
    core = importable({canonicalize_name(requirement.name) for requirement in core_requirements()})
    given = {
        "source": str(SOURCE),
        "modules": [module for module in find_modules(SOURCE) if part(module) not in EXTRA or has_commands(module)],
        "core": sorted(filter(str.isidentifier, core)),
        "outside": outside_core(),
    }
    head = """
        import importlib, json, sys
        globals().update(json.loads(sys.stdin.read()))
        sys.path.insert(0, source)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(script)],
        input=json.dumps(given),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout + done.stderr


def test_every_module_imports_with_the_core_dependencies_alone(tmp_path: Path) -> None:
    script = """
        class Bare:  # a finder of modules that finds none from outside the core
            def __init__(self, finder):
                self.finder = finder
            def __getattr__(self, name):
                return getattr(self.finder, name)
            def find_spec(self, name, path=None, target=None):
                return None if name.partition(".")[0] in outside else self.finder.find_spec(name, path, target)

        sys.meta_path[:] = map(Bare, sys.meta_path)
        for name in outside:
            sys.modules.pop(name, None)
        for name in modules:
            importlib.import_module(name)
        print(importlib.util.find_spec("pytest"), importlib.util.find_spec("torch") is not None)
    """
    assert "pytest" in outside_core()
    assert in_new_process(script, tmp_path).split() == ["None", "True"]


def test_importing_does_nothing_else(tmp_path: Path) -> None:
    script = """
        import logging, os, signal, threading, warnings

        for name in core:
            importlib.import_module(name)
        import numpy, torch

        def state():
            return {
                "environment": dict(os.environ),
                "threads": (threading.active_count(), torch.get_num_threads()),
                "torch": (torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled()),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "random": (torch.get_rng_state().tolist(), str(numpy.random.get_state())),
                "signals": (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
                "hooks": (sys.excepthook, sys.displayhook, list(sys.meta_path)),
                "logging": (logging.root.level, list(logging.root.handlers)),
            }

        warnings.simplefilter("error")
        before, loaded = state(), set(sys.modules)
        for name in modules:
            importlib.import_module(name)
        after = state()
        changed = [key for key in before if before[key] != after[key]]
        assert not changed, changed
        extra = {name.partition(".")[0] for name in set(sys.modules) - loaded} & set(outside)
        assert not extra, f"imported although only some functions need them: {sorted(extra)}"
    """
    assert in_new_process(script, tmp_path) == ""


HEAVY = "torch numpy typer pydantic rich tokenizers jinja2 huggingface_hub safetensors importlib.metadata".split()
PARTS_OF_IT = tuple(
    f"daguerre.{name}"
    for name in (
        *("cli", "model", "decoding", "models", "server", "engine", "view", "scoring.decisions", "scoring.likelihood"),
        *("sampling.constraints.compile", "sampling.constrained", "models.wrappers.guidance", "decoding.steering"),
        *("models.chat_template", "models.chat_format.description", "commands.serving", "commands.models"),
        *CAPABILITIES,
    )
)
USED: dict[str, set[str]] = {
    "import daguerre": set(),
    "import daguerre.models.backends.library": {"daguerre.models"},  # compiles in make demo, before NumPy is installed
    "daguerre --help": {"typer", "daguerre.cli"},
    "daguerre generate": {"numpy", "typer", "tokenizers", "safetensors", "daguerre.cli", "daguerre.model"}
    | {"daguerre.decoding", "daguerre.models"},
}


@pytest.mark.parametrize("what", USED)
def test_a_command_imports_what_it_uses_alone(what: str, tmp_path: Path) -> None:
    script = f"""
        what, watched = {what!r}, {(*HEAVY, *PARTS_OF_IT)!r}
        importlib.import_module(what.removeprefix("import ") if what.startswith("import ") else "daguerre")
        words = dict([("daguerre --help", ["--help"]), ("daguerre generate", ["generate", "x", "--max-tokens", "2"])])
        if what in words:
            from daguerre.cli import main
            sys.argv = ["daguerre", *words[what]]
            try:
                main()
            except SystemExit as ended:
                assert not ended.code, ended
        print("imported", *(name for name in watched if name in sys.modules))
    """
    assert {*in_new_process(script, tmp_path).splitlines()[-1].split()} - {"imported"} == USED[what]
