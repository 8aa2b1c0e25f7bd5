"""Prometheus series: vLLM's names, types, units and buckets where it has one, `pageturn:*` for what only this engine knows.

Gauges, counters, and histograms of what happens between tokens are read from the engine's last published stats when they
are scraped; histograms of whole candidates are fed when those end. Names and buckets follow vllm/v1/metrics/loggers.py.
Every series carries `model_name` and `engine`, which is 0.
"""

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from api.surface import Engine
from engine.distributions import ITL_EDGES, RELEASE_EDGES, TTFT_EDGES, Distribution, Recorder
from engine.errors import EngineError
from engine.outputs import FinishReason
from engine.stats import STEP_EDGES, EngineStats, FinishedCandidate

LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKEN_BUCKETS = tuple(mantissa * 10**power for power in range(8) for mantissa in (1, 2, 5))
"""A model's series have those up to its longest context."""

LABELS = ("model_name", "engine")
ENGINE = "0"
CANDIDATE_HISTOGRAMS = (
    ("e2e", "vllm:e2e_request_latency_seconds", "Arrival to end.", LATENCY_BUCKETS),
    ("queue", "vllm:request_queue_time_seconds", "Arrival to first step.", LATENCY_BUCKETS),
    ("inference", "vllm:request_inference_time_seconds", "First step to end.", LATENCY_BUCKETS),
    ("prefill", "vllm:request_prefill_time_seconds", "First step to first token.", LATENCY_BUCKETS),
    ("decode", "vllm:request_decode_time_seconds", "First token to last.", LATENCY_BUCKETS),
    (
        "tpot",
        "vllm:request_time_per_output_token_seconds",
        "Mean time between a candidate's tokens.",
        ITL_EDGES,
    ),
)


class Metrics:
    """One engine's series in a registry of their own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.registry = CollectorRegistry()
        self.finished = dict.fromkeys(FinishReason, 0)
        self.prompt, self.generation, self.longest = (Recorder(TOKEN_BUCKETS) for _ in range(3))
        self._longest: dict[int, int] = {}
        self._histograms = {
            key: Histogram(name, text, LABELS, buckets=buckets, registry=self.registry)
            for key, name, text, buckets in CANDIDATE_HISTOGRAMS
        }
        self.registry.register(_EngineCollector(self))
        engine.add_finished_listener(self.observe)

    def render(self) -> bytes:
        """All series as Prometheus text."""
        return generate_latest(self.registry)

    def observe(self, candidate: FinishedCandidate) -> None:
        """Count a candidate that ended."""
        timings, usage = candidate.timings, candidate.usage
        self.finished[candidate.finish_reason] += 1
        self._observe("e2e", candidate.e2e_ms / 1e3)
        self._observe("queue", timings.queue_ms / 1e3)
        self._observe("inference", max(0.0, candidate.e2e_ms - timings.queue_ms) / 1e3)
        self.prompt.add(usage.prompt_tokens)
        self.generation.add(usage.completion_tokens)
        if usage.completion_tokens:
            self._observe("prefill", timings.prefill_ms / 1e3)
            self._observe("decode", timings.decode_ms / 1e3)
        if usage.completion_tokens > 1:
            self._observe("tpot", timings.decode_ms / 1e3 / (usage.completion_tokens - 1))
        self._observe_longest(candidate)

    def _observe_longest(self, candidate: FinishedCandidate) -> None:
        longest = max(self._longest.pop(candidate.request_id, 0), candidate.usage.completion_tokens)
        if candidate.is_last:
            self.longest.add(longest)
        else:
            self._longest[candidate.request_id] = longest

    def _observe(self, key: str, value: float) -> None:
        self._histograms[key].labels(self.engine.info.model_name, ENGINE).observe(value)


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
        yield from self._distributions(stats)
        yield from self._lengths()
        yield from self._own_series(stats)
        yield self._cache_config()

    def _vllm_series(self, stats: EngineStats) -> Iterator[Metric]:
        blocks, counters = stats.blocks, stats.counters
        waiting = {
            "capacity": stats.waiting_capacity,
            "budget": stats.waiting_budget,
            "deferred": stats.waiting_deferred,
        }
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

    def _distributions(self, stats: EngineStats) -> Iterator[Metric]:
        times = stats.distributions
        yield self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", times.ttft, TTFT_EDGES
        )
        yield self._histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens.", times.itl, ITL_EDGES
        )
        yield self._histogram(
            "vllm:iteration_tokens_total", "Tokens of a step.", times.step_tokens, STEP_EDGES
        )
        yield self._histogram(
            "pageturn:abort_release_seconds",
            "Freeing the blocks of an aborted candidate.",
            times.release,
            RELEASE_EDGES,
        )

    def _lengths(self) -> Iterator[Metric]:
        longest_context = self.engine.info.max_model_len
        buckets = tuple(bucket for bucket in TOKEN_BUCKETS if bucket <= longest_context)
        for name, text, recorder in (
            ("vllm:request_prompt_tokens", "Prompt lengths.", self.metrics.prompt),
            ("vllm:request_generation_tokens", "Answer lengths.", self.metrics.generation),
            (
                "vllm:request_max_num_generation_tokens",
                "Length of a request's longest answer.",
                self.metrics.longest,
            ),
        ):
            yield self._histogram(name, text, recorder.picture(), buckets)

    def _own_series(self, stats: EngineStats) -> Iterator[Metric]:
        blocks, waste = stats.blocks, stats.internal_fragmentation
        states = {name: getattr(blocks, name) for name in ("private", "shared", "cached", "free")}
        live, ended = asdict(stats.counterfactual_bytes), asdict(stats.counterfactual_bytes_ended)
        yield self._gauge("pageturn:blocks", "KV blocks by state.", states, "state")
        yield self._gauge(
            "pageturn:blocks_saved", "Blocks that sharing saves at the moment.", stats.blocks_saved
        )
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

    def _cache_config(self) -> Metric:
        info = self.engine.info
        labels = {
            "block_size": str(info.block_size),
            "cache_dtype": info.kv_cache_dtype,
            "num_gpu_blocks": str(info.num_blocks),
        }
        metric = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV pool.", labels=[*LABELS, *labels]
        )
        metric.add_metric([info.model_name, ENGINE, *labels.values()], 1)
        return metric

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
        metric = family(name, text, labels=[*LABELS, label] if label else LABELS)
        model = self.engine.info.model_name
        for key, number in value.items() if isinstance(value, dict) else [("", value)]:
            metric.add_metric([model, ENGINE, key] if label else [model, ENGINE], number)
        return metric

    def _histogram(
        self, name: str, text: str, values: Distribution, edges: tuple[float, ...]
    ) -> Metric:
        metric = HistogramMetricFamily(name, text, labels=LABELS)
        buckets = [(str(float(edge)), float(values.at_most(edge))) for edge in edges]
        total = [("+Inf", float(values.count))]
        metric.add_metric([self.engine.info.model_name, ENGINE], buckets + total, values.sum)
        return metric
