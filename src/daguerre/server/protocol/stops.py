"""How many stop strings a request may have, and how long they may be: each is looked for at every step."""

from __future__ import annotations

from daguerre.http.errors import ApiError

MAX_STOPS = 4
MOST_STOPS = 64
"""On surfaces that have more than OpenAI's, with those of the server."""
LONGEST_STOP = 1_000
"""Characters."""


def check_stops(stops: object, param: str, most: int = MAX_STOPS) -> None:
    """ApiError, naming the field, for more stop strings than a request may have, or one that is too long."""
    given = stops if isinstance(stops, list | tuple) else [stops]
    if len(given) > most:
        raise ApiError(f"{param} may be at most {most} strings, not {len(given)}", param=param)
    if any(isinstance(one, str) and len(one) > LONGEST_STOP for one in given):
        raise ApiError(f"{param} has a string of more than {LONGEST_STOP:,} characters: shorten it", param=param)
