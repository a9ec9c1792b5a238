"""The log's writer: what cannot be written is lost and counted, and nobody waits for it."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from daguerre.http.log import ACCESS, LineWriter
from server.processes import wait_until


def test_lines_that_a_full_disk_did_not_take_are_counted_once_there_is_room(tmp_path: Path) -> None:
    place = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(place)
    for number in range(5):
        writer.line(f"line {number}")
    wait_until(lambda: writer._lost == 5)
    with (tmp_path / "log").open("wb") as file:
        os.dup2(file.fileno(), place)
    writer.line("after")
    writer.close()
    os.close(place)
    assert (tmp_path / "log").read_text().splitlines() == ["after", '{"level": "WARNING", "lost_lines": 5}']


def test_a_pipe_that_nobody_reads_holds_up_nobody() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    writer = LineWriter(writing)
    for _ in range(12_000):
        writer.line("x" * 100)
    assert writer._lost in (1_999, 2_000), "10,000 wait, and one may be about to be written"
    writer.close()
    os.close(reading)
    os.close(writing)


def test_records_are_objects_and_those_of_requests_are_as_they_came(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno())
        try:
            raise ValueError("é\nsecond line")
        except ValueError:
            broken = sys.exc_info()
        for name, text, error in ((ACCESS, '{"status": 200}', None), ("daguerre", "it failed", broken)):
            writer.emit(logging.LogRecord(name, logging.ERROR, "", 1, text, (), error))
        writer.close()
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert first == {"status": 200}
    assert {"time", "level", "logger", "message", "error"} == set(second)
    assert second["message"] == "it failed" and "second line" in second["error"]


def test_a_record_that_cannot_be_written_out_ends_no_request(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno())
        writer.emit(logging.LogRecord("daguerre", logging.ERROR, "", 1, "%d", ("no number",), None))
        writer.line("after")
        writer.close()
    assert (tmp_path / "log").read_text().splitlines() == ["after", '{"level": "WARNING", "lost_lines": 1}']
