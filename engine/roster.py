"""Who lives in the engine, and where: the queue of those that wait, and those that run, both in order of rank.

Rank is priority (lower first), then age: the order of arrival, and of candidates within a request. In the queue those
that were preempted stand before those of their priority that never ran.

Every live sequence stands in exactly one place: in `waiting`, in `running`, or among the followers of a leader that
stands in one of them. It knows nothing of memory and decides nothing.
"""

from bisect import insort

from engine.sequence import Request, Sequence, SequenceStatus


class Roster:
    """`waiting` is served from the front; the first of `running` has the best claim to go on."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.sequences: dict[int, Sequence] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._heirs: dict[int, Sequence] = {}

    @property
    def num_slots(self) -> int:
        """Sequence slots in use: a running leader holds one for each of its followers too."""
        return sum(1 + len(seq.followers) for seq in self.running)

    def enter(self, request: Request) -> None:
        """Queue a new request: its first sequence waits, the others follow it."""
        leader, *followers = request.sequences
        leader.status, leader.followers = SequenceStatus.WAITING, followers
        self.requests[request.request_id] = request
        self.sequences.update((seq.seq_id, seq) for seq in request.sequences)
        insort(self.waiting, leader, key=_turn)

    def admit(self, seq: Sequence) -> None:
        """From waiting to running."""
        self.waiting.remove(seq)
        self._run(seq)

    def preempt(self, seq: Sequence) -> None:
        """From running back to waiting."""
        self.running.remove(seq)
        seq.status = SequenceStatus.PREEMPTED
        insort(self.waiting, seq, key=_turn)

    def is_before(self, seq: Sequence, other: Sequence) -> bool:
        """Whether `seq` stands before `other` in the queue."""
        return _turn(seq) < _turn(other)

    def release_followers(self, leader: Sequence) -> list[Sequence]:
        """Let the followers of a running leader run beside it; returns them."""
        followers, leader.followers = leader.followers, []
        for seq in followers:
            self._run(seq)
        return followers

    def gather(self, sequences: list[Sequence]) -> None:
        """Put all beams of a request, wherever they stand, into one place in the queue: the others follow the first."""
        for seq in sequences:
            if seq.status is SequenceStatus.RUNNING:
                self.running.remove(seq)
            elif seq.status is not SequenceStatus.FOLLOWING:
                self.waiting.remove(seq)
            seq.status, seq.followers = SequenceStatus.FOLLOWING, []
        leader, *followers = sequences
        leader.status, leader.followers = SequenceStatus.PREEMPTED, followers
        insort(self.waiting, leader, key=_turn)

    def part(self, leader: Sequence, followers: list[Sequence]) -> None:
        """Let the first of some followers of a running leader run beside it, and lead the others of them."""
        for seq in followers:
            leader.followers.remove(seq)
        first, *first.followers = followers
        self._run(first)

    def leave(self, seq: Sequence) -> Sequence | None:
        """End the stay of `seq`. A leader's first follower takes its place and the other followers: the heir."""
        heir = self._vacate(seq)
        seq.status = SequenceStatus.FINISHED
        del self.sequences[seq.seq_id]
        if all(s.status is SequenceStatus.FINISHED for s in seq.request.sequences):
            del self.requests[seq.request.request_id]
        return heir

    def holder(self, seq_id: int) -> Sequence | None:
        """Who stands in the place that `seq_id` had when the step was planned: itself or its heir, if any lives."""
        while seq_id in self._heirs:
            seq_id = self._heirs[seq_id].seq_id
        return self.sequences.get(seq_id)

    def forget_heirs(self) -> None:
        """The step is over: its sequence ids are asked for no more."""
        self._heirs.clear()

    def check_integrity(self) -> None:
        """Assert that everyone stands in exactly one place, and in the right one."""
        assert self.running == sorted(self.running, key=rank), "running is out of order"
        assert self.waiting == sorted(self.waiting, key=_turn), "the queue is out of order"
        placed = [*self.running, *self.waiting]
        placed += [follower for seq in placed for follower in seq.followers]
        assert sorted(placed, key=rank) == sorted(self.sequences.values(), key=rank), (
            "a live sequence stands nowhere or twice, or a dead one stands somewhere"
        )
        for seq in placed:
            is_running = seq.status is SequenceStatus.RUNNING
            assert is_running == (seq in self.running), f"sequence {seq.seq_id} is misplaced"
            assert is_running or not seq.block_table, f"sequence {seq.seq_id} waits holding blocks"
        live = {seq.request.request_id for seq in placed}
        assert live == set(self.requests), "a request outlived its sequences, or the reverse"

    def _run(self, seq: Sequence) -> None:
        seq.status = SequenceStatus.RUNNING
        insort(self.running, seq, key=rank)

    def _vacate(self, seq: Sequence) -> Sequence | None:
        if seq.status is SequenceStatus.FOLLOWING:
            leader = next(s for s in seq.request.sequences if seq in s.followers)
            leader.followers.remove(seq)
            return None
        places = self.running if seq.status is SequenceStatus.RUNNING else self.waiting
        position = places.index(seq)
        if not seq.followers:
            del places[position]
            return None
        heir, *heir.followers = seq.followers
        seq.followers, heir.status = [], seq.status
        places[position] = self._heirs[seq.seq_id] = heir
        return heir


def rank(seq: Sequence) -> tuple[int, int, int]:
    """Who goes first: lower is better, and no two are equal."""
    return seq.request.params.priority, seq.request.request_id, seq.index


def _turn(seq: Sequence) -> tuple[int, bool, int, int]:
    priority, request_id, index = rank(seq)
    return priority, seq.status is not SequenceStatus.PREEMPTED, request_id, index
