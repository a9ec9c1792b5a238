"""The numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from server.processes import wait_until

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def numbers(client: httpx2.Client) -> Numbers:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def of(client: httpx2.Client, name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    found = [
        value for (key, kept), value in numbers(client).items() if key == name and labels.items() <= dict(kept).items()
    ]
    assert found, name
    return sum(found)


def test_requests_are_counted_under_both_names(serve: Callable[..., httpx2.Client]) -> None:
    client = serve()
    body = {
        "prompt": "x = 1\n",
        "max_tokens": 6,
        "n": 2,
        "temperature": 1.0,
        "daguerre": {"mode": "ar", "min_tokens": 6},
    }
    usage = client.post("/v1/completions", json=body).json()["usage"]
    for prefix in ("daguerre_", "vllm:"):
        counted(client, prefix, usage)


def counted(client: httpx2.Client, prefix: str, usage: dict[str, int]) -> None:
    """What two choices of 6 tokens each have made of the numbers."""
    labels = (("engine", "0"), ("model_name", "tiny"))
    wait_until(lambda: (prefix + "generation_tokens_total", labels) in numbers(client))
    assert of(client, f"{prefix}generation_tokens_total") == usage["completion_tokens"] == 12
    assert of(client, f"{prefix}prompt_tokens_total") == usage["prompt_tokens"]
    assert of(client, f"{prefix}diffusion_num_denoising_steps_total") == 12
    assert of(client, f"{prefix}diffusion_num_committed_tokens_total") == 12
    assert of(client, f"{prefix}request_success_total", finished_reason="length") == 2
    assert of(client, f"{prefix}num_requests_running") == of(client, f"{prefix}num_requests_waiting") == 0
    assert 0 <= of(client, f"{prefix}kv_cache_usage_perc") <= 1
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_inference_time"):
        assert of(client, f"{prefix}{name}_seconds_count") == 1
    assert of(client, f"{prefix}request_params_n_sum") == 2
    first, whole = (
        of(client, f"{prefix}{name}_seconds_sum") for name in ("time_to_first_token", "e2e_request_latency")
    )
    assert 0 < first <= whole


def test_answers_are_counted_by_route(serve: Callable[..., httpx2.Client]) -> None:
    client = serve()
    for path in ("/health", "/health", "/some/path", "/another"):
        client.get(path)
    assert of(client, "daguerre_http_requests_total", path="/health", status="200") == 2
    assert of(client, "daguerre_http_requests_total", path="other", status="404") == 2
