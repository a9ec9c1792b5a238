"""The part of a report that compares a model with its teacher."""

from __future__ import annotations

from daguerre.evals.tables import Column, Row, counted, share, table_of, text


def teacher_section(task: Row) -> str:
    """Distances, the curve of answers, and fills."""
    bits = task["bits_per_byte"]
    own = ", ".join(f"{value:.3f} {name}" for name, value in bits.items() if name != "teacher")
    kls = [f"{task['kl']:.3f} nats of masked tokens"]
    kls += [f"{task['kl_next']:.4f} of next tokens"] if "kl_next" in task else []
    columns: dict[str, Column] = {
        "answers by": text("{name}"),
        "tokens a forward": text("{tokens_per_forward:.2f}"),
        "the teacher's first choice, %": lambda row: share(row["first_choice"], row["first_choice_interval"]),
        "bits per byte under it": text("{bits_per_byte:.3f}"),
        "runs of four twice, %": lambda row: share(row["repetition"], None),
        "ended, %": lambda row: share(row["ended"], None),
        "tokens": text("{tokens:.0f}"),
    }
    curve = task["curve"]
    points = ", ".join(f"{rho:.2f} at {y:.1f}%" for rho, y in curve["points"])
    parts = [
        f"## Beside its teacher, {task['teacher']}",
        f"{counted(task['answers'], 'answer')} of the teacher: bits per byte {bits['teacher']:.3f} under itself, "
        f"{own}; KL from the teacher {' and '.join(kls)}.",
        f"Answers to {counted(curve['rows'][0]['num'], 'prompt')}, greedy, at most {curve['new_tokens']} tokens:",
        table_of(columns, curve["rows"]),
        f"AUP of the teacher's first choice over tokens a forward (y_max = 100%) {curve['aup']:.1f}, of the points "
        f"{points}.",
    ]
    if (fills := task.get("fills")) is not None:
        parts.append(
            f"{counted(fills['num'], 'sentence')} taken out of the middle: {100 * fills['exact']:.1f}% filled exactly, "
            f"{100 * fills['empty']:.1f}% with nothing; "
            f"with what follows, {share(fills['likelier'], fills['likelier_interval'])}% of the fills are likelier to "
            "the teacher than its own continuation from the left."
        )
    return "\n\n".join(parts)
