"""Counters for Prometheus: our own names, and those of vLLM, which dashboards and autoscalers know.

A name of ours, `daguerre_x`, has its twin `vllm:x` where vLLM has such a number; the two are one number. Diffusion's
own are counted as vLLM counts them: steps, positions computed in them, and tokens committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daguerre.engine.job import Job
from daguerre.errors import CancelledError
from daguerre.server.models import ModelPool

LABELS = ["model_name", "engine"]
ENGINE = "0"
PREFIXES = ("daguerre_", "vllm:")
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.96, 163.84, 2560.0)
WHOLE = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 480.0, 7680.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 200_000)
COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "New tokens.",
    "diffusion_num_denoising_steps": "Forwards of requests.",
    "diffusion_num_canvas_positions": "Rows of open positions, anchors and drafts in these forwards.",
    "diffusion_num_committed_tokens": "Tokens that these forwards committed.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From the arrival of a request to its first committed tokens.", FIRST),
    "e2e_request_latency_seconds": ("From the arrival of a request to its end.", WHOLE),
    "request_queue_time_seconds": ("How long a request waited for its first step.", WHOLE),
    "request_inference_time_seconds": ("From a request's first step to its end.", WHOLE),
    "request_time_per_output_token_seconds": ("Time after the first tokens, for each further token.", FIRST),
    "request_prompt_tokens": ("Tokens of a prompt.", SIZES),
    "request_generation_tokens": ("New tokens of a request.", SIZES),
    "request_params_n": ("Choices that a request asks for.", SIZES),
    "request_params_max_tokens": ("New tokens that a request allows.", SIZES),
}


class AliasedMetric:
    """A counter or histogram under both names."""

    def __init__(
        self, kind: type[Counter] | type[Histogram], name: str, text: str, more: Sequence[str] = (), **how: Any
    ) -> None:
        self._both = [kind(f"{prefix}{name}", text, [*LABELS, *more], **how) for prefix in PREFIXES]

    def add(self, value: float, *labels: str) -> None:
        """Count, or observe, a value."""
        for one in self._both:
            child = one.labels(*labels)
            child.observe(value) if isinstance(child, Histogram) else child.inc(value)


class Metrics:
    """The numbers of one server."""

    def __init__(self, pool: ModelPool) -> None:
        self.registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        self._answered = Counter("daguerre_http_requests", "Answers by path and status.", ["path", "status"], **here)
        self._counters = {name: AliasedMetric(Counter, name, text, **here) for name, text in COUNTERS.items()}
        self._histograms = {
            name: AliasedMetric(Histogram, name, text, buckets=buckets, **here)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._ended = AliasedMetric(Counter, "request_success", "Requests that are done.", ["finished_reason"], **here)
        self.registry.register(Gauges(pool))
        self._later = ThreadPoolExecutor(1, "daguerre-metrics")

    def answered(self, path: str, status: int) -> None:
        """Count an answer."""
        self._answered.labels(path, str(status)).inc()

    def done(self, model: str, job: Job) -> None:
        """Count a request that is done, soon: its result is not read in the engine's thread."""
        self._later.submit(self._count, model, job)

    def _count(self, model: str, job: Job) -> None:
        if job.error is not None:
            self._ended.add(1, model, ENGINE, "abort" if isinstance(job.error, CancelledError) else "error")
            return
        results = [job.result_of(index) for index in range(len(job.samples))]
        usages = [result.usage for result in results]
        new, prompt = sum(usage.completion_tokens for usage in usages), usages[0].prompt_tokens
        for result in results:
            self._ended.add(1, model, ENGINE, "length" if result.finish_reason == "timeout" else result.finish_reason)
        counts = {
            "prompt_tokens": prompt,
            "generation_tokens": new,
            "diffusion_num_denoising_steps": sum(usage.forwards for usage in usages),
            "diffusion_num_canvas_positions": sum(usage.query_tokens for usage in usages),
            "diffusion_num_committed_tokens": new,
        }
        for name, value in counts.items():
            self._counters[name].add(value, model, ENGINE)
        for name, seconds in (*_times(job, new), ("request_prompt_tokens", prompt), ("request_generation_tokens", new)):
            self._histograms[name].add(seconds, model, ENGINE)
        self._histograms["request_params_n"].add(len(results), model, ENGINE)
        self._histograms["request_params_max_tokens"].add(job.plan.max_tokens, model, ENGINE)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)


def _times(job: Job, num_new: int) -> Iterator[tuple[str, float]]:
    """The histograms of a job's times and their values in seconds."""
    assert job.finished is not None
    yield "e2e_request_latency_seconds", job.finished - job.submitted
    if job.started is not None:
        yield "request_queue_time_seconds", job.started - job.submitted
        yield "request_inference_time_seconds", job.finished - job.started
    if job.first is not None:
        yield "time_to_first_token_seconds", job.first - job.submitted
        if num_new > 1:
            yield "request_time_per_output_token_seconds", (job.finished - job.first) / (num_new - 1)


class Gauges(Collector):
    """What engines say about themselves when they are asked."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """The gauges, and the counters that engines keep."""
        for prefix in PREFIXES:
            gauges = {
                "num_requests_running": "Samples in the current step.",
                "num_requests_waiting": "Samples that wait for a place.",
                "kv_cache_usage_perc": "Share of the cache's pages that running samples need, 0 to 1.",
            }
            counters = {
                "num_preemptions": "How often a sample gave up its memory.",
                "prefix_cache_queries": "Rows of prompts that were looked for among stored prefixes.",
                "prefix_cache_hits": "Rows that were found there.",
                "engine_steps": "Batches.",
                "iteration_tokens": "Rows of all batches.",
            }
            families: dict[str, Any] = {n: GaugeMetricFamily(prefix + n, t, labels=LABELS) for n, t in gauges.items()}
            families |= {n: CounterMetricFamily(prefix + n, t, labels=LABELS) for n, t in counters.items()}
            for one in self._pool.loaded:
                stats = one.engine.stats()
                values = (stats.running, stats.waiting, stats.pages_used / stats.pages, stats.preemptions)
                rest = (stats.prefix_asked, stats.prefix_found, stats.steps, stats.rows)
                for family, value in zip(families.values(), (*values, *rest), strict=True):
                    family.add_metric([one.name, ENGINE], value)
            yield from families.values()
