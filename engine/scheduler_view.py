"""What people may see of the scheduling half: everything here is read between two steps, and changes nothing."""

import time
from dataclasses import dataclass

from engine.config import SchedulerConfig
from engine.counterfactuals import Counterfactuals
from engine.intake import Intake
from engine.kv_cache_manager import KVCacheManager
from engine.reports import (
    EndedRequests,
    Tally,
    count_savings,
    describe_block,
    describe_cells,
    describe_request,
    take_block_map,
)
from engine.residency import count_resident
from engine.roster import Roster
from engine.stats import (
    BlockCells,
    BlockDetail,
    BlockMap,
    EngineStats,
    RequestDetail,
    RequestInfo,
    RequestsReport,
)


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """The scheduler's parts, for reading."""

    config: SchedulerConfig
    kv: KVCacheManager
    roster: Roster
    intake: Intake
    tally: Tally
    counterfactuals: Counterfactuals
    ended_requests: EndedRequests

    def stats(self) -> EngineStats:
        """The published picture. O(running sequences), whatever the size of the pool."""
        pool, counts = self.kv.pool, self.kv.pool.counts
        num_waiting, num_short = len(self.roster.waiting), self.intake.num_short
        num_deferred = self.intake.num_deferred
        num_references = sum(len(seq.block_table) for seq in self.roster.running)
        return EngineStats(
            time=time.time(),
            num_steps=self.tally.num_steps,
            blocks=counts,
            tokens_capacity=counts.total * counts.block_size,
            tokens_stored=pool.tokens_stored,
            num_running=len(self.roster.running),
            num_waiting=num_waiting,
            waiting_capacity=num_short,
            waiting_budget=num_waiting - num_short - num_deferred,
            counters=self.tally.counters(self.kv.num_cow_copies),
            counterfactual_bytes=self.counterfactuals.live(pool, self.roster.running),
            counterfactual_bytes_ended=self.counterfactuals.ended(),
            internal_fragmentation=self.counterfactuals.fragmentation(pool),
            waiting_deferred=num_deferred,
            blocks_saved=num_references - counts.private - counts.shared,
            distributions=self.tally.distributions(),
        )

    def requests(self) -> tuple[RequestInfo, ...]:
        """The live requests in order of arrival."""
        now = time.monotonic()
        reasons = {seq.request.request_id: self.intake.reason(seq) for seq in self.roster.waiting}
        return tuple(
            describe_request(request, self.kv.pool, now, reasons.get(request.request_id))
            for request in self.roster.requests.values()
        )

    def requests_report(self) -> RequestsReport:
        """Live and ended requests, and what sharing saves."""
        by_forks, by_prefix_cache = count_savings(self.kv.pool, self.roster.requests.values())
        recent = tuple(detail.info for detail in self.ended_requests.newest_first())
        return RequestsReport(self.requests(), recent, by_forks, by_prefix_cache)

    def request(self, request_id: int) -> RequestDetail | None:
        """A live request, or one that has ended lately, with what happened to it."""
        request = self.roster.requests.get(request_id)
        if request is None:
            return self.ended_requests.find(request_id)
        (info,) = (info for info in self.requests() if info.request_id == request_id)
        return RequestDetail(info, tuple(request.timeline.events))

    def block_cells(self) -> BlockCells:
        """Every block in compact form. O(references to blocks), and a copy of a byte per block."""
        return describe_cells(self.kv.pool, self.roster.running)

    def block(self, block_id: int) -> BlockDetail | None:
        """One block and who holds it; None if there is no such block."""
        return describe_block(self.kv.pool, self.roster.running, block_id)

    def block_map(self) -> BlockMap:
        """Every block, in order of id; whoever iterates does the work."""
        return take_block_map(self.kv.pool, self.roster.running)

    def count_resident(self, token_ids: list[int]) -> int:
        """How many of the first tokens need not be computed again; see engine/residency.py."""
        return count_resident(self.kv.pool, self.config, token_ids)
