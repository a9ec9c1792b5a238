"""The OpenAI Agents SDK: ten steps with tools of an MCP server, in three modes of decoding, and structured output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    ToolsToFinalOutputResult,
)
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI
from pydantic import BaseModel

STEPS = 10
MODES: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "block": {"mode": "block", "block_size": 8},
    "speculative": {"mode": "speculative"},
}
NOTES = {"command": sys.executable, "args": [str(Path(__file__).with_name("notes_mcp.py"))]}


def settings(**daguerre: Any) -> ModelSettings:
    return ModelSettings(
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=64,
        temperature=0.5,
        extra_body={"seed": 7, "daguerre": daguerre},
    )


def stop_after(num: int) -> Callable[..., ToolsToFinalOutputResult]:
    """Ends the loop after this many results of tools."""
    done: list[str] = []

    def decide(context: Any, results: list[Any]) -> ToolsToFinalOutputResult:
        done.extend(str(one.output) for one in results)
        return ToolsToFinalOutputResult(is_final_output=len(done) >= num, final_output="; ".join(done))

    return decide


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("surface", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_ten_steps_with_tools_of_an_mcp_server(
    base_url: str, model: str, mode: str, surface: Any, fact: Callable[[str, Any], None]
) -> None:
    async with (
        AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
        MCPServerStdio(params=NOTES, client_session_timeout_seconds=30) as notes,
    ):
        agent = Agent(
            name="keeper",
            instructions="Keep notes.",
            model=surface(model=model, openai_client=client),
            model_settings=settings(**MODES[mode]),
            mcp_servers=[notes],
            mcp_config={"convert_schemas_to_strict": True},
            tool_use_behavior=stop_after(STEPS),
            reset_tool_choice=False,
        )
        begun = time.perf_counter()
        result = await Runner.run(agent, "note = ", max_turns=STEPS + 1)
        seconds = time.perf_counter() - begun

    calls = [item for item in result.new_items if item.type == "tool_call_item"]
    outputs = [item for item in result.new_items if item.type == "tool_call_output_item"]
    assert len(calls) == len(outputs) == STEPS
    assert "error" not in result.final_output.lower()
    fact(f"{STEPS} steps with tools, {mode}, {surface.__name__}", f"{seconds:.2f} s")


@pytest.mark.parametrize("mode", MODES)
async def test_ten_turns_of_a_conversation(
    base_url: str, model: str, mode: str, fact: Callable[[str, Any], None]
) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        agent = Agent(
            name="writer",
            model=OpenAIChatCompletionsModel(model=model, openai_client=client),
            model_settings=ModelSettings(
                max_tokens=24, temperature=0.5, extra_body={"seed": 7, "daguerre": MODES[mode]}
            ),
        )
        said: list[Any] = []
        begun = time.perf_counter()
        for turn in range(STEPS):
            result = await Runner.run(agent, [*said, {"role": "user", "content": f"x{turn} = "}])
            said = result.to_input_list()
        seconds = time.perf_counter() - begun

    assert len(said) == 2 * STEPS
    fact(f"{STEPS} turns without tools, {mode}", f"{seconds:.2f} s")


class Verdict(BaseModel):
    good: bool
    reason: str


async def test_an_agent_ends_with_a_class(base_url: str, model: str) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        agent = Agent(
            name="judge",
            model=OpenAIChatCompletionsModel(model=model, openai_client=client),
            model_settings=ModelSettings(max_tokens=80),
            output_type=Verdict,
        )
        result = await Runner.run(agent, "x = 1")
    assert isinstance(result.final_output, Verdict)


async def test_a_loop_without_an_end_is_stopped(base_url: str, model: str) -> None:
    async with (
        AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
        MCPServerStdio(params=NOTES, client_session_timeout_seconds=30) as notes,
    ):
        agent = Agent(
            name="keeper",
            model=OpenAIChatCompletionsModel(model=model, openai_client=client),
            model_settings=settings(),
            mcp_servers=[notes],
            reset_tool_choice=False,
        )
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(agent, "note = ", max_turns=3)


async def test_a_streamed_run_has_the_events_of_its_calls(base_url: str, model: str) -> None:
    async with (
        AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
        MCPServerStdio(params=NOTES, client_session_timeout_seconds=30) as notes,
    ):
        agent = Agent(
            name="keeper",
            model=OpenAIChatCompletionsModel(model=model, openai_client=client),
            model_settings=settings(),
            mcp_servers=[notes],
            tool_use_behavior="stop_on_first_tool",
        )
        result = Runner.run_streamed(agent, "note = ")
        names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    assert names[:2] == ["tool_called", "tool_output"]
