"""The table of the command line: where each command is, and the sentence that says what it does.

A command's module is imported when the command runs, so that a start imports no other's, and the list of commands is
shown without any. The capabilities beside the runtime are named here alone: they import the runtime, which imports none
of them. The table is not made of entry points of the installed distribution, since a checkout that is found by its path
would get those of whatever version is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command. place: module:function. sentence: the first of the function's docstring. is_group: the function gives
    a `typer.Typer` with commands of its own.
    """

    place: str
    sentence: str
    is_group: bool = False


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "daguerre.commands.asking:demo",
        "Show the model completing and infilling held-out code, the draft sharpening as it runs.",
    ),
    "generate": Command("daguerre.commands.asking:generate", "Complete a prompt."),
    "complete": Command(
        "daguerre.commands.asking:complete",
        "Write on in a file: at its end, in a new line behind line LINE, or at a column, counted from 1.",
    ),
    "infill": Command(
        "daguerre.commands.asking:infill",
        "Fill the gap between two texts, or in a file: `FILE --at LINE:COLUMN`, or `FILE --lines FIRST:LAST`.",
    ),
    "fill": Command(
        "daguerre.commands.asking:fill",
        "Fill every gap of a template in one run, the gaps seeing each other; --max-tokens is of each.",
    ),
    "edit": Command(
        "daguerre.commands.asking:edit",
        "Rewrite parts of a file and keep the rest verbatim; print the whole, or the difference, or write the file.",
    ),
    "apply": Command(
        "daguerre.commands.applying:apply",
        "Merge a file with a snippet, a unified diff or search-and-replace blocks; `-` reads either from standard "
        "input.",
    ),
    "run": Command(
        "daguerre.commands.running:run",
        "Answer a question by a model, which is pulled if need be; without a question, converse.",
    ),
    "chat": Command(
        "daguerre.commands.asking:chat",
        "Converse with a model in the terminal, by its own chat template; /help says what can be typed.",
    ),
    "decide": Command(
        "daguerre.commands.deciding:decide",
        "Fill a blank with the likeliest of several texts (--label), of --yes and --no, or with a number (--score).",
    ),
    "score": Command(
        "daguerre.commands.scoring:score",
        "Say how likely a file is under the model: bits of each line, and which lines are surprising.",
    ),
    "serve": Command(
        "daguerre.commands.serving:serve",
        "Serve models over HTTP: OpenAI's and Mercury's interfaces, and a playground in the browser.",
    ),
    "batch": Command("daguerre.commands.serving:batch", "Answer a file of requests."),
    "train": Command("daguerre.train.commands:train", "Train a model, or adapt one to your code."),
    "average": Command(
        "daguerre.train.commands:average",
        "Average the weights of models that were trained on from the same one.",
    ),
    "calibrate": Command(
        "daguerre.evals.commands:calibrate",
        "Fit the probabilities of `decide` to held-out code, and keep them in the model's folder.",
    ),
    "eval": Command(
        "daguerre.evals.commands:evaluate_model",
        "Measure a model on held-out code: its likelihood, and how well and fast the model writes and corrects code.",
    ),
    "pull": Command("daguerre.commands.pulling:pull", "Download a model, if it is not there yet; or an adapter."),
    "models": Command(
        "daguerre.commands.pulling:models",
        "List the models that are here, and those that can be pulled: what fits this machine, and how fast it may be.",
    ),
    "rm": Command("daguerre.commands.pulling:remove", "Delete a model that was pulled."),
    "doctor": Command(
        "daguerre.commands.doctor:doctor",
        "Print what this machine has, what is installed and kept, and what would be faster.",
    ),
    "inspect": Command(
        "daguerre.commands.models:inspect_model",
        "Print what a model is and needs, from its small files alone: a folder with only config.json will do.",
    ),
    "chat-format": Command(
        "daguerre.commands.models:chat_format",
        "Print how a model writes calls and thoughts, as its chat template shows: what opens and closes a call, how "
        "arguments are written, and what the template loses.",
    ),
    "export": Command(
        "daguerre.commands.models:export_model",
        "Write a model of Llama's or Qwen's core as a folder that transformers reads or as a file that llama.cpp "
        "reads, or its concept heads as a folder that SAELens reads; README.md in a folder says what for.",
    ),
    "cache": Command(
        "daguerre.commands.caching:cache",
        "Show the packed weights that are kept so that models start faster, or delete them.",
    ),
    "route": Command(
        "daguerre.router.commands:routing",
        "Serve OpenAI's interface in front of other servers: each request goes where it is answered well enough, in "
        "time, at least cost.",
        is_group=True,
    ),
    "data": Command("daguerre.train.commands:data", "Collect training data.", is_group=True),
    "bench": Command(
        "daguerre.evals.commands:benchmarks",
        "Measure speed: Daguerre beside other engines, what rows cost here, many requests at once.",
        is_group=True,
    ),
    "concepts": Command(
        "daguerre.concepts.commands:concepts",
        "Concepts of Python source: labels, examples, explanations.",
        is_group=True,
    ),
    "audit": Command("daguerre.audit.commands:audit", "Ledgers of generations: check, show, erase.", is_group=True),
}
"""In the order of the help."""
RARE = frozenset(
    "audit audit_key backup bound_windows body_timeout cache_rows concept_spans context control_spans corpus "
    "drain explain_html fresh generations grid_lines heal injections install_completion keep literals log_text "
    "max_body max_context max_rows max_running max_schema max_waiting origin parts picture prompts questions "
    "running_per_key search_length share_prefixes show_completion spans step_seconds strength texts twin watch_rate "
    "why workers".split()
)
"""Options of commands that `--help` leaves out where it would be too long. Those of requests and of loading say it
where they are declared (`arguments.option`)."""
RECORDER = "daguerre.audit.recorder:Recorder"
"""Takes a ledger, a model, a key and the model's name: `--audit`."""
TRAINING_NEEDS = "daguerre.train.commands:print_needs"
"""Takes a model's folder, a recipe, a family, a number of devices and whether to print JSON: `inspect --train`."""


def at(place: str) -> Any:
    """What is at a place of this table, module:name."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
