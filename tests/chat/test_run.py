"""One generation's run, apart from the hub."""

from chat.checkpoint import Checkpointer
from chat.generation import Generation
from chat.run import NOT_ENDED, GenerationRun
from engine.outputs import RequestFinished
from storage.storage import Storage
from tests.chat.fakes import FakeClock, ManualStream
from tests.storage.turns import new_turn


async def make_run(
    storage: Storage, stream: ManualStream, n: int
) -> tuple[Generation, GenerationRun]:
    turn = await storage.conversations.add_turn(new_turn(seeds=(None,) * n))
    generation = Generation("g1", turn.conversation_id, turn.answer_ids)
    checkpointer = Checkpointer(storage.conversations, FakeClock())
    return generation, GenerationRun(
        generation, lambda: stream, storage.conversations, checkpointer
    )


async def test_an_abort_before_the_stream_is_open_is_kept_for_it(storage: Storage) -> None:
    stream = ManualStream(2)
    generation, run = await make_run(storage, stream, 2)
    run.abort("stopped", 1)
    stream.end(0)
    await run.run()
    assert {i: c.finish_reason for i, c in generation.candidates.items()} == {0: "stop", 1: "abort"}
    stored = await storage.conversations.message(generation.message_ids[1])
    assert stored.status == "stopped"


async def test_the_first_reason_for_an_abort_counts(storage: Storage) -> None:
    generation, run = await make_run(storage, ManualStream(1), 1)
    run.abort("stopped")
    run.abort("interrupted")
    await run.run()
    stored = await storage.conversations.message(generation.message_ids[0])
    assert (stored.status, stored.finish_reason) == ("stopped", "abort")
    told = generation.candidates[0]
    assert (told.status, told.finish_reason) == ("stopped", "abort")


async def test_a_drawn_nul_is_shown_and_stored_as_a_replacement(storage: Storage) -> None:
    stream = ManualStream(1)
    stream.text("a\0b")
    stream.end(0)
    generation, run = await make_run(storage, stream, 1)
    await run.run()
    stored = await storage.conversations.message(generation.message_ids[0])
    assert (stored.content, generation.text(0)) == ("a\ufffdb", "a\ufffdb")


async def test_a_stream_that_forgets_a_candidate_ends_it_with_an_error(storage: Storage) -> None:
    stream = ManualStream(2)
    stream.end(0)
    stream._events.put_nowait(RequestFinished())
    generation, run = await make_run(storage, stream, 2)
    await run.run()
    assert (generation.candidates[1].finish_reason, generation.candidates[1].error) == (
        "error",
        NOT_ENDED,
    )
    assert stream.is_closed
