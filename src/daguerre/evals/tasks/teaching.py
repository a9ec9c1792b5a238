"""The task that compares a model with its teacher, which is measured only where it is asked for."""

from __future__ import annotations

import random
from typing import Any

from daguerre.errors import DataError, InputError
from daguerre.evals.tasks.setup import Measure, Setup, check_process
from daguerre.evals.teaching.filling import fills, missing_sentences
from daguerre.evals.teaching.likelihoods import ToldAnswer, bits_of_answers, distance
from daguerre.evals.teaching.writing import curve
from daguerre.evals.workers import Progress
from daguerre.model import load
from daguerre.train.corpus.chat_text import read_chat_texts


def teacher(setup: Setup) -> Measure:
    """How far a model is from the autoregressive one that it was, on answers that the latter wrote."""
    options, model = setup.options, setup.model
    if options.teacher is None or options.answers is None:
        raise DataError(
            "task 'teacher' needs the autoregressive model, by --teacher, and answers that it wrote, by --answers: the "
            "folder of daguerre data self --from TEACHER --out FOLDER, with another --seed than those trained on"
        )
    check_process(model)
    told = [ToldAnswer(one.prompt, one.new) for one in read_chat_texts(options.answers)]
    random.Random(setup.seed).shuffle(told)
    taught = load(options.teacher, dtype=options.dtype, backend=options.backend, drafts="none")
    if not taught.config.can_draft:
        raise InputError(f"--teacher {options.teacher} is not autoregressive: name the model that was converted")
    ends, room = {*taught.config.ends}, min(one.config.max_positions - len(one.config.first) for one in (model, taught))
    told = [one for one in told if len(one.ids) <= room and any(token not in ends for token in one.new)]
    if not told:
        raise DataError(f"{options.answers} has no answers that fit {room} positions")

    def measure(progress: Progress) -> Any:
        some = told[: setup.limits.prompts]
        found: dict[str, Any] = {"answers": len(some), "teacher": options.teacher}
        found |= {"bits_per_byte": bits_of_answers(model, taught, some, progress)}
        found |= distance(model, taught, some, setup.seed, progress)
        found["curve"] = curve(model, taught, some[: max(1, setup.limits.prompts // 4)], progress)
        if model.config.context == "causal" and model.config.null_id is not None:
            missing = missing_sentences(told, model, setup.seed)[: setup.limits.prompts]
            found["fills"] = fills(model, taught, missing, progress)
        return found

    return measure
