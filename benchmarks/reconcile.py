"""Whether all books of an app agree once it is idle: counters, Prometheus, the database, the request log, the samples.

Each line of the balance is a name with two or more figures of the same thing from different sources, which must be equal.
"""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Books:
    """Where the figures come from: `/api/stats`, `/metrics`, the database's file, the app's log."""

    stats: dict[str, Any]
    metrics: str
    database: Path
    log: Path


def balance(books: Books) -> dict[str, dict[str, int]]:
    """The figures of each line by source."""
    counters, blocks = books.stats["counters"], books.stats["blocks"]
    answers, logged = _answers(books.database), _logged(books.log)
    sample = _last_sample(books.database)
    return {
        "sampled tokens": {
            "counter": counters["generated_tokens"],
            "prometheus": _series(books.metrics, "vllm:generation_tokens_total"),
            "ended candidates": _series(books.metrics, "vllm:request_generation_tokens_sum"),
            "database and request log": answers["completion"] + logged["completion_tokens"],
            "last sample": sample["generated_tokens"],
        },
        "prompt tokens": {
            "counter": counters["prompt_tokens"],
            "prometheus": _series(books.metrics, "vllm:prompt_tokens_total"),
            "database and request log": answers["prompt"] + logged["prompt_tokens"],
            "last sample": sample["prompt_tokens"],
        },
        "ended candidates": {
            "by reason": _series(books.metrics, "vllm:request_success_total"),
            "by length": _series(books.metrics, "vllm:request_generation_tokens_count"),
        },
        "preemptions": {
            "counter": counters["preemptions"],
            "prometheus": _series(books.metrics, "vllm:num_preemptions_total"),
            "last sample": sample["preemptions"],
        },
        "all blocks": {
            "total": blocks["total"],
            "cached and free": blocks["cached"] + blocks["free"],
            "prometheus": _series(books.metrics, "pageturn:blocks"),
        },
        "unfinished answers": {"database": answers["unfinished"], "expected": 0},
        "blocks in use": {"engine": blocks["private"] + blocks["shared"], "expected": 0},
    }


def disagreements(lines: dict[str, dict[str, int]]) -> list[str]:
    """The names of lines whose figures differ."""
    return [name for name, figures in lines.items() if len(set(figures.values())) > 1]


def _answers(database: Path) -> dict[str, int]:
    """Of all answers stored: tokens sampled; prompt tokens of those that were started, once per generation."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "select status, usage, timings, candidate_index from messages where role = 'assistant'"
        ).fetchall()
    totals = {"completion": 0, "prompt": 0, "unfinished": 0}
    for status, usage_text, timings_text, index in rows:
        if usage_text in (None, "null"):
            totals["unfinished"] += 1
            continue
        usage, timings = json.loads(usage_text), json.loads(timings_text)
        totals["unfinished"] += status == "generating"
        totals["completion"] += usage["completion_tokens"]
        if index == 0 and timings["prefill_ms"] > 0:
            totals["prompt"] += usage["prompt_tokens"]
    return totals


def _logged(log: Path) -> dict[str, int]:
    """Tokens of the requests under /v1 that were answered."""
    totals = {"completion_tokens": 0, "prompt_tokens": 0}
    for line in log.read_text().splitlines():
        _, found, text = line.partition("api.access: ")
        if found:
            entry = json.loads(text)
            for name in totals:
                totals[name] += entry.get(name, 0) if entry["path"].startswith("/v1/") else 0
    return totals


def _last_sample(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute(
            "select * from engine_samples order by time desc limit 1"
        ).fetchone()
    return dict(row)


def _series(metrics: str, name: str) -> int:
    """The sum over the labels of one series."""
    values = re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", metrics, re.MULTILINE)
    return round(sum(map(float, values)))
