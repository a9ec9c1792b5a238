"""What records cost, how fast they are checked, and whether tampering is found: the figures of docs/audit.md.

python benchmarks/audit.py            # 50 generations of 64 tokens, 1,000 random changes, 100 forgeries
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import daguerre
from daguerre.audit.keys import SigningKey
from daguerre.audit.recorder import Recorder
from daguerre.audit.trial import num_caught, num_forgeries_caught
from daguerre.audit.verify import verify
from daguerre.heldout import load_frozen

PROMPT_CHARACTERS = 240


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="default")
    options.add_argument("--dtype", default="auto")
    options.add_argument("--num", type=int, default=50)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--changes", type=int, default=1000)
    options.add_argument("--forgeries", type=int, default=100)
    given = options.parse_args()
    model = daguerre.load(given.model, dtype=given.dtype)
    prompts = [text[:PROMPT_CHARACTERS] for text in texts(given.num)]
    with tempfile.TemporaryDirectory() as folder:
        measure(model, prompts, given, Path(folder))


def texts(num: int) -> list[str]:
    """As many held-out texts."""
    return [file.text for file in load_frozen() if len(file.text) > PROMPT_CHARACTERS][:num]


def measure(model: daguerre.Model, prompts: list[str], given: argparse.Namespace, folder: Path) -> None:
    key, path, small = SigningKey.make(folder / "key"), folder / "audit.jsonl", folder / "small.jsonl"
    model.generate(prompts[0], 4)
    started = time.process_time()
    for prompt in prompts:
        model.generate(prompt, given.tokens)
    plain = time.process_time() - started
    started = time.process_time()
    with Recorder(str(path), model, key) as recorder:
        for prompt in prompts:
            recorder.generate(prompt, given.tokens)
    recorded = time.process_time() - started
    print(f"{len(prompts)} generations of {given.tokens} tokens: {plain:.2f} s, recorded {recorded:.2f} s")
    print(f"{path.stat().st_size / len(prompts) / 1000:.1f} kB a record")
    for what, replayed in (("chain, signatures, schema", None), ("and replay", model)):
        started = time.process_time()
        report = verify(path, replayed)
        seconds = time.process_time() - started
        assert report.sound, list(report.complaints())
        print(f"{what}: {len(prompts) / seconds:.1f} records a second")
    print(f"largest distance of a logit from its replay: {max(record.worst for record in report.records):.1e}")
    with Recorder(str(small), model, key) as recorder:
        for prompt in prompts[:20]:
            recorder.generate(prompt, 8, temperature=1.0)
    print(f"random changes of the file found: {num_caught(small, given.changes)} of {given.changes}")
    caught = num_forgeries_caught(small, key, model, given.forgeries)
    print(f"numbers forged by the owner of the key found by replay: {caught} of {given.forgeries}")


if __name__ == "__main__":
    main()
