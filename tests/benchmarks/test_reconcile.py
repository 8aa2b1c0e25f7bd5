"""The books that a mixed load is balanced with: read from a small database, log and Prometheus text by hand."""

import json
import sqlite3
from pathlib import Path

import pytest

from benchmarks.reconcile import Books, balance, disagreements

METRICS = """
vllm:generation_tokens_total{engine="0",model_name="m"} 12.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 12.0
vllm:request_generation_tokens_count{engine="0",model_name="m"} 4.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 9.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
pageturn:blocks{engine="0",model_name="m",state="cached"} 3.0
pageturn:blocks{engine="0",model_name="m",state="free"} 5.0
"""
LOG = """INFO app: Pageturn
INFO api.access: {"path": "/v1/completions", "status": 200, "prompt_tokens": 4, "completion_tokens": 5}
INFO api.access: {"path": "/v1/embeddings", "status": 200, "prompt_tokens": 2}
INFO api.access: {"path": "/api/stats", "status": 200}
"""
STATS = {
    "counters": {"generated_tokens": 12, "prompt_tokens": 9, "preemptions": 2},
    "blocks": {"total": 8, "private": 0, "shared": 0, "cached": 3, "free": 5},
}


@pytest.fixture
def books(tmp_path: Path) -> Books:
    database, log = tmp_path / "pageturn.db", tmp_path / "app.log"
    log.write_text(LOG)
    answers = [(0, 3, 4, 10.0), (1, 3, 3, 10.0), (0, 40, 0, 0.0)]
    with sqlite3.connect(database) as connection:
        connection.execute("create table messages (role, status, usage, timings, candidate_index)")
        for index, prompt, completion, prefill_ms in answers:
            usage = json.dumps({"prompt_tokens": prompt, "completion_tokens": completion})
            timings = json.dumps({"prefill_ms": prefill_ms})
            row = ("assistant", "done", usage, timings, index)
            connection.execute("insert into messages values (?, ?, ?, ?, ?)", row)
        connection.execute(
            "create table engine_samples (time, generated_tokens, prompt_tokens, preemptions)"
        )
        connection.execute("insert into engine_samples values (5, 12, 9, 2), (4, 1, 1, 1)")
    connection.close()
    return Books(STATS, METRICS, database, log)


def test_books_that_agree(books: Books) -> None:
    lines = balance(books)
    assert disagreements(lines) == []
    assert set(lines["sampled tokens"].values()) == {12}
    assert set(lines["prompt tokens"].values()) == {9}


def test_a_lost_token_and_an_unfinished_answer_are_found(books: Books) -> None:
    with sqlite3.connect(books.database) as connection:
        connection.execute("insert into messages values ('assistant', 'generating', null, null, 0)")
        connection.execute("update engine_samples set generated_tokens = 11 where time = 5")
    connection.close()
    assert disagreements(balance(books)) == ["sampled tokens", "unfinished answers"]
