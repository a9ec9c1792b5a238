"""Time one of Daguerre's requests alone, with the text around its gap in the cache before the clock starts."""

from __future__ import annotations

import time

from daguerre.decoding.plan import Plan
from daguerre.decoding.sample import Sample, drive
from daguerre.evals.shared import SharedSession


def completing(shared: SharedSession, plan: Plan) -> tuple[float, int]:
    """Seconds and forwards of a completion whose prompt is in the cache, and nothing of an earlier completion."""
    start = plan.canvas.gaps[0][0]
    shared.prefill(plan.canvas, (start, start + 1))
    return _run(shared, plan)


def infilling(shared: SharedSession, plan: Plan) -> tuple[float, int]:
    """Seconds and forwards of an infilling whose prefix and suffix an earlier run left in the cache."""
    return _run(shared, plan)


def _run(shared: SharedSession, plan: Plan) -> tuple[float, int]:
    started = time.perf_counter()
    request = Sample(shared, plan, 0, None)
    for _ in drive(request):
        pass
    return time.perf_counter() - started, request.result().usage.forwards
