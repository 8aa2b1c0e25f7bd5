"""Prometheus series: vLLM's names where it has one, `pageturn:*` for what only this engine knows.

Gauges and counters are read from the engine's last published stats when they are scraped; histograms are fed by
finished candidates. Every series carries `model_name`.
"""

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.surface import Engine
from engine.errors import EngineError
from engine.outputs import FinishReason
from engine.stats import EngineStats, FinishedCandidate

_LATENCY_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class Metrics:
    """One engine's series in a registry of their own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.registry = CollectorRegistry()
        self.finished = dict.fromkeys(FinishReason, 0)
        self.ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "Time to first token.", _LATENCY_BUCKETS
        )
        self.itl = self._histogram(
            "vllm:inter_token_latency_seconds",
            "Mean time between a candidate's tokens.",
            _ITL_BUCKETS,
        )
        self.e2e = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to end.", _LATENCY_BUCKETS
        )
        self.queue = self._histogram(
            "vllm:request_queue_time_seconds", "Arrival to first step.", _LATENCY_BUCKETS
        )
        self.prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "First step to first token.", _LATENCY_BUCKETS
        )
        self.decode = self._histogram(
            "vllm:request_decode_time_seconds", "First token to end.", _LATENCY_BUCKETS
        )
        self.prompt = self._histogram(
            "vllm:request_prompt_tokens", "Prompt lengths.", _TOKEN_BUCKETS
        )
        self.generation = self._histogram(
            "vllm:request_generation_tokens", "Answer lengths.", _TOKEN_BUCKETS
        )
        self.registry.register(_EngineCollector(self))
        engine.add_finished_listener(self.observe)

    def render(self) -> bytes:
        """All series as Prometheus text."""
        return generate_latest(self.registry)

    def observe(self, candidate: FinishedCandidate) -> None:
        """Count a candidate that ended."""
        timings, usage = candidate.timings, candidate.usage
        self.finished[candidate.finish_reason] += 1
        self._observe(self.e2e, candidate.e2e_ms / 1e3)
        self._observe(self.queue, timings.queue_ms / 1e3)
        self._observe(self.prompt, usage.prompt_tokens)
        self._observe(self.generation, usage.completion_tokens)
        if usage.completion_tokens:
            self._observe(self.ttft, timings.ttft_ms / 1e3)
            self._observe(self.prefill, timings.prefill_ms / 1e3)
            self._observe(self.decode, timings.decode_ms / 1e3)
        if usage.completion_tokens > 1:
            self._observe(self.itl, timings.decode_ms / 1e3 / (usage.completion_tokens - 1))

    def _observe(self, histogram: Histogram, value: float) -> None:
        histogram.labels(self.engine.info.model_name).observe(value)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model_name"], buckets=buckets, registry=self.registry)


class _EngineCollector(Collector):
    """Reads the engine at scrape time; gives nothing until there are stats."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics, self.engine = metrics, metrics.engine

    def collect(self) -> Iterator[Metric]:
        try:
            stats = self.engine.stats
        except EngineError:
            return
        finished = {reason.value: count for reason, count in self.metrics.finished.items()}
        yield self._counter(
            "vllm:request_success", "Candidates that ended.", finished, "finished_reason"
        )
        yield from self._vllm_series(stats)
        yield from self._own_series(stats)

    def _vllm_series(self, stats: EngineStats) -> Iterator[Metric]:
        blocks, counters = stats.blocks, stats.counters
        waiting = {"capacity": stats.waiting_capacity, "budget": stats.waiting_budget}
        used = (blocks.private + blocks.shared) / blocks.total
        yield self._gauge("vllm:num_requests_running", "Sequences in the batch.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting.", stats.num_waiting)
        yield self._gauge(
            "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.", waiting, "reason"
        )
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of blocks in use, 0 to 1.", used)
        yield self._counter(
            "vllm:prefix_cache_queries", "Tokens looked up.", counters.prefix_queries
        )
        yield self._counter("vllm:prefix_cache_hits", "Tokens found.", counters.prefix_hits)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens.", counters.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens sampled.", counters.generated_tokens)
        yield self._counter("vllm:num_preemptions", "Preemptions.", counters.preemptions)
        yield self._counter("vllm:spec_decode_num_drafts", "Steps with a draft.", counters.drafts)
        yield self._counter(
            "vllm:spec_decode_num_draft_tokens", "Tokens guessed ahead.", counters.draft_tokens
        )
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens",
            "Guessed tokens that came true.",
            counters.accepted_tokens,
        )

    def _own_series(self, stats: EngineStats) -> Iterator[Metric]:
        blocks, waste = stats.blocks, stats.internal_fragmentation
        states = {name: getattr(blocks, name) for name in ("private", "shared", "cached", "free")}
        live, ended = asdict(stats.counterfactual_bytes), asdict(stats.counterfactual_bytes_ended)
        yield self._gauge("pageturn:blocks", "KV blocks by state.", states, "state")
        yield self._gauge(
            "pageturn:tokens_stored", "Tokens whose KV is in the pool.", stats.tokens_stored
        )
        yield self._gauge(
            "pageturn:counterfactual_bytes", "KV bytes of the live load by policy.", live, "policy"
        )
        yield self._counter(
            "pageturn:counterfactual_ended_bytes",
            "KV bytes that ended sequences took in the end, by policy.",
            ended,
            "policy",
        )
        yield self._gauge(
            "pageturn:internal_fragmentation_bytes", "Live KV bytes without a token.", waste.bytes
        )
        yield self._gauge(
            "pageturn:internal_fragmentation_ratio", "Their share of live KV bytes.", waste.share
        )
        yield self._counter("pageturn:forks", "Candidates forked.", stats.counters.forks)
        yield self._counter(
            "pageturn:cow_copies", "Blocks copied on write.", stats.counters.cow_copies
        )
        yield self._counter("pageturn:steps", "Engine steps.", stats.num_steps)

    def _gauge(
        self, name: str, text: str, value: float | dict[str, int], label: str = ""
    ) -> Metric:
        return self._fill(GaugeMetricFamily, name, text, value, label)

    def _counter(
        self, name: str, text: str, value: float | dict[str, int], label: str = ""
    ) -> Metric:
        return self._fill(CounterMetricFamily, name, text, value, label)

    def _fill(
        self,
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        value: float | dict[str, int],
        label: str,
    ) -> Metric:
        metric = family(name, text, labels=["model_name", label] if label else ["model_name"])
        model = self.engine.info.model_name
        for key, number in value.items() if isinstance(value, dict) else [("", value)]:
            metric.add_metric([model, key] if label else [model], number)
        return metric
