"""Prometheus metrics of one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .served import ServedModel

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Queues(Collector):
    """Read when asked for."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Running and waiting requests of each model, and what became of its drafts."""
        running = GaugeMetricFamily("strixhlo_requests_running", "Requests that generate", labels=["model"])
        waiting = GaugeMetricFamily("strixhlo_requests_waiting", "Requests in the queue", labels=["model"])
        drafted = CounterMetricFamily("strixhlo_drafted_tokens", "Tokens guessed by speculation", labels=["model"])
        accepted = CounterMetricFamily("strixhlo_accepted_tokens", "Of these, right ones", labels=["model"])
        for name, model in self._models.items():
            if speculation := model.scheduler.speculation:
                drafted.add_metric([name], speculation.drafted)
                accepted.add_metric([name], speculation.accepted)
            now, later = model.scheduler.state()
            running.add_metric([name], len(now))
            waiting.add_metric([name], later)
        yield from (running, waiting, drafted, accepted)


class Metrics:
    """Counters by model; `text` is what /metrics answers."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Queues(models))
        self.requests = Counter("strixhlo_requests", "Requests by outcome", ["model", "finish"], registry=registry)
        self.prompt_tokens = Counter("strixhlo_prompt_tokens", "Tokens of prompts", ["model"], registry=registry)
        self.tokens = Counter("strixhlo_generated_tokens", "Tokens generated", ["model"], registry=registry)
        self.first_token = Histogram(
            "strixhlo_first_token_seconds", "Time to the first token", ["model"], buckets=SECONDS, registry=registry
        )
        self.seconds = Histogram(
            "strixhlo_request_seconds", "Time of whole requests", ["model"], buckets=SECONDS, registry=registry
        )

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
