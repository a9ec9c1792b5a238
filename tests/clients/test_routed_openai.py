"""OpenAI's client against a router: what holds for the server holds behind it, and an answer says who gave it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from routed import LOG, ROUTE, Backends, routing
from test_openai_chat import (  # noqa: F401
    USER,
    test_a_call_that_must_be_made_is_made_and_valid,
    test_a_json_object_is_one,
    test_a_prediction_is_counted,
    test_a_pydantic_class_is_parsed,
    test_a_pydantic_class_is_parsed_from_a_stream,
    test_a_stream_is_the_same_text_as_the_answer,
    test_a_stream_that_is_closed_early_leaves_the_server_well,
    test_an_answer_has_a_text_a_reason_and_a_usage,
    test_eight_requests_at_once_get_what_they_get_alone,
    test_every_effort_is_answered,
    test_log_probabilities_are_those_of_the_text,
    test_options_of_diffusion_go_in_the_extra_body,
    test_several_choices_differ_and_repeat_with_the_seed,
    test_streamed_arguments_add_up_to_the_call,
    test_the_result_of_a_call_goes_back,
    test_tools_that_may_not_be_called_are_not,
)
from test_openai_responses import (  # noqa: F401
    test_a_function_is_called_and_its_output_goes_back,
    test_a_response_has_a_text_and_a_usage,
    test_a_streamed_call_adds_up,
    test_the_clients_own_accumulator_builds_the_response,
    test_the_events_of_a_stream_are_in_order_and_add_up,
)
from test_openai_texts import (  # noqa: F401
    test_a_gap_is_filled_before_a_suffix,
    test_a_stream_is_the_same_text,
    test_embeddings_are_equal_as_numbers_and_as_base64,
    test_several_prompts_and_choices_are_numbered,
    test_the_prompt_is_echoed_with_log_probabilities,
)

from served import Served

MODES = {"blocks": "block", "one-by-one": "ar"}


@pytest.fixture(scope="session")
def base_url(routed: Served) -> str:
    """The router's in place of the server's."""
    return f"{routed.url}/v1"


@pytest.fixture
def client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0)


def ask(client: OpenAI, **more: Any) -> tuple[str, str]:
    """Which backend answered, by the header, and in which mode, by the server's own word."""
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=USER, max_tokens=4, **more)
    usage = raw.parse().usage
    assert usage is not None
    return raw.headers["x-route-backend"], usage.model_dump()["daguerre"]["mode"]


def test_an_answer_says_who_gave_it_and_why(client: OpenAI, decisions: Callable[[int], list[Any]]) -> None:
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=USER, max_tokens=4)
    (line,) = decisions(1)
    assert raw.headers["x-route-id"] == line["id"]
    assert raw.headers["x-route-backend"] == line["decision"]["backend"] == "blocks"
    assert raw.headers["x-route-step"] == line["features"]["step"]
    assert raw.headers["x-route-reason"] == line["decision"]["reason"]
    assert line["status"] == 200 and line["tokens"]["output"] == raw.parse().usage.completion_tokens


def test_a_model_is_retrieved_and_one_that_there_is_not_is_not_found(client: OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["auto", *MODES]
    found = client.models.retrieve("blocks")
    assert (found.id, found.object, found.created, found.owned_by) == ("blocks", "model", 0, "daguerre")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-5")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("backend", MODES)
def test_a_wish_is_followed_as_a_header_and_as_metadata(client: OpenAI, backend: str) -> None:
    wish = {"x-route-backend": backend}
    assert ask(client, extra_headers=wish) == (backend, MODES[backend])
    assert ask(client, metadata=wish) == (backend, MODES[backend])


def test_a_step_that_needs_quality_goes_to_the_better_backend(client: OpenAI) -> None:
    assert ask(client, extra_headers={"x-route-step": "short_answer"}) == ("blocks", "block")
    assert ask(client, extra_headers={"x-route-step": "plan"}) == ("one-by-one", "ar")


@pytest.mark.parametrize("backend", MODES)
def test_a_stream_has_the_headers_before_its_first_chunk(client: OpenAI, backend: str) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="auto", messages=USER, max_tokens=8, stream=True, extra_headers={"x-route-backend": backend}
    ) as raw:
        assert raw.headers["x-route-backend"] == backend
        assert any(chunk.choices for chunk in raw.parse())


def test_responses_and_embeddings_say_who_gave_them_too(client: OpenAI) -> None:
    response = client.responses.with_raw_response.create(model="auto", input="x = 1", max_output_tokens=4)
    embedded = client.embeddings.with_raw_response.create(model="auto", input="x = 1")
    assert response.headers["x-route-backend"] in MODES
    assert embedded.headers["x-route-backend"] in MODES


@pytest.mark.parametrize(
    "wish", [{"x-route-backend": "nobody"}, {"x-route-step": "nothing"}, {"x-slo-ms": "soon"}, {"x-slo-ms": "0"}]
)
def test_a_wish_that_cannot_be_is_the_clients_error(client: OpenAI, wish: dict[str, str]) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(client, extra_headers=wish)


def test_errors_of_the_server_arrive_as_it_sent_them(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model="auto", messages=USER, temperature=9)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "x = 1\n" * 2000}])
    assert long.value.code == "context_length_exceeded"


def test_what_one_client_got_wrong_stops_no_other_one(client: OpenAI) -> None:
    for _ in range(8):
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="auto", input="x", previous_response_id="resp_nobody")
    assert ask(client)[0] == "blocks"


def test_a_model_that_is_a_backend_is_a_wish_for_it(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="one-by-one", messages=USER, max_tokens=4)
    assert raw.headers["x-route-backend"] == "one-by-one"


def test_a_stream_that_breaks_off_is_an_error_after_what_came(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with (
        Backends({}, breaks=True) as backends,
        routing(
            request.config.getoption("--daguerre"), tmp_path, ROUTE.format(url=backends.url, log=tmp_path / LOG)
        ) as router,
    ):
        client = OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        chunks = iter(client.chat.completions.create(model="auto", messages=USER, stream=True))
        assert [next(chunks).choices[0].delta.content for _ in range(2)] == ["one", "two"]
        with pytest.raises(openai.APIError) as error:
            next(chunks)
    assert error.value.code == "backend_failed"
    assert len(backends.one.asked) == 1


def test_the_models_are_the_backends_and_the_choice_among_them(client: OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["auto", *MODES]


def test_the_log_of_all_this_decides_the_same_again(
    client: OpenAI, route_folder: Path, request: pytest.FixtureRequest
) -> None:
    ask(client)
    command = [request.config.getoption("--daguerre"), "route", "replay", str(route_folder / LOG)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0 and " 0 differ" in said.stdout, said
