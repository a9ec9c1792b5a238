"""What was written, whatever was cut away from it."""

from __future__ import annotations

from dataclasses import replace

from daguerre.decoding.result import read
from daguerre.engine.job import Job


def written(job: Job, index: int = 0) -> str:
    """The whole text of a choice of a job that is done, also the stop string that ended it and what came behind."""
    events = job.samples[index].events
    if not len(events):
        return ""
    bare = replace(job.plan, decode=replace(job.plan.decode, stop=()))
    return read(bare, events.last, done=True).gaps[0].text
