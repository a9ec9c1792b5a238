"""Commands about ledgers of generations: make a key, check a ledger, show it, erase a text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.loading import BackendName
from daguerre.commands.options import AsJson
from daguerre.errors import InputError

LedgerPath = Annotated[Path, typer.Argument(metavar="LEDGER", help="The file of records.")]
SigningKeyPath = Annotated[Path, typer.Option("--key", help="The private key that signs the ledger.")]
SHOWN = 20
"""Problems that are printed."""


def audit() -> typer.Typer:
    """The commands of `audit`."""
    group = typer.Typer(no_args_is_help=True)
    for command in (key, verify, show, head, note, erase, schema):
        group.command()(command)
    return group


def key(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the private key goes; FILE.pub is the public one.")
    ],
) -> None:
    """Make a key pair that signs a ledger."""
    from daguerre.audit.keys import SigningKey, to_text

    made = SigningKey.make(path)
    typer.echo(f"{path} signs records: keep it secret. {path}.pub checks them: give it to those who verify.")
    typer.echo(f"public key {to_text(made.public)}")


def verify(
    ledger: LedgerPath,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The model to compute with; by default the one that each record names."),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option("--key", help="The public key; by default the one in the ledger, which its writer chose."),
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", help="The hash of a record, kept elsewhere, that must still be there.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Compute the recorded logits and concepts again.")
    ] = True,
    backend: BackendName = None,
    device: Annotated[str | None, typer.Option("--device", help="By default the one of each record.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a ledger: its lines, its chain, its signatures, and by replay what the model says of each token."""
    from daguerre.audit.keys import read_public
    from daguerre.audit.verification import verify as check

    def load(record: Mapping[str, Any]) -> Any:
        return load_model(record, model, backend, device)

    known = None if public is None else read_public(public)
    report = check(ledger, load if replay else None, public=known, head=head)
    if as_json:
        typer.echo(json.dumps(asdict(report) | {"sound": report.sound}))
    else:
        show_report(report)
    if not report.sound:
        raise typer.Exit(1)


def load_model(record: Mapping[str, Any], name: str | None, backend: str | None, device: str | None) -> Any:
    """The model of a record, or of that name, as it was when it was recorded. InputError where neither is known."""
    from daguerre.commands.loading import load

    name, how = name or record["model"]["name"], record["software"]
    if name is None:
        raise InputError("this record names no model: give --model")
    options = {"dtype": how["dtype"], "backend": backend or how["backend"], "quantize": how["quantize"]}
    return load(name, device=device or how["device"], **options)


def show_report(report: Any) -> None:
    """A line for each problem of a `daguerre.audit.chain.LedgerReport`, and a summary."""
    from daguerre.audit.chain import REPLAYED

    complaints = list(report.complaints())
    for line in complaints[:SHOWN]:
        typer.echo(line)
    if len(complaints) > SHOWN:
        typer.echo(f"... and {len(complaints) - SHOWN} more: see --json")
    others = Counter(
        (record.kind, record.status) for record in report.records if record.status != REPLAYED and not record.problems
    )
    tokens = sum(record.tokens for record in report.records)
    worst = max((record.worst for record in report.records), default=0.0)
    num, signer = len(report.records), report.signer or "nothing"
    typer.echo(f"{num} record{'s' * (num != 1)}, signed with {signer}; head {report.head}")
    if report.num_replayed:
        typer.echo(f"{report.num_replayed} replayed: {tokens} tokens, logits within {worst:.1e}")
    for (kind, status), num in others.items():
        typer.echo(f"{num} {kind} record{'s' * (num != 1)}, {status}")
    typer.echo("sound" if report.sound else f"NOT SOUND: {len(complaints)} problem{'s' * (len(complaints) != 1)}")


def show(
    ledger: LedgerPath,
    record: Annotated[
        str | None, typer.Argument(metavar="[RECORD]", help="The id of a record, or its first digits.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the records of a ledger, or show one, with its text where its key is there."""
    from daguerre.audit.ledger import LedgerEntry, lines, record_keys

    entries, keys = [LedgerEntry.parse(line) for line in lines(ledger)], record_keys(ledger).read()
    if record is not None:
        entry = find(ledger, entries, record)
        secret = keys.get(entry.record["id"])
        content = None if secret is None or entry.sealed is None else entry.opened(secret)
        typer.echo(json.dumps({"record": entry.record, "sealed": content}, indent=2, ensure_ascii=False))
        return
    if as_json:
        typer.echo(json.dumps([entry.record for entry in entries]))
        return
    for entry in entries:
        one = entry.record
        erased = ", erased" if one["id"] in keys and keys[one["id"]] is None else ""
        what = f"{one['kind']}: {summary(one)}{erased}"
        typer.echo(f"{one['number']:5d}  {one['id']}  {one['created'][:19]}  {what}")
    if entries:
        typer.echo(f"head {entries[-1].hash}: kept elsewhere, it proves to `verify --head` that nothing was left out")


def summary(record: Mapping[str, Any]) -> str:
    """What a record is about, in a few words and without its text."""
    if record["kind"] == "generation":
        return f"{record['output']['tokens']} tokens, {record['model']['name'] or 'a model without a name'}"
    if record["kind"] == "decision":
        return f"{record['output']['questions']} questions, {record['model']['name'] or 'a model without a name'}"
    if record["kind"] == "erasure":
        return f"of {record['erased']}"
    if record["kind"] == "follow_up":
        return f"{record['event']}, of {record['of']}"
    if record["kind"] == "change":
        return f"of the model: {', '.join(record['changed'])}"
    if record["kind"] == "repair":
        return f"{record['torn']['bytes']} bytes are now in {record['torn']['file']}"
    return str(record["error"])


def find(ledger: Path, entries: Iterable[Any], record: str) -> Any:
    """The only entry of a ledger whose id begins with these digits. InputError for none, and for several."""
    found = [entry for entry in entries if entry.record["id"].startswith(record)]
    if len(found) != 1:
        raise InputError(f"{len(found)} records of {ledger} have an id that begins with {record!r}: see `audit show`")
    return found[0]


def erase(
    ledger: LedgerPath,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="The id of a record, or its first digits.")],
    key: SigningKeyPath,
    why: Annotated[str, typer.Option("--why", help="A reason, without personal data: it is written down.")] = "",
) -> None:
    """Erase the text of a record by destroying its key. The chain and the signatures stay valid."""
    from daguerre.audit.ledger import Ledger, LedgerEntry, lines

    record_id = find(ledger, map(LedgerEntry.parse, lines(ledger)), record).record["id"]
    with Ledger(ledger, key) as opened:
        opened.erase(record_id, why)
    typer.echo(f"the text of record {record_id} is erased here: destroy all copies of {ledger}.keys as well")


def head(ledger: LedgerPath) -> None:
    """Print the hash of the last record, and how many there are: to be kept, or time-stamped, elsewhere."""
    from daguerre.audit.ledger import last_of

    typer.echo("{} {}".format(*last_of(ledger)))


def note(
    ledger: LedgerPath,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="The id of a record, or its first digits.")],
    event: Annotated[
        str,
        typer.Option("--event", help="anchor, correction, decision, explanation, incident, notice or review."),
    ],
    key: SigningKeyPath,
    facts: Annotated[
        list[str] | None, typer.Option("--fact", help="NAME=TEXT, without personal data; may be repeated.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="A text, which is encrypted and can be erased.")] = None,
) -> None:
    """Write down what became of a record: somebody looked at it, a decision rested on it, something went wrong."""
    from daguerre.audit.ledger import Ledger, LedgerEntry, lines

    given = [one.partition("=") for one in facts or ()]
    if not all(name and sign for name, sign, _ in given):
        raise InputError("a fact is given as --fact NAME=TEXT")
    record_id = find(ledger, map(LedgerEntry.parse, lines(ledger)), record).record["id"]
    with Ledger(ledger, key) as opened:
        written = opened.follow_up(record_id, event, {name: value for name, _, value in given}, text)
    typer.echo(f"added as record {written}")


def schema() -> None:
    """Print the JSON Schema of records."""
    from daguerre.audit.schema import schema as read

    typer.echo(json.dumps(read(), indent=1))
