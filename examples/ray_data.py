"""Files of requests, answered by a cluster with Ray Data.

    pip install 'daguerre[ray]'
    python examples/ray_data.py requests/ answers/ --model default --actors 8

Each file of requests/ is in OpenAI's batch format; its answers go to the file of that name in answers/, which all
machines must see. A run that was killed, or an actor that was, goes on with the requests that have no answer yet, line
by line; nothing is answered twice.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray

import daguerre
from daguerre.server.batch import answer_file
from daguerre.server.models import ModelPool


class Answerer:
    """Answers files, one after the other, on one engine."""

    def __init__(self, model: str, device: str, together: int) -> None:
        self._pool = ModelPool({model: lambda: daguerre.load(model, device=device)}, max_waiting=1 << 30)
        self._together = together

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row of a file, with how many answers were written now, and how many of them are errors."""
        num, failed = answer_file(
            self._pool, Path(row["requests"]), Path(row["answers"]), self._together, lambda done, total: None
        )
        return {**row, "answered": num, "failed": failed}


def answer_files(
    requests: Path, answers: Path, model: str, device: str, actors: int, together: int, gpus: float
) -> list[dict[str, Any]]:
    """Answer all files of a folder; a row for each. An actor that dies is replaced, and its file begun where it was."""
    answers.mkdir(parents=True, exist_ok=True)
    files = sorted(requests.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"there is no file *.jsonl in {requests}")
    rows = [{"requests": str(path.resolve()), "answers": str((answers / path.name).resolve())} for path in files]
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    done = data.map(
        Answerer,
        fn_constructor_args=(model, device, together),
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(rows))),
        num_cpus=1,
        num_gpus=gpus,
    )
    return done.take_all()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--actors", type=int, default=2, help="engines at once")
    parser.add_argument("--together", type=int, default=64, help="requests at once on each")
    parser.add_argument("--gpus", type=float, default=0.0, help="of each actor")
    for row in answer_files(**vars(parser.parse_args())):
        print(f"{row['answers']}: {row['answered']} requests answered, {row['failed']} of them with an error")


if __name__ == "__main__":
    main()
