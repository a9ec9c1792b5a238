"""One process of several that train together: `torchrun distributed_run.py SETTINGS.json`, with the keys of `main`.
`together` starts them without torchrun, from a process that has imported PyTorch, in a fifth of the time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch


def main(settings: dict[str, Any]) -> None:
    """Train. "answers": on a file of them in place of a corpus; "kill": after that step the last process is killed, as
    by a full memory; "stop": it stops there.
    """
    from daguerre.train import report
    from daguerre.train.recipe import recipe_from_dict
    from daguerre.train.run import DATA, CopiedAnswers
    from daguerre.train.trainer import Trainer

    torch.set_num_threads(1)
    report.draw_curves = lambda run: run
    report._tensorboard = lambda *rest: None  # type: ignore[assignment]
    out, rank = Path(settings["out"]), int(os.environ.get("RANK", "0"))
    path, recipe = Path(settings["corpus"]), recipe_from_dict(settings["recipe"])
    made = Trainer(
        recipe,
        out,
        CopiedAnswers([path], out / DATA, recipe.stages[0].length, 0.1) if settings.get("answers") else path,
        start_from=settings.get("start"),
        resume=settings.get("resume", False),
        quiet=True,
    )
    after = made._after_step
    if settings.get("stop"):

        def stopped() -> None:
            after()
            made.stop_asked = made.progress.step >= settings["stop"]

        made._after_step = stopped  # type: ignore[method-assign]
    if settings.get("kill"):

        def killed() -> None:
            after()
            if made.progress.step == settings["kill"] and rank == int(os.environ["WORLD_SIZE"]) - 1:
                os.kill(os.getpid(), signal.SIGKILL)

        made._after_step = killed  # type: ignore[method-assign]
    losses: list[float] = []
    told = made.reporter.step

    def noted(step: Any) -> None:
        losses.append(step.loss)
        (made.devices.folder(out) / "losses.json").write_text(json.dumps(losses))
        told(step)

    made.reporter.step = noted  # type: ignore[method-assign]
    made.run()


def together(processes: int, run: Callable[..., None], *args: Any) -> None:
    """Call a function in so many processes, with the environment that torchrun gives them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor", "daguerre.train.trainer"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [context.Process(target=_one, args=(rank, processes, port, run, args)) for rank in range(processes)]
    for each in started:
        each.start()
    for each in started:
        each.join(240)
    codes = [each.exitcode for each in started]
    for each in started:
        each.kill()
    assert codes == [0] * processes, codes


def _one(rank: int, processes: int, port: int, run: Callable[..., None], args: tuple[Any, ...]) -> None:
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in values.items()}
    run(*args)


def settings_of(recipe: Any, out: Path, corpus: Path, **more: Any) -> dict[str, Any]:
    return {"recipe": asdict(replace(recipe)), "out": str(out), "corpus": str(corpus), **more}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
