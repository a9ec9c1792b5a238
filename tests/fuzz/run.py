"""`make fuzz`: every target in turn, with new seeds, until time is up. What is found is made small and
written to a file.

python -m fuzz.run --minutes 60 [TARGET ...]
python -m fuzz.run --replay FILE           runs one case again; the target is the name of the file's folder
"""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
import time
from pathlib import Path

from fuzz.child import outcome
from fuzz.engine import Child, Finding, cases, smaller
from fuzz.guided import available, guided
from fuzz.targets import TARGETS

TURN = 60.0
"""Most seconds that a target has before it is the next one's turn."""


def main() -> int:
    """The exit status: 1 if anything was found."""
    options = argparse.ArgumentParser(
        prog="fuzz.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(TARGETS)})")
    options.add_argument("--minutes", type=float, default=60.0, help="for all together (default: 60)")
    options.add_argument("--seed", type=int, default=None, help="of the changes (default: a new one)")
    options.add_argument(
        "--out", type=Path, default=Path("fuzz-findings"), help="folder of findings (default: fuzz-findings)"
    )
    options.add_argument("--replay", type=Path, metavar="FILE", help="run the case in this file alone, in this process")
    given = options.parse_args()
    if given.replay is not None:
        return replay(given.replay)
    wrong = set(given.targets) - TARGETS.keys()
    if wrong:
        options.error(f"no target {min(wrong)}: choose of {', '.join(TARGETS)}")
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(
        f"seed {seed}; {'Atheris guides by coverage' if available() else 'without Atheris: changes of seeds'}",
        flush=True,
    )
    return 1 if search(given.targets or list(TARGETS), 60 * given.minutes, seed, given.out) else 0


def replay(path: Path) -> int:
    """Run one case here, so that a debugger can be used."""
    found = outcome(TARGETS[path.parent.name].make(), path.read_bytes())
    print("as it should be" if found is None else f"{found[0]}\n{found[1]}")
    return int(found is not None)


def search(names: list[str], seconds: float, seed: int, out: Path) -> dict[tuple[str, str], Path]:
    """All findings, by target and kind: where each is written."""
    end, found, turn = time.monotonic() + seconds, dict[tuple[str, str], Path](), 0
    child = Child()
    try:
        while time.monotonic() < end:
            for name in names:
                stop = min(end, time.monotonic() + min(TURN, seconds / len(names)))
                if stop - time.monotonic() < 1:
                    break
                tried = turned(child, name, seed + turn, stop, found, out)
                print(f"{name}: {tried} cases, {sum(key[0] == name for key in found)} kinds of findings", flush=True)
            turn += 1
    finally:
        child.close()
    return found


def turned(child: Child, name: str, seed: int, stop: float, found: dict[tuple[str, str], Path], out: Path) -> int:
    """One turn of a target; how many cases were run."""
    num = 0
    if available() and seed % 2:  # every second turn
        num, data = guided(name, seed, stop - time.monotonic())
        given = iter(data)
    else:
        given = cases(TARGETS[name], seed)
    for data in given:
        finding = child.run(name, data)
        num += 1
        if finding is not None and (name, finding.kind) not in found:
            found[name, finding.kind] = written(smaller(child, finding), out)
        if time.monotonic() > stop:
            break
    return num


def written(finding: Finding, out: Path) -> Path:
    """Print a finding, and write it where `--replay` takes it from."""
    path = out / finding.target / hashlib.sha256(finding.data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(finding.data)
    print(f"\n{finding.target}: {finding.kind}\n{finding.why}\n{finding.data[:400]!r}", file=sys.stderr)
    print(f"again: python -m fuzz.run --replay {path}\n", file=sys.stderr, flush=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
