"""The engine as this room and app.py use it; `engine.async_engine.AsyncEngine` says what each member means."""

from collections.abc import Callable, Sequence
from typing import Protocol

from chat.ports import Engine as ChatEngine
from chat.ports import Stream
from engine.stats import (
    BlockCells,
    BlockDetail,
    BlockMap,
    EngineStatus,
    FinishedCandidate,
    RequestDetail,
    RequestInfo,
    RequestsReport,
)


class Engine(ChatEngine, Protocol):
    """What chats need, and what operators and programs ask for."""

    @property
    def status(self) -> EngineStatus: ...

    def start(self) -> None: ...

    async def wait_ready(self) -> None: ...

    async def shutdown(self) -> None: ...

    def add_finished_listener(self, listener: Callable[[FinishedCandidate], None]) -> None: ...

    async def block_map(self) -> BlockMap: ...

    async def requests(self) -> tuple[RequestInfo, ...]: ...

    async def requests_report(self) -> RequestsReport: ...

    async def request(self, request_id: int) -> RequestDetail | None: ...

    async def block_cells(self) -> BlockCells: ...

    async def block(self, block_id: int) -> BlockDetail | None: ...

    def abort(self, request_id: int) -> None: ...

    @property
    def knows_tools(self) -> bool: ...

    async def encode(self, text: str) -> list[int]: ...

    def embed(self, prompt_token_ids: Sequence[int]) -> Stream: ...
