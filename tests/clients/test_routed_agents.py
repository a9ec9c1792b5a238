"""The Agents SDK against a router: ten steps with tools that land on two backends, whether they name their types or
not, and a loop that stays on one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from test_agents import (  # noqa: F401
    settings,
    stop_after,
    test_a_loop_without_an_end_is_stopped,
    test_a_streamed_run_has_the_events_of_its_calls,
    test_an_agent_ends_with_a_class,
    test_ten_steps_with_tools_of_an_mcp_server,
    test_ten_turns_of_a_conversation,
)

from served import Served

STEPS = ("classify", *("look_up", "look_up", "plan") * 2, *("tool_arguments",) * 3)
STRONG = "one-by-one"
"""Where steps of the type `plan` go; all others go to the other backend, which is cheaper."""


@pytest.fixture(scope="session")
def base_url(routed: Served) -> str:
    """The router's in place of the server's."""
    return f"{routed.url}/v1"


@function_tool
def choose_label(urgent: bool) -> str:
    """Say whether the ticket is urgent."""
    return f"urgent: {urgent}"


@function_tool
def find_page(number: int) -> str:
    """A page of the manual."""
    return f"page {number}: turn it off and on"


@function_tool
def add_step(minutes: int) -> str:
    """Add a step to the plan."""
    return f"a step of {minutes} minutes"


@function_tool
def send_reply(copies: int) -> str:
    """Send the reply."""
    return f"sent {copies}"


PLANS = ("Plan step by step how to fix it.", "Make a plan, step by step, for tomorrow.")
ASKED = (
    "Is this urgent? Pages are blank.",
    "Find the page about blanks.",
    "Look up the page on ink.",
    PLANS[0],
    "Which page has the codes?",
    "Find the page about parts.",
    PLANS[1],
    "Send the reply in 2 copies.",
    "Send one copy to Ann.",
    "Send 3 copies to Bob.",
)
"""What a user says to one agent that names no step types."""
TOOLS = {"classify": choose_label, "look_up": find_page, "plan": add_step, "tool_arguments": send_reply}


@function_tool
def look_up(page: Literal["ink", "codes", "parts"]) -> str:
    """A page of the manual."""
    return "Turn it off."


@function_tool
def send(to: Literal["Ann", "Bob"]) -> str:
    """Send the reply."""
    return "Sent."


def wishing(step: str) -> ModelSettings:
    """Settings of an agent that says what type its steps are."""
    return settings().resolve(ModelSettings(extra_headers={"x-route-step": step}))


@pytest.mark.parametrize("surface", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_ten_steps_with_tools_of_one_conversation_land_on_two_backends(
    base_url: str, model: str, surface: Any, decisions: Callable[[int], list[dict[str, Any]]]
) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        agents = {
            step: Agent(
                name=step,
                model=surface(model=model, openai_client=client),
                model_settings=wishing(step),
                tools=[tool],
                tool_use_behavior="stop_on_first_tool",
            )
            for step, tool in TOOLS.items()
        }
        said: list[Any] = []
        for number, step in enumerate(STEPS):
            result = await Runner.run(agents[step], [*said, {"role": "user", "content": f"step {number}"}])
            said = result.to_input_list()

    lines = decisions(len(STEPS))
    assert len(lines) == len(STEPS) == sum(item.get("type") == "function_call_output" for item in said) == 10
    assert [line["features"]["step"] for line in lines] == list(STEPS)
    landed = [line["decision"]["backend"] for line in lines]
    assert landed == [STRONG if step == "plan" else "blocks" for step in STEPS]
    assert {line["decision"]["rule"] for line in lines} == {"cost", "quality"}
    assert [attempt["backend"] for line in lines for attempt in line["attempts"]] == landed


@pytest.mark.parametrize("surface", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_ten_steps_whose_types_nobody_names_land_where_the_classifier_sends_them(
    base_url: str, model: str, surface: Any, decisions: Callable[[int], list[dict[str, Any]]]
) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        agent = Agent(
            name="desk",
            model=surface(model=model, openai_client=client),
            model_settings=settings(),
            tools=[look_up, send],
            tool_use_behavior="stop_on_first_tool",
        )
        said: list[Any] = []
        for text in ASKED:
            result = await Runner.run(agent, [*said, {"role": "user", "content": text}])
            said = result.to_input_list()

    lines = decisions(len(ASKED))
    assert len(lines) == len(ASKED) == sum(item.get("type") == "function_call_output" for item in said) == 10
    for line in lines:
        features = line["features"]
        assert "step" not in features["wishes"] and "ignored" not in line
        assert len(features["steps"]) == 13 and max(features["steps"].values()) < 1, "predicted, and not named"
        assert line["checks"] == {"tools": True}
    assert [line["features"]["step"] == "plan" for line in lines] == [text in PLANS for text in ASKED]
    assert [line["decision"]["backend"] for line in lines] == [STRONG if text in PLANS else "blocks" for text in ASKED]
    assert [attempt["backend"] for line in lines for attempt in line["attempts"]] == [
        line["decision"]["backend"] for line in lines
    ]


async def test_a_loop_whose_calls_are_open_stays_where_it_began(
    base_url: str, model: str, decisions: Callable[[int], list[dict[str, Any]]]
) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:

        def agent(name: str, step: str, **more: Any) -> Agent:
            surface = OpenAIChatCompletionsModel(model=model, openai_client=client)
            return Agent(name=name, model=surface, model_settings=wishing(step), **more)

        actor = agent("actor", "look_up", tools=[find_page], tool_use_behavior=stop_after(3), reset_tool_choice=False)
        planner = agent("planner", "plan", handoffs=[actor])
        result = await Runner.run(planner, "step", max_turns=6)

    assert result.last_agent is actor
    lines = decisions(4)
    assert [line["decision"]["backend"] for line in lines] == [STRONG] * 4
    assert [line["decision"]["rule"] for line in lines] == ["quality", *["conversation"] * 3]
    assert [line["features"]["step"] for line in lines] == ["plan", *["look_up"] * 3]
