"""One poll for all followers: a fetch for all of them, frames only when something changed, an end with the last of them."""

import asyncio

import pytest

from api.shared_poll import SharedPoll
from engine.errors import EngineDeadError, EngineNotReadyError

QUICK_S = 0.001


class Source:
    """Yields what it is given, then the last of it for ever; counts how often it was asked."""

    def __init__(self, *values: object) -> None:
        self.values, self.num_fetches = list(values), 0
        self.all_given = asyncio.Event()

    async def fetch(self) -> object:
        if self.num_fetches >= len(self.values):
            self.all_given.set()
        value = self.values[min(self.num_fetches, len(self.values) - 1)]
        self.num_fetches += 1
        if isinstance(value, Exception):
            raise value
        return value


async def test_many_followers_cost_one_fetch_and_get_the_same_object() -> None:
    source = Source({"built": "once"})
    poll = SharedPoll(source.fetch, 100.0)
    followers = [poll.changes() for _ in range(10)]
    got = await asyncio.gather(*(anext(follower) for follower in followers))
    late = poll.changes()
    assert await anext(late) is got[0]
    assert all(value is got[0] for value in got)
    assert source.num_fetches == 1
    for follower in (*followers, late):
        await follower.aclose()


async def test_only_changes_are_passed_on_and_loading_is_waited_out() -> None:
    source = Source(EngineNotReadyError("loading"), "a", "a", "b")
    changes = SharedPoll(source.fetch, QUICK_S).changes()
    assert [await anext(changes), await anext(changes)] == ["a", "b"]
    await changes.aclose()


async def test_who_is_slow_gets_the_latest_only() -> None:
    source = Source("a", "b", "c")
    changes = SharedPoll(source.fetch, QUICK_S).changes()
    assert await anext(changes) == "a"
    await source.all_given.wait()
    assert await anext(changes) == "c"
    await changes.aclose()


async def test_nothing_is_fetched_for_nobody() -> None:
    source = Source("a", "b", "c", "d")
    poll = SharedPoll(source.fetch, QUICK_S)
    first, second = poll.changes(), poll.changes()
    await asyncio.gather(anext(first), anext(second))
    await first.aclose()
    assert await anext(second) == "b"
    await second.aclose()
    fetched = source.num_fetches
    await asyncio.sleep(10 * QUICK_S)
    assert source.num_fetches == fetched
    again = poll.changes()
    assert await anext(again) in ("c", "d")
    await again.aclose()


async def test_a_dead_engine_is_told_to_every_follower_and_asked_again_by_the_next() -> None:
    source = Source("a", EngineDeadError("gone"))
    poll = SharedPoll(source.fetch, QUICK_S)
    followers = [poll.changes() for _ in range(3)]
    for follower in followers:
        assert await anext(follower) == "a"
    for follower in followers:
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(follower)
    with pytest.raises(EngineDeadError, match="gone"):
        await anext(poll.changes())
    assert source.num_fetches == 3
