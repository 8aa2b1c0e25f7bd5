"""Thirty random actions through the socket and over HTTP leave the history that a simple model of the tree has.

After every action the whole tree, the path on show and the open candidates are compared: what the route of the tree says,
and what a window on the conversation sees. The engine is scripted, so each answer's text is known before it is given.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.api.conftest import Client, Running, serve
from tests.chat.tree_model import TreeModel
from tests.fake_engine import FakeEngine

NUM_ACTIONS = 30


class Life:
    """A server, a window on one conversation, and the model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = TreeModel()
        self.ids: list[str] = []
        self.conversation_id: str | None = None
        self.numbers = itertools.count()
        self.generation = 0

    # --- the server and the window -----------------------------------------------------------

    async def start(self) -> None:
        self.server_stack, self.window_stack = AsyncExitStack(), AsyncExitStack()
        serving = serve(FakeEngine(self.script), self.directory)
        self.running: Running = await self.server_stack.enter_async_context(serving)
        self.http = await self.server_stack.enter_async_context(self.running.http())
        await self.open_window()

    async def open_window(self) -> None:
        self.window: Client = await self.window_stack.enter_async_context(
            self.running.ready_socket()
        )

    async def end(self) -> None:
        await self.window_stack.aclose()
        await self.server_stack.aclose()

    def script(self, prompt: Sequence[int], index: int) -> list[str]:
        return [f"g{self.generation}", f".{index}"]

    def texts(self, n: int, beginning: str = "") -> list[str]:
        return [f"{beginning}g{self.generation}.{index}" for index in range(n)]

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a frame that starts answers and wait for their end."""
        await self.window.send(kind, request_id="r", **fields)
        started = await self.window.skip_to("started", "error")
        assert started["type"] == "started", started
        await self.window.skip_to("finished")
        return started

    def note(self, started: dict[str, Any]) -> None:
        if len(self.ids) < len(self.model.nodes) - len(started["candidates"]):
            self.ids.append(started["user_message_id"])
        self.ids += [candidate["message_id"] for candidate in started["candidates"]]

    # --- actions: each takes a number to choose with, and how many answers ---------------------

    async def send(self, number: int, n: int) -> None:
        self.generation += 1
        content = f"question {next(self.numbers)}"
        place = {} if self.conversation_id is None else {"conversation_id": self.conversation_id}
        answers = self.model.of_role("assistant")
        parent = self.model.head
        if answers and number % 3 == 0:
            parent = answers[number % len(answers)]
            place = {"parent_id": self.ids[parent]}
        self.model.turn(parent, content, self.texts(n))
        started = await self.ask("send", content=content, n=n, **place)
        self.conversation_id = started["conversation_id"]
        self.note(started)

    async def edit(self, number: int, n: int) -> None:
        if said := self.model.of_role("user"):
            self.generation += 1
            at = said[number % len(said)]
            content = f"edited {next(self.numbers)}"
            self.model.turn(self.model.nodes[at].parent, content, self.texts(n))
            self.note(await self.ask("edit", message_id=self.ids[at], content=content, n=n))

    async def regenerate(self, number: int, n: int) -> None:
        if there := self.model.visible():
            self.generation += 1
            at = there[number % len(there)]
            node = self.model.nodes[at]
            self.model.turn(at if node.role == "user" else node.parent, None, self.texts(n))
            self.note(await self.ask("regenerate", message_id=self.ids[at], n=n))

    async def go_on(self, number: int, n: int) -> None:
        if answers := self.model.of_role("assistant"):
            self.generation += 1
            at = answers[number % len(answers)]
            node = self.model.nodes[at]
            kept = number % (len(node.content) + 1)
            self.model.turn(node.parent, None, self.texts(n, node.content[:kept]))
            fields = {"message_id": self.ids[at], "at_token": kept, "n": n}
            self.note(await self.ask("continue", **fields))

    async def pick(self, number: int, _n: int) -> None:
        if self.model.open:
            await self.select(self.model.open[number % len(self.model.open)])

    async def navigate(self, number: int, _n: int) -> None:
        if there := self.model.visible():
            await self.select(there[number % len(there)])

    async def select(self, at: int) -> None:
        self.model.select(at)
        await self.window.send("select", message_id=self.ids[at])
        selected = await self.window.skip_to("selected", "error")
        assert self.model.head is not None
        assert selected["head_id"] == self.ids[self.model.head]

    async def delete(self, number: int, _n: int) -> None:
        if there := self.model.visible():
            at = there[number % len(there)]
            count = self.model.delete(at)
            response = await self.http.delete(f"/api/messages/{self.ids[at]}")
            assert response.json()["num_messages"] == count

    async def undo(self, number: int, _n: int) -> None:
        if gone := self.model.can_restore():
            at = gone[number % len(gone)]
            self.model.restore(at)
            response = await self.http.post(f"/api/messages/{self.ids[at]}/restore")
            assert response.status_code == 200

    async def reload(self, _number: int, _n: int) -> None:
        await self.window_stack.aclose()
        await self.open_window()

    async def restart(self, _number: int, _n: int) -> None:
        await self.end()
        await self.start()

    # --- comparing ---------------------------------------------------------------------------

    async def compare(self) -> None:
        if self.conversation_id is None:
            return
        model, ids = self.model, self.ids
        path = f"/api/conversations/{self.conversation_id}"
        tree = (await self.http.get(path)).json()
        head = None if model.head is None else ids[model.head]
        assert tree["conversation"]["head_id"] == head
        assert [self.told(message) for message in tree["messages"]] == [
            self.expected(at) for at in model.visible()
        ]
        view = await self.view()
        assert [m["id"] for m in view["messages"]] == [ids[at] for at in model.path()]
        for at, message in zip(model.path(), view["messages"], strict=True):
            siblings = model.children(model.nodes[at].parent)
            assert message["sibling_ids"] == [ids[other] for other in siblings]
        assert [m["id"] for m in view["candidates"]] == [ids[at] for at in model.open]

    async def view(self) -> dict[str, Any]:
        topic = {"topic": "conversation", "id": self.conversation_id}
        await self.window.send("subscribe", **topic)
        view = await self.window.skip_to("conversation")
        await self.window.send("unsubscribe", **topic)
        await self.window.skip_to("unsubscribed")
        return view

    def told(self, message: dict[str, Any]) -> tuple[object, ...]:
        kept = ("id", "parent_id", "role", "content", "status")
        return tuple(message[name] for name in kept)

    def expected(self, at: int) -> tuple[object, ...]:
        node = self.model.nodes[at]
        parent = None if node.parent is None else self.ids[node.parent]
        return self.ids[at], parent, node.role, node.content, "done"


Action = Callable[[Life, int, int], Coroutine[Any, Any, None]]
ACTIONS: dict[str, Action] = {
    name: getattr(Life, name)
    for name in (
        "send",
        "edit",
        "regenerate",
        "go_on",
        "pick",
        "navigate",
        "delete",
        "undo",
        "reload",
        "restart",
    )
}
_steps = st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 999), st.integers(1, 3))


async def live(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory))
        await life.start()
        try:
            for name, number, n in [("send", 1, 2), *steps]:
                await ACTIONS[name](life, number, n)
                await life.compare()
        finally:
            await life.end()


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(_steps, min_size=NUM_ACTIONS, max_size=NUM_ACTIONS))
def test_the_history_is_that_of_the_model(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(live(steps))
