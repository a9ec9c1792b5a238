"""Verbatim overlap: which passages of a text stand in a corpus too, and in which of its documents."""

MIN_LENGTH = 50
"""Characters of the shortest match that is reported, unless asked otherwise."""
LEVELS = (50, 100, 200, 400)
"""Lengths in characters for which a summary says how much of a text such matches cover."""
NUM_SOURCES = 3
"""Documents that are named for a match, unless asked otherwise."""
