"""Targets with faults of every kind, for tests of the engine."""

from __future__ import annotations

import os
import re

from daguerre.errors import InputError
from fuzz.target import Run, Target


def make() -> Run:
    def run(data: bytes) -> None:
        if b"right" in data:
            raise InputError("a right answer")
        if b"raise" in data:
            raise KeyError("x")
        if b"lines" in data:
            raise InputError("two\nlines")
        if b"die" in data:
            os._exit(3)
        if b"loop" in data:
            while True:
                pass
        if b"deep" in data:  # in C, where no signal is handled
            re.match(r"(a+)+$", "a" * 60 + "b")
        if b"much" in data:
            bytearray(1 << 40)

    return run


PLANTED = Target(name="planted", make=make, seeds=lambda: [b"abc right"], seconds=1.0, megabytes=256)
