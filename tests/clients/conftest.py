"""A real server process for clients that nobody here wrote, and a record of what they did.

These tests run in an environment of their own: `make clients`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record import Record
from routed import LOG, ROUTE, requests_in, routing

from served import MODEL, Served, serving

ROOT = Path(__file__).parents[2]
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
}
"""Clients that would send or fetch anything beside what a test asks are told not to."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The command of the server, and where results go."""
    group = parser.getgroup("clients")
    group.addoption("--daguerre", default=str(ROOT / ".venv" / "bin" / "daguerre"), help="the command to serve with")
    group.addoption("--examples", type=int, default=40, help="requests made from the schema of each route")
    group.addoption("--note", default="", help="what else a reader of the results should know")
    group.addoption("--results", default=None, help="write what was run to this file, with .json and .md")


def pytest_configure(config: pytest.Config) -> None:
    """Keep clients offline, and record."""
    os.environ.update(OFFLINE)
    config.pluginmanager.register(
        Record(config.getoption("--results"), config.getoption("--note")), "record-of-clients"
    )


@pytest.fixture(scope="session")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """`daguerre serve` with the default model, as a process."""
    with serving(request.config.getoption("--daguerre")) as one:
        yield one
        assert one.alive(), "the server ended while clients used it"


@pytest.fixture(scope="session")
def route_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the router's configuration and its log of decisions are."""
    return tmp_path_factory.mktemp("route")


@pytest.fixture(scope="session")
def routed(request: pytest.FixtureRequest, served: Served, route_folder: Path) -> Iterator[Served]:
    """`daguerre route` in front of the server, with two ways to decode its model, as a process."""
    config = ROUTE.format(url=served.url, log=route_folder / LOG)
    with routing(request.config.getoption("--daguerre"), route_folder, config) as one:
        yield one
        assert one.alive(), "the router ended while clients used it"


@pytest.fixture
def decisions(routed: Served, route_folder: Path) -> Callable[[int], list[dict[str, Any]]]:
    """decisions(num): the lines of the log of that many requests, once there are so many since the test began."""
    before = -1
    while (num := len(requests_in(route_folder / LOG))) != before:  # lines of requests that a test has left come late
        before = num
        time.sleep(0.2)

    def since(num: int) -> list[dict[str, Any]]:
        for _ in range(500):
            if len(found := requests_in(route_folder / LOG)[before:]) >= num:
                return found
            time.sleep(0.02)
        raise AssertionError(f"{len(found)} requests of {num}")

    return since


@pytest.fixture(scope="session")
def base_url(served: Served) -> str:
    """OpenAI's base URL."""
    return f"{served.url}/v1"


@pytest.fixture
def fact(request: pytest.FixtureRequest) -> Any:
    """fact(name, value): a measurement that the results list."""
    record = request.config.pluginmanager.get_plugin("record-of-clients")
    return lambda name, value: record.add_fact(request.node.path.stem, name, value)


@pytest.fixture
def model() -> str:
    """The name of the default model."""
    return MODEL
