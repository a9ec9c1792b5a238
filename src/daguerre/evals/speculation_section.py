"""The section of a report that is about mode "speculative"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daguerre.evals.tables import Column, Row, plus_minus, ratio, table_of, text

NAMES = {"auto": "both", "head": "the model", "lookup": "the text itself"}


def speculation_section(task: Row) -> str:
    """Tables of texts, first tokens, drafters, next lines, acceptance and edits."""
    parts = ["## Speculation", speculation_notes(task), texts_table(task)]
    titles: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
        ("drafters", "Each drafter alone, on fewer prompts:", drafters_table),
        ("lines", "Next lines at temperature 0, prefill not counted:", lines_table),
        (
            "acceptance",
            "Accepted by depth, the tokens before it given (±: standard error). Depth 1 is the first token behind the "
            "one that the autoregressive distribution draws. `greedy` text is the model's own at temperature 0.",
            acceptance_table,
        ),
        (
            "edits",
            "Edits: regions of held-out files in a later version, written by the model, which need not follow the "
            "earlier one. Speed is compared with `ar` from the same prompt without a draft.",
            edits_table,
        ),
        (
            "forced_edits",
            "The same if the text written were the later version itself, drafted without the model:",
            forced_table,
        ),
    )
    for name, title, make in titles:
        if task[name]:
            parts += [title, make(task)]
    return "\n\n".join(parts)


def speculation_notes(task: Row) -> str:
    """How texts were written, and what a loop is."""
    loop = task["loop"]
    return (
        f"Texts of {task['new_tokens']} tokens, and of the first few, written in both modes in turn. `times as fast as "
        "ar`: the median over prompts, and of the seconds of all of them, prefill included. `loops`: texts in which a "
        f"run of {loop['run']} tokens occurs a second time, by token {loop['early']} and in all."
    )


def texts_table(task: Row) -> str:
    """Texts by temperature, the whole and their first tokens."""
    columns: dict[str, Column] = {
        "temperature, tokens": text("{temperature:g}, {new_tokens}"),
        "same tokens as ar": text("{identical} of {prompts}"),
        "tokens per forward": text("{tokens_per_forward:.2f}"),
        "query tokens per forward": text("{rows_per_forward:.1f}"),
        "accepted, looked up": text("{lookup_accepted} of {lookup_drafted}"),
        "accepted, of the model": text("{head_accepted} of {head_drafted}"),
        "times as fast as ar": _speed,
        "loops, %": _loops,
    }
    return table_of(columns, [*task["outcomes"], *task["first"]])


def drafters_table(task: Row) -> str:
    """What each drafter adds."""
    columns: dict[str, Column] = {
        "temperature, drafts from": lambda row: f"{row['temperature']:g}, {NAMES[row['drafter']]}",
        "same tokens as ar": text("{identical} of {prompts}"),
        "tokens per forward": text("{tokens_per_forward:.2f}"),
        "query tokens per forward": text("{rows_per_forward:.1f}"),
        "accepted": text("{accepted} of {drafted}"),
        "times as fast as ar": _speed,
        "loops, %": _loops,
    }
    return table_of(columns, task["drafters"])


def lines_table(task: Row) -> str:
    """Next lines."""
    columns: dict[str, Column] = {
        "lines": text("{lines}"),
        "same tokens as ar": text("{identical}"),
        "tokens per forward": lambda row: ratio(row["tokens_per_forward"], row["tokens_per_forward_interval"]),
        "times as fast as ar": _speed,
        "loops, %": lambda row: f"{100 * row['loops']:.0f}",
    }
    return table_of(columns, [task["lines"]])


def acceptance_table(task: Row) -> str:
    """Acceptance by depth."""
    columns: dict[str, Column] = {
        "text, depth": text("{text}, {depth}"),
        "places": text("{places}"),
        "greedy": _share("greedy"),
        "most that any coupling accepts": _share("overlap"),
        "race": _share("race"),
    }
    return table_of(columns, task["acceptance"])


def edits_table(task: Row) -> str:
    """Edits as the model writes them."""
    columns: dict[str, Column] = {
        "prompt, mode": lambda row: f"{row['shown']}; {row['mode']}{', the old text as draft' * row['draft']}",
        "same tokens as ar": text("{identical} of {edits}"),
        "tokens per forward": text("{tokens_per_forward:.2f}"),
        "times as fast as ar": _speed,
        "draft accepted, %": lambda row: "" if row["draft_accepted"] is None else f"{100 * row['draft_accepted']:.0f}",
        "like the old text, the new": text("{like_old:.2f}, {like_new:.2f}"),
        "loops, %": lambda row: f"{100 * row['loops']:.0f}",
    }
    return table_of(columns, task["edits"])


def forced_table(task: Row) -> str:
    """Edits as drafts alone would write them."""
    columns: dict[str, Column] = {
        "prompt, drafts": forced_name,
        "edits": text("{edits}"),
        "tokens per forward": text("{tokens_per_forward:.2f}"),
        "rows per forward": text("{rows_per_forward:.1f}"),
        "times as fast as one token a forward": _speed,
        "loops, %": lambda row: f"{100 * row['loops']:.0f}",
    }
    return table_of(columns, task["forced_edits"])


def forced_name(row: dict[str, Any]) -> str:
    """The prompt and the drafts of a forced edit."""
    return f"{row['shown']}; " + " and ".join(["the old text"] * row["draft"] + ["what the text has"] * row["lookup"])


def _speed(row: Row) -> str:
    return f"{row['speedup']:.2f}, {row['total_speedup']:.2f}"


def _loops(row: Row) -> str:
    return f"{100 * row['loops_early']:.0f}, {100 * row['loops']:.0f}"


def _share(name: str) -> Column:
    return lambda row: f"{row[name]:.3f}{plus_minus(row[f'{name}_stderr'])}"
