"""The section on concepts of a report in Markdown: the bars, then a table for each part, and what its columns are."""

from __future__ import annotations

from daguerre.evals.concepts.cases import GROUPS
from daguerre.evals.concepts.injection import COMMENT, STEERED
from daguerre.evals.concepts.suppression import NONE
from daguerre.evals.tables import Column, Row, bracketed, difference, optional, percent, share, table, table_of, text

MET = {True: "met", False: "missed", None: ""}


def concepts_section(task: Row) -> str:
    """All parts that a report has."""
    columns: dict[str, Column] = {
        "what": text("{what}"),
        "bar": text("{bar}"),
        "measured": text("{measured}"),
        "": lambda bar: MET[bar["met"]],
    }
    writers = {
        "detection": _detection,
        "shares": _shares,
        "suppression": _suppression,
        "injection": _injection,
        "alignment": _alignment,
        "stability": _stability,
        "audit": _audit,
    }
    parts = ["## Concepts", table_of(columns, task["bars"])]
    parts += [write(task[name]) for name, write in writers.items() if name in task]
    parts += [f"Not measured: {name}, because {reason}." for name, reason in task["left_out"].items()]
    return "\n\n".join(part for part in parts if part)


def _detection(part: Row) -> str:
    out = [
        f"### Detection\n\n{part['cases']} spans of {part['span']} tokens of {part['files']} held-out files; controls "
        f"learned from {part['training_cases']} spans of training text. Score: log P(any) over the scored rows. Area "
        "under the ROC curve, the mean over concepts with 20 positive and 20 negative spans; in brackets 95% intervals "
        "over files, of differences paired. Lexical: read from tokens alone, also where a file does not parse."
    ]
    for condition in part["conditions"]:
        names = [f"{group}: {condition['concepts'][group]} concepts" for group in GROUPS]
        header = [condition["condition"], *names, "micro AUC", "AP (prevalence)", "ECE"]
        out.append(table(header, [_scorer(each) for each in condition["scorers"]]))
    out.append("After a control's area: how much larger the concept head's is.")
    return "\n\n".join(out)


def _scorer(each: Row) -> list[str]:
    cells = [each["name"], *(_area(each[group]) if group in each else "" for group in GROUPS)]
    if "micro_auc" not in each:
        return [*cells, "", "", ""]
    precision = f"{each['macro_ap']:.3f} ({each['prevalence']:.3f})"
    return [*cells, f"{each['micro_auc']:.3f}", precision, f"{each['ece']:.3f}"]


def _area(found: Row) -> str:
    if "gain" not in found:
        return _with_interval(found, "auc")
    return f"{found['auc']:.3f} ({bracketed(found['gain'], found['gain_interval'], '+.3f')})"


def _shares(part: Row) -> str:
    columns: dict[str, Column] = {
        "masked": lambda row: row["masked"],
        "aggregated": lambda row: _with_interval(row, "cc"),
        "known alone": lambda row: _with_interval(row, "cc_known"),
        "single, absolute": lambda row: _with_interval(row, "cc_each"),
        "FVU": lambda row: optional(row.get("fvu"), 3),
        "cancelled": text("{cancelled:.3f}"),
        "cosine": text("{cosine:.3f}"),
        "nats without residual": lambda row: _plus(row, "cost_residual"),
        "without known": lambda row: _plus(row, "cost_known"),
        "without discovered": lambda row: _plus(row, "cost_discovered"),
        "bits per byte without residual": lambda row: _plus(row, "bits_residual"),
        "KL": text("{kl:.3f}"),
        "same token": lambda row: share(row["agreement"], None) + "%",
    }
    rows = [each | {"masked": f"{each['rate']:g}"} for each in part["rates"]]
    rows += [part["mean"] | {"masked": "mean"}, part["clean"] | {"masked": "clean stream"}]
    clean = part["clean"]
    cost = difference(clean["cost"], clean["cost_interval"]).replace(" ", "% ", 1)
    notes = [f"Clean stream, {clean['tokens']} tokens: {clean['bits']:.3f} bits per byte; without the residual {cost}."]
    if "tax" in clean:
        tax = bracketed(clean["tax"], clean["tax_interval"], "+.2f", 100).replace(" ", "% ", 1)
        notes.append(f"The plain model has {clean['plain_bits']:.3f} on the same windows: {tax}.")
    notes.append(
        "Cancelled: what known and discovered concepts take away from one another in the token's logit, "
        "1 - |k + u| / (|k| + |u|)."
    )
    return f"### Shares\n\n{table_of(columns, rows)}\n\n{' '.join(notes)}"


def _with_interval(row: Row, name: str) -> str:
    return bracketed(row[name], row.get(f"{name}_interval"), ".3f")


def _plus(row: Row, name: str) -> str:
    return f"{row[name]:+.3f}" if name in row else ""


def _suppression(part: Row) -> str:
    columns: dict[str, Column] = {
        "concept": text("`{concept}`"),
        "": text("{way}"),
        "prompts": text("{prompts} of {tried}"),
        "generations": text("{generations}"),
        "uses it, %": percent("rate"),
        "parses, %": lambda row: share(row["parses"], None),
    }
    rows = [row | way for row in part["rows"] for way in row["ways"]]
    without = [f"`{row['concept']}`" for row in part["rows"] if not row["ways"]]
    few = [f"`{row['concept']}`" for row in part["rows"] if row["ways"] and not row["has_bar"]]
    notes = [
        f"Prompts: held-out files cut just before a use, kept if {part['kept_uses']} of {part['samples']} "
        "continuations use the concept."
    ]
    notes += [f"Fewer than 25 prompts, and so no bar: {', '.join(few)}."] if few else []
    notes += [f"No prompts: {', '.join(without)}."] if without else []
    return f"### Suppression\n\n{table_of(columns, rows)}\n\n{' '.join(notes)}"


def _injection(part: Row) -> str:
    def of(way: str) -> Column:
        return lambda row: f"{percent('rate')(row['ways'][way])} / {100 * row['ways'][way]['parses']:.0f}"

    columns: dict[str, Column] = {
        "concept": text("`{concept}`"),
        "strength": lambda row: f"{row['strength']:g}",
        "for tokens": text("{tokens}"),
        "nothing asked, % / parses": of(NONE),
        "steering": of(STEERED),
        "a comment": of(COMMENT),
    }
    means = [f"{way} {100 * each['rate']:.1f}% / {100 * each['parses']:.0f}%" for way, each in part["means"].items()]
    return (
        f"### Injection\n\n{table_of(columns, part['rows'])}\n\nThe concept appears in the next 48 tokens, % / the "
        f"text parses, %. {part['prompts']} prompts that end before a statement of a function, {part['generations']} "
        f"generations each; strengths and how long they last were chosen on {part['tuning']} other prompts. "
        f"Means: {'; '.join(means)}."
    )


def _alignment(part: Row) -> str:
    if part["median"] is None:
        return ""
    ordered = sorted(part["rows"], key=lambda row: -row["precision"])
    shown = [*ordered[:5], *ordered[-5:]] if len(ordered) > 10 else ordered
    columns: dict[str, Column] = {
        "concept": text("`{name}`"),
        "precision at 10": text("{precision:.1f}"),
        "top tokens": lambda row: ", ".join(f"`{_plain(token)}`" for token in row["top"]),
    }
    return (
        f"### Alignment\n\nMedian {part['median']:.2f}, mean {part['mean']:.2f}, by chance {part['by_chance']:.2f}; "
        f"{part['concepts']} concepts, {part['left_out']} left out for lack of tokens, {part['tokens']:,} tokens of "
        f"training text. The best and the worst:\n\n{table_of(columns, shown)}"
    )


def _plain(token: str) -> str:
    """A token in one cell of a table."""
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in token)
    return shown.replace("|", "\\|").replace("`", "'")


def _stability(part: Row) -> str:
    return (
        f"### Stability\n\nOf {part['used'][0]} discovered concepts that held-out text uses, "
        f"{100 * part['share']:.1f}% have one of cosine 0.7 or more among the {part['used'][1]} of a training with "
        f"another seed; {100 * part['share_back']:.1f}% the other way; {100 * part['share_by_chance']:.1f}% where the "
        f"other's vectors are turned at random. Median of the nearest: {part['median_cosine']:.2f} and "
        f"{part['median_by_chance']:.2f}."
    )


def _audit(part: Row) -> str:
    speeds, problems = part["records_a_second"], part["problems"]
    wrong = f" Before any change the ledger had {len(problems)} problems: {problems[0]}." if problems else ""
    return (
        f"### Audit\n\n{part['records']} records of {part['tokens']} tokens, {part['bytes'] / 1000:.0f} kB each: "
        f"{speeds['chain']:.0f} a second are checked without the model, {speeds['replay']:.0f} with replay (processor "
        f"time); {part['replayed']} were replayed, and no logit was further than {part['worst']:.1e} from its replay. "
        f"Found: {part['changes_found']:,} of {part['changes']:,} random changes of the file, and "
        f"{part['forgeries_found']:,} of {part['forgeries']:,} numbers that the owner of the key forged.{wrong}"
    )
