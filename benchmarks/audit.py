"""What records cost, how fast they are checked, and whether tampering is found: the figures of docs/audit.md.

python benchmarks/audit.py            # 20 generations of 64 tokens, 1,000 random changes, 100 forgeries
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import daguerre
from daguerre.audit.keys import SigningKey
from daguerre.audit.recorder import Recorder
from daguerre.evals.concepts.tampering import PROMPT_CHARACTERS, RECORDS, TOKENS, measure_audit
from daguerre.heldout import load_frozen


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="default")
    options.add_argument("--dtype", default="auto")
    options.add_argument("--changes", type=int, default=1000)
    given = options.parse_args()
    model = daguerre.load(given.model, dtype=given.dtype)
    texts = [file.text for file in load_frozen() if len(file.text) > PROMPT_CHARACTERS][:RECORDS]
    plain, with_records = seconds(model, texts)
    print(f"{RECORDS} generations of {TOKENS} tokens: {plain:.2f} s, recorded {with_records:.2f} s")
    found = measure_audit(model, texts, given.changes, lambda *_: None)
    assert not found["problems"], found["problems"]
    speeds = found["records_a_second"]
    print(f"{found['bytes'] / 1000:.1f} kB a record; largest distance of a logit from its replay: {found['worst']:.1e}")
    print(f"chain, signatures, schema: {speeds['chain']:.1f} records a second; and replay: {speeds['replay']:.1f}")
    print(f"random changes of the file found: {found['changes_found']} of {found['changes']}")
    print(f"numbers forged by the owner of the key found: {found['forgeries_found']} of {found['forgeries']}")


def seconds(model: daguerre.Model, texts: list[str]) -> tuple[float, float]:
    """Processor time of RECORDS generations, without and with their records, once everything is ready."""
    with tempfile.TemporaryDirectory() as name:
        key, path = SigningKey.make(Path(name) / "key"), Path(name) / "audit.jsonl"
        with Recorder(path, model, key) as recorder:
            return generated(model, texts), generated(recorder, texts)


def generated(writer: daguerre.Model | Recorder, texts: list[str]) -> float:
    """Processor time of RECORDS generations, after a short one."""
    writer.generate(texts[0][:PROMPT_CHARACTERS], 4)
    started = time.process_time()
    for number, text in enumerate(texts):
        writer.generate(text[:PROMPT_CHARACTERS], TOKENS, temperature=1.0, seed=number)
    return time.process_time() - started


if __name__ == "__main__":
    main()
