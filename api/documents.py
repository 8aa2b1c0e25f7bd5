"""JSON documents about the engine that both HTTP and the socket show."""

from dataclasses import asdict
from typing import Any

from api.surface import Engine


def stats_document(engine: Engine) -> dict[str, Any]:
    """What /api/stats and the topic `stats` show. Raises EngineNotReadyError while loading."""
    stats = engine.stats
    return {
        "time": stats.time,
        "num_steps": stats.num_steps,
        "blocks": asdict(stats.blocks),
        "tokens": {"capacity": stats.tokens_capacity, "stored": stats.tokens_stored},
        "requests": {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "waiting_capacity": stats.waiting_capacity,
            "waiting_budget": stats.waiting_budget,
        },
        "counters": asdict(stats.counters),
        "counterfactual_bytes": asdict(stats.counterfactual_bytes),
        "counterfactual_bytes_ended": asdict(stats.counterfactual_bytes_ended),
        "internal_fragmentation": asdict(stats.internal_fragmentation),
        "model": asdict(engine.info),
    }
