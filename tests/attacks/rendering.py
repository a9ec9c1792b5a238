"""A process that renders chat templates, for attacks on it: one JSON line in, {"source", "content"}, one out, {"said",
"error", "kib"}: the text's length, the error's class and message, and by how much the process's memory has grown.
"""

from __future__ import annotations

import json
import resource
import sys

from daguerre.errors import DaguerreError
from daguerre.models import template_limits
from daguerre.models.chat_template import ChatTemplate

template_limits.MAX_SECONDS = 3.0  # of 10: what is ended by the clock is ended sooner

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))  # a failsafe


def answer(source: str, content: str) -> dict[str, object]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        text = ChatTemplate.of(source).render([{"role": "user", "content": content}])
        said: dict[str, object] = {"said": len(text), "error": None}
    except DaguerreError as error:
        said = {"said": None, "error": f"{type(error).__name__}: {error}"}
    return said | {"kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}


for line in sys.stdin:
    sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")
    sys.stdout.flush()
