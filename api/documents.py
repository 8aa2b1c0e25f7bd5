"""JSON documents about the engine that both HTTP and the socket show."""

from dataclasses import asdict, dataclass
from typing import Any

from api.flat import flat
from api.machine import Machine
from api.surface import Engine
from chat.history import History
from chat.service import ChatService
from engine.stats import BlockDetail, RequestDetail, RequestInfo, RequestsReport

OWNER_NUMBERS = 2**14 - 1


def owner_number(request_id: int) -> int:
    """A request's number in the frames of the block map: 14 bits, never 0."""
    return (request_id - 1) % OWNER_NUMBERS + 1


@dataclass(frozen=True)
class Documents:
    """What operators see, of one engine and the chats on it. Raise EngineNotReadyError while loading."""

    engine: Engine
    chat: ChatService
    machine: Machine

    def stats(self) -> dict[str, Any]:
        """What /api/stats and the topic `stats` show."""
        stats, info, last_minute = self.engine.stats, self.engine.info, self.chat.last_minute()
        return {
            "time": stats.time,
            "num_steps": stats.num_steps,
            "blocks": flat(stats.blocks),
            "tokens": {"capacity": stats.tokens_capacity, "stored": stats.tokens_stored},
            "requests": {
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "waiting_capacity": stats.waiting_capacity,
                "waiting_budget": stats.waiting_budget,
                "waiting_deferred": stats.waiting_deferred,
            },
            "counters": flat(stats.counters),
            "last_minute": None if last_minute is None else flat(last_minute),
            "counterfactual_bytes": flat(stats.counterfactual_bytes),
            "counterfactual_bytes_ended": flat(stats.counterfactual_bytes_ended),
            "internal_fragmentation": flat(stats.internal_fragmentation),
            "blocks_saved": stats.blocks_saved,
            "model": flat(info),
            "machine": self.machine.document(info.device),
        }

    def requests(self, report: RequestsReport) -> dict[str, Any]:
        """What /api/requests and the topic `requests` show."""
        return {
            "items": [self._request(info) for info in report.live],
            "recent": [self._request(info) for info in report.recent],
            "blocks_saved": {
                "by_forks": report.saved_by_forks,
                "by_prefix_cache": report.saved_by_prefix_cache,
            },
        }

    def request(self, detail: RequestDetail) -> dict[str, Any]:
        """One request with what happened to it."""
        return self._request(detail.info) | {"events": [asdict(event) for event in detail.events]}

    def block(self, detail: BlockDetail) -> dict[str, Any]:
        """One block, and whose it is."""
        holders = [asdict(holder) | self._owner(holder.request_id) for holder in detail.holders]
        return asdict(detail) | {"holders": holders}

    def _request(self, info: RequestInfo) -> dict[str, Any]:
        number = {"owner_number": owner_number(info.request_id)}
        return flat(info) | number | self._owner(info.request_id)

    def _owner(self, request_id: int) -> dict[str, str | None]:
        owner = self.chat.owners.find(request_id)
        if owner is None:
            return {"conversation_id": None, "generation_id": None, "title": None}
        return flat(owner)


def history_rows(history: History) -> list[dict[str, Any]]:
    """A point a row, flat: what the JSON and the CSV of /api/history have in common."""
    rows = []
    for point in history.points:
        row = flat(point)
        rows.append(row | flat(row.pop("change")))
    return rows
