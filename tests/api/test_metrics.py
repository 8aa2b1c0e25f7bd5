"""The Prometheus text: names as vLLM's, numbers as the engine's."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from api.metrics import Metrics
from engine.distributions import Distribution, Recorder
from engine.outputs import FinishReason, Timings, Usage
from engine.sampling_params import SamplingParams
from engine.stats import STEP_EDGES, Distributions, EngineStatus, FinishedCandidate
from tests.api.conftest import Running
from tests.fake_engine import FakeEngine

DOC = (Path(__file__).resolve().parents[2] / "docs/http.md").read_text()
SERIES = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "pageturn:blocks",
    "pageturn:cow_copies_total",
    "pageturn:forks_total",
    "pageturn:counterfactual_bytes",
    "pageturn:counterfactual_ended_bytes_total",
    "pageturn:internal_fragmentation_bytes",
    "pageturn:internal_fragmentation_ratio",
]


def value(text: str, name: str, **labels: str) -> float:
    """The value of one series of the model `fake`."""
    wanted = {"model_name": "fake", "engine": "0", **labels}
    for found, inside, number in re.findall(r"^([\w:]+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        if found == name and dict(re.findall(r'(\w+)="([^"]*)"', inside)) == wanted:
            return float(number)
    raise AssertionError(f"no series {name} {labels}")


def finished(tokens: int) -> FinishedCandidate:
    timings = Timings(100.0, 200.0, 300.0, 900.0, 1.0, 1.0)
    return FinishedCandidate(1, 0, FinishReason.LENGTH, Usage(7, tokens, 0), timings, 1200.0)


async def test_a_scrape_has_every_series_with_the_model_name(running: Running) -> None:
    async with running.http() as http:
        await http.post("/v1/completions", json={"prompt": "a", "n": 2})
        response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    for name in SERIES:
        assert re.search(rf'^{name}\{{.*model_name="fake".*\}} ', response.text, re.MULTILINE), name
    assert value(response.text, "vllm:request_success_total", finished_reason="stop") == 2
    assert value(response.text, "vllm:generation_tokens_total") == 24


async def test_gauges_follow_the_engine() -> None:
    engine = FakeEngine(num_blocks=8)
    metrics = Metrics(engine)
    assert value(metrics.render().decode(), "vllm:kv_cache_usage_perc") == 0
    stream = engine.submit([1, 2], SamplingParams())
    await anext(aiter(stream))
    text = metrics.render().decode()
    assert value(text, "vllm:kv_cache_usage_perc") == 0.5
    assert value(text, "pageturn:blocks", state="private") == 4
    assert value(text, "pageturn:blocks", state="free") == 4
    assert value(text, "pageturn:counterfactual_bytes", policy="max_len") == 4
    assert value(text, "pageturn:counterfactual_ended_bytes_total", policy="exact") == 15
    assert value(text, "pageturn:internal_fragmentation_bytes") == 6
    assert value(text, "pageturn:internal_fragmentation_ratio") == 0.25


def test_the_document_lists_every_series() -> None:
    metrics = Metrics(FakeEngine())
    metrics.observe(finished(2))
    rows = []
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        further = ", ".join(
            f"`{label}`" for label in sorted(labels - {"model_name", "engine", "le"})
        )
        rows.append(f"| `{name}` | {family.type} | {further} |".replace("|  |", "| |"))
    table = DOC.split("<!-- metrics -->\n")[1].split("<!-- /metrics -->")[0].splitlines()
    assert table[2:] == rows


def test_candidates_are_counted_in_seconds_and_tokens() -> None:
    metrics = Metrics(FakeEngine())
    metrics.observe(finished(10))
    metrics.observe(finished(0))
    text = metrics.render().decode()
    assert value(text, "vllm:request_time_per_output_token_seconds_sum") == 0.1
    assert value(text, "vllm:e2e_request_latency_seconds_count") == 2
    assert value(text, "vllm:request_queue_time_seconds_bucket", le="0.3") == 2
    assert value(text, "vllm:request_inference_time_seconds_sum") == 2.2
    assert value(text, "vllm:request_prefill_time_seconds_count") == 1
    assert value(text, "vllm:request_prompt_tokens_bucket", le="5.0") == 0
    assert value(text, "vllm:request_prompt_tokens_bucket", le="10.0") == 2
    assert value(text, "vllm:request_generation_tokens_sum") == 10
    assert value(text, "vllm:request_success_total", finished_reason="length") == 2


def test_the_longest_answer_of_a_request_counts_once() -> None:
    metrics = Metrics(FakeEngine())
    for tokens, is_last in ((9, False), (4, False), (7, True)):
        metrics.observe(replace(finished(tokens), is_last=is_last))
    text = metrics.render().decode()
    assert value(text, "vllm:request_max_num_generation_tokens_count") == 1
    assert value(text, "vllm:request_max_num_generation_tokens_sum") == 9


def test_the_engines_distributions_are_read_at_vllms_edges() -> None:
    times = Recorder()
    for seconds in (0.004, 0.02, 0.05, 0.3):
        times.add(seconds)
    picture = times.picture()
    steps = Distribution(STEP_EDGES, (2, 1, *(0,) * (len(STEP_EDGES) - 1)), 6)
    engine = FakeEngine()
    stats = replace(
        engine.stats, distributions=Distributions(picture, picture, picture, picture, steps)
    )
    with patch.object(FakeEngine, "stats", stats):
        text = Metrics(engine).render().decode()
    for name, edge, count in (
        ("vllm:time_to_first_token_seconds", "0.02", 2),
        ("vllm:inter_token_latency_seconds", "0.05", 3),
        ("pageturn:abort_release_seconds", "0.01", 1),
        ("vllm:iteration_tokens_total", "8.0", 3),
    ):
        assert value(text, f"{name}_bucket", le=edge) == count, name
    assert value(text, "vllm:time_to_first_token_seconds_sum") == picture.sum
    assert value(text, "vllm:inter_token_latency_seconds_bucket", le="+Inf") == 4


def test_buckets_are_vllms() -> None:
    """As in vllm/v1/metrics/loggers.py; those of lengths end with the model's context, here 2,048."""
    text = Metrics(FakeEngine()).render().decode()
    expected = {
        "vllm:inter_token_latency_seconds": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 "
        "1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf",
        "vllm:time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 "
        "1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 +Inf",
        "vllm:request_prompt_tokens": "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 +Inf",
        "vllm:iteration_tokens_total": "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 "
        "8192.0 16384.0 +Inf",
    }
    for name, edges in expected.items():
        assert re.findall(rf'^{name}_bucket{{.*le="([^"]*)"', text, re.MULTILINE) == edges.split()


def test_nothing_of_the_engine_is_shown_before_it_is_ready() -> None:
    engine = FakeEngine()
    engine.status = EngineStatus("loading", "", 0.0)
    assert "num_requests_running" not in Metrics(engine).render().decode()
