"""Numbered events, replay, snapshots: what a subscriber of any speed reads."""

import asyncio

import pytest

from chat.events import Candidate, Delta, Finished, Snapshot
from chat.generation import BUFFER_EVENTS, Generation, Subscription
from engine.errors import RequestError
from tests.chat.reading import assert_complete, texts


@pytest.fixture
def generation() -> Generation:
    return Generation("g", "c", ("m0", "m1"))


def subscribe(generation: Generation, from_seq: int | None = 0) -> Subscription:
    return Subscription(generation, from_seq, lambda generation: None)


def end(generation: Generation, index: int) -> None:
    generation.publish_candidate(
        Candidate("g", generation.next_seq, index, "done", "stop", None, None, None)
    )


async def test_replay_from_any_seq_then_the_end(generation: Generation) -> None:
    generation.publish_progress(1, 2)
    for index in (0, 1, 0):
        generation.publish_delta(index, f"t{index}")
    for index in (0, 1):
        end(generation, index)
    generation.publish_finished()
    everything = [event async for event in subscribe(generation)]
    assert_complete(everything)
    for from_seq in range(len(everything) + 1):
        rest = [event async for event in subscribe(generation, from_seq)]
        assert rest == everything[from_seq:]


async def test_a_subscriber_follows_live(generation: Generation) -> None:
    subscription = subscribe(generation)
    reader = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0)
    assert not reader.done()
    generation.publish_delta(1, "x")
    assert await reader == Delta("g", 0, 1, "x")


async def test_a_slow_reader_gets_a_snapshot_and_goes_on_behind_it(generation: Generation) -> None:
    subscription = subscribe(generation)
    for number in range(BUFFER_EVENTS + 10):
        generation.publish_delta(number % 2, f"{number} ")
    end(generation, 1)
    snapshot = await anext(subscription)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.seq == BUFFER_EVENTS + 10
    assert snapshot.texts == tuple(
        "".join(f"{number} " for number in range(first, BUFFER_EVENTS + 10, 2)) for first in (0, 1)
    )
    assert [candidate.index for candidate in snapshot.candidates] == [1]
    generation.publish_delta(0, "last")
    assert await anext(subscription) == Delta("g", snapshot.seq + 1, 0, "last")


async def test_the_oldest_event_in_the_buffer_is_still_replayed(generation: Generation) -> None:
    for _ in range(BUFFER_EVENTS + 1):
        generation.publish_delta(0, "x")
    assert isinstance(await anext(subscribe(generation, 0)), Snapshot)
    assert await anext(subscribe(generation, 1)) == Delta("g", 1, 0, "x")


async def test_a_snapshot_of_a_finished_generation_is_followed_by_finished(
    generation: Generation,
) -> None:
    generation.publish_delta(0, "all")
    for index in (0, 1):
        end(generation, index)
    generation.publish_finished()
    events = [event async for event in subscribe(generation, None)]
    assert events == [
        Snapshot("g", 2, ("all", ""), tuple(generation.candidates[i] for i in (0, 1))),
        Finished("g", 3),
    ]


async def test_a_snapshot_of_a_fresh_generation_contains_nothing(generation: Generation) -> None:
    subscription = subscribe(generation, None)
    assert await anext(subscription) == Snapshot("g", -1, ("", ""), ())
    generation.publish_delta(0, "x")
    assert await anext(subscription) == Delta("g", 0, 0, "x")


@pytest.mark.parametrize("from_seq", [-1, 2])
async def test_a_seq_that_never_was_is_refused(generation: Generation, from_seq: int) -> None:
    generation.publish_delta(0, "x")
    with pytest.raises(RequestError) as refused:
        subscribe(generation, from_seq)
    assert refused.value.param == "from_seq"
    assert not generation.subscriptions


async def test_closing_detaches_once(generation: Generation) -> None:
    closed = []
    with Subscription(generation, 0, closed.append) as subscription:
        assert generation.subscriptions == {subscription}
    subscription.close()
    assert not generation.subscriptions
    assert closed == [generation]


async def test_interleaved_candidates_keep_their_texts_apart(generation: Generation) -> None:
    subscription = subscribe(generation)
    for index, text in ((0, "a"), (1, "b"), (0, "c")):
        generation.publish_delta(index, text)
    events = [await anext(subscription) for _ in range(3)]
    assert texts(events) == {0: "ac", 1: "b"}
    assert (generation.text(0), generation.text(1)) == ("ac", "b")
