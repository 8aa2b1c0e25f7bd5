"""The dashboard's numbers against the block manager's own, counted anew after every step of scripted loads.

What the page gets (documents and frames) is compared with a count over the sequences' block tables: forks, aborts,
preemption, a pool that is full, prefixes shared between requests.
"""

import json
import math
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from api.documents import Documents, owner_number
from api.machine import Machine
from api.topics import EngineTopics
from chat.owners import RequestOwners
from engine.stats import BlockCells, BlockDetail, EngineStats, ModelInfo, RequestsReport
from tests.fakes import Harness

STATES = ("free", "cached", "private", "shared")


class HarnessEngine:
    """What the documents ask of an engine, from a scheduler that the test steps."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    @property
    def stats(self) -> EngineStats:
        return self.harness.scheduler.view.stats()

    @property
    def info(self) -> ModelInfo:
        return self.harness.runner.info

    async def requests_report(self) -> RequestsReport:
        return self.harness.scheduler.view.requests_report()

    async def block_cells(self) -> BlockCells:
        return self.harness.scheduler.view.block_cells()

    async def block(self, block_id: int) -> BlockDetail | None:
        return self.harness.scheduler.view.block(block_id)


class NoChat:
    """Requests of programs only, and no minute gone by."""

    owners = RequestOwners()

    def last_minute(self) -> None:
        return None


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def tables(harness: Harness) -> list[tuple[int, list[int]]]:
    """(request id, block table) of every running sequence."""
    running = harness.scheduler._roster.running
    return [(seq.request.request_id, seq.block_table) for seq in running]


def counted(harness: Harness) -> dict[str, int]:
    """Blocks by state, counted over the tables and the pool's keys."""
    references = Counter(block_id for _, table in tables(harness) for block_id in table)
    shared = sum(count > 1 for count in references.values())
    keyed = {block.block_id for block in harness.scheduler.kv.pool.blocks if block.key}
    cached = len(keyed - references.keys())
    free = harness.config.num_blocks - len(references) - cached
    return {"private": len(references) - shared, "shared": shared, "cached": cached, "free": free}


async def check(harness: Harness) -> dict[str, Any]:
    """Assert that frames and documents say what the tables do; returns the stats."""
    documents = Documents(HarnessEngine(harness), NoChat(), Machine())  # pyright: ignore[reportArgumentType]
    polls = EngineTopics(documents).polls
    stats = json.loads(await polls["stats"].fetch())["stats"]
    shown = json.loads(await polls["requests"].fetch())
    cells = struct.unpack(f"<{harness.config.num_blocks}H", await polls["blocks"].fetch())
    own = counted(harness)
    blocks = stats["blocks"]
    assert {state: blocks[state] for state in own} == own
    assert sum(own.values()) == blocks["total"] == harness.config.num_blocks
    by_state = Counter(STATES[cell >> 14] for cell in cells)
    assert {state: by_state[state] for state in own} == own
    _check_owners(harness, cells)
    _check_requests(harness, stats, shown)
    return stats


def _check_owners(harness: Harness, cells: tuple[int, ...]) -> None:
    holders: dict[int, set[int]] = {}
    for request_id, table in tables(harness):
        for block_id in table:
            holders.setdefault(block_id, set()).add(request_id)
    for block_id, cell in enumerate(cells):
        oldest = min(holders.get(block_id, ()), default=0)
        assert cell & 0x3FFF == (owner_number(oldest) if oldest else 0), f"block {block_id}"


def _check_requests(harness: Harness, stats: dict[str, Any], shown: dict[str, Any]) -> None:
    config = harness.config
    running = harness.scheduler._roster.running
    own: dict[int, set[int]] = {}
    references = 0
    for request_id, table in tables(harness):
        own.setdefault(request_id, set()).update(table)
        references += len(table)
    for item in shown["items"]:
        held = own.get(item["request_id"], set())
        assert item["blocks_private"] + item["blocks_shared"] == len(held)
    in_use = stats["blocks"]["private"] + stats["blocks"]["shared"]
    saved = shown["blocks_saved"]
    assert saved["by_forks"] == references - sum(map(len, own.values()))
    assert saved["by_prefix_cache"] == sum(map(len, own.values())) - in_use
    assert stats["blocks_saved"] == references - in_use
    lengths = [seq.num_computed_tokens for seq in running]
    bytes_per_token = config.bytes_per_token
    assert stats["counterfactual_bytes"] == {
        "paged": in_use * config.block_size * bytes_per_token,
        "max_len": len(lengths) * config.max_model_len * bytes_per_token,
        "pow2": sum(2 ** math.ceil(math.log2(n)) if n else 0 for n in lengths) * bytes_per_token,
        "exact": sum(lengths) * bytes_per_token,
    }
    stored = _stored_tokens(harness)
    assert stats["tokens"]["stored"] == stored
    empty = in_use * config.block_size - stored
    assert stats["internal_fragmentation"]["bytes"] == empty * bytes_per_token
    waiting = harness.scheduler._roster.waiting
    assert (stats["requests"]["running"], stats["requests"]["waiting"]) == (
        len(lengths),
        len(waiting),
    )
    reasons = [stats["requests"][f"waiting_{name}"] for name in ("capacity", "budget", "deferred")]
    assert sum(reasons) == len(waiting)


def _stored_tokens(harness: Harness) -> int:
    """Token positions whose keys and values lie in blocks in use, each block once."""
    size, most = harness.config.block_size, {}
    for seq in harness.scheduler._roster.running:
        for position, block_id in enumerate(seq.block_table):
            stored = max(0, min(size, seq.num_computed_tokens - position * size))
            most[block_id] = max(most.get(block_id, 0), stored)
    return sum(most.values())


def fork(harness: Harness) -> None:
    harness.add(prompt(9), n=3, seed=1, max_tokens=12)


def abort_of_one_and_of_all(harness: Harness) -> None:
    first = harness.add(prompt(9, 7), n=3, seed=1, max_tokens=30)
    second = harness.add(prompt(30, 90), max_tokens=30)
    harness.steps(4)
    harness.abort(first, 1)
    harness.abort(second)


def full_pool(harness: Harness) -> None:
    for i in range(7):
        harness.add(prompt(11, 30 * i), n=1 + i % 2, seed=i, max_tokens=40)


def shared_prefixes(harness: Harness) -> None:
    harness.add(prompt(17), max_tokens=2)
    harness.run()
    for i in range(3):
        harness.add([*prompt(16), 9 + i, 5], max_tokens=9)


@pytest.mark.parametrize("load", [fork, abort_of_one_and_of_all, full_pool, shared_prefixes])
@pytest.mark.parametrize("caching", [True, False])
async def test_the_numbers_are_the_block_managers(
    load: Callable[[Harness], None], caching: bool
) -> None:
    harness = Harness(num_blocks=24, enable_prefix_caching=caching, max_num_batched_tokens=16)
    load(harness)
    for _ in range(400):
        if not harness.scheduler.has_work:
            break
        harness.step()
        await check(harness)
    stats = await check(harness)
    assert not harness.scheduler.has_work
    assert (stats["blocks"]["private"], stats["blocks"]["shared"]) == (0, 0)
    if load is full_pool:
        assert stats["counters"]["preemptions"] > 0


async def test_preemption_by_hand_is_shown_at_once() -> None:
    harness = Harness(num_blocks=24)
    harness.add(prompt(20), max_tokens=20)
    harness.add(prompt(20, 100), max_tokens=20)
    harness.steps(3)
    before = await check(harness)
    harness.preempt()
    after = await check(harness)
    assert after["counters"]["preemptions"] == before["counters"]["preemptions"] + 1
    assert after["requests"] | {"waiting_budget": 0} == {
        "running": 1,
        "waiting": 1,
        "waiting_capacity": 0,
        "waiting_budget": 0,
        "waiting_deferred": 0,
    }
    assert after["blocks"]["private"] == 6


async def test_utilisation_follows_a_long_request_block_by_block() -> None:
    harness = Harness(block_size=16, num_blocks=200, max_model_len=4096, max_num_batched_tokens=64)
    request = harness.add(prompt(1000), max_tokens=1000)
    for step in range(10_000):
        if not harness.scheduler.has_work:
            break
        harness.step()
        length = sum(seq.num_tokens for seq in request.sequences if seq.block_table)
        blocks = harness.scheduler.view.stats().blocks
        if length > 1000:
            assert abs(blocks.private + blocks.shared - math.ceil(length / 16)) <= 1, step
    assert len(harness.texts[0, 0]) == 1000
