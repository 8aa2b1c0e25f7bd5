"""Places in the roster: the queue, those that run by age, and heirs."""

from collections.abc import Callable

import pytest

from engine.roster import Roster
from engine.sampling_params import SamplingParams
from engine.sequence import Request, Sequence, SequenceStatus


def enter(roster: Roster, request_id: int, n: int = 1, priority: int = 0) -> list[Sequence]:
    params = SamplingParams(n=n, priority=priority)
    request = Request(request_id, [1, 2, 3], params, 0.0)
    request.sequences = [
        Sequence(10 * request_id + index, request, index, 8, frozenset()) for index in range(n)
    ]
    roster.enter(request)
    return request.sequences


def test_running_is_kept_by_age_whatever_the_order_of_admission() -> None:
    roster = Roster()
    first, second, third = (enter(roster, i)[0] for i in range(3))
    for seq in (third, first, second):
        roster.admit(seq)
    assert roster.running == [first, second, third]
    roster.preempt(third)
    roster.preempt(second)
    assert roster.waiting == [second, third]
    assert second.status is SequenceStatus.PREEMPTED
    roster.check_integrity()


def test_rank_is_priority_then_age() -> None:
    roster = Roster()
    for request_id, priority in enumerate((1, 0, -1, 0)):
        enter(roster, request_id, priority=priority)
    first, second, third, last = roster.waiting
    assert [seq.request.request_id for seq in roster.waiting] == [2, 1, 3, 0]
    for seq in (last, third, second, first):
        roster.admit(seq)
    assert roster.running == [first, second, third, last]
    roster.check_integrity()


def test_preempted_stand_before_those_of_their_priority_that_never_ran() -> None:
    roster = Roster()
    for request_id, priority in enumerate((0, 0, 0, 1)):
        enter(roster, request_id, priority=priority)
    third, last = roster.waiting[2:]
    for seq in (third, last):
        roster.admit(seq)
        roster.preempt(seq)
    assert [seq.request.request_id for seq in roster.waiting] == [2, 0, 1, 3]
    assert roster.is_before(third, roster.waiting[1])
    roster.check_integrity()


def test_followers_run_beside_their_leader_before_younger_requests() -> None:
    roster = Roster()
    leader, *followers = enter(roster, 0, n=3)
    (younger,) = enter(roster, 1)
    roster.admit(leader)
    roster.admit(younger)
    assert roster.num_slots == 4
    assert roster.release_followers(leader) == followers
    assert roster.running == [leader, *followers, younger]
    assert roster.num_slots == 4
    roster.check_integrity()


@pytest.mark.parametrize("is_running", [True, False])
def test_first_follower_takes_the_place_of_a_leader_that_leaves(is_running: bool) -> None:
    roster = Roster()
    leader, heir, last = enter(roster, 0, n=3)
    enter(roster, 1)
    if is_running:
        roster.admit(leader)
    assert roster.leave(leader) is heir
    assert (roster.running or roster.waiting)[0] is heir
    assert (heir.followers, heir.status) == (
        [last],
        SequenceStatus.RUNNING if is_running else SequenceStatus.WAITING,
    )
    assert roster.holder(leader.seq_id) is heir
    roster.leave(heir)
    assert roster.holder(leader.seq_id) is last
    roster.check_integrity()
    roster.forget_heirs()
    assert roster.holder(leader.seq_id) is None


def test_request_is_forgotten_with_its_last_sequence() -> None:
    roster = Roster()
    leader, follower = enter(roster, 0, n=2)
    assert roster.leave(follower) is None
    assert set(roster.requests) == {0}
    assert roster.leave(leader) is None
    assert roster.requests == roster.sequences == {}
    assert not roster.waiting
    roster.check_integrity()


def _place_twice(roster: Roster) -> None:
    roster.waiting.append(roster.waiting[0])


def _lose(roster: Roster) -> None:
    roster.waiting.clear()


def _disorder(roster: Roster) -> None:
    roster.running.reverse()


def _jump_the_queue(roster: Roster) -> None:
    enter(roster, 7)
    roster.waiting.reverse()


def _wait_holding_blocks(roster: Roster) -> None:
    roster.waiting[0].block_table.append(0)


def _mislabel(roster: Roster) -> None:
    roster.running[0].status = SequenceStatus.WAITING


def _keep_a_dead_request(roster: Roster) -> None:
    roster.requests[9] = roster.requests[0]


@pytest.mark.parametrize(
    ("breakage", "complaint"),
    [
        (_place_twice, "nowhere or twice"),
        (_lose, "nowhere or twice"),
        (_disorder, "running is out of order"),
        (_jump_the_queue, "queue is out of order"),
        (_wait_holding_blocks, "holding blocks"),
        (_mislabel, "misplaced"),
        (_keep_a_dead_request, "outlived"),
    ],
)
def test_check_integrity_notices(breakage: Callable[[Roster], None], complaint: str) -> None:
    roster = Roster()
    for request_id in range(3):
        enter(roster, request_id)
    roster.admit(roster.waiting[0])
    roster.admit(roster.waiting[0])
    roster.check_integrity()
    breakage(roster)
    with pytest.raises(AssertionError, match=complaint):
        roster.check_integrity()


def test_beams_are_gathered_behind_one_and_part_from_it() -> None:
    roster = Roster()
    first, second, third, last = beams = enter(roster, 0, n=4)
    roster.admit(first)
    roster.release_followers(first)
    other = enter(roster, 1)[0]
    roster.gather([third, first, last, second])
    assert roster.waiting == [third, other]
    assert [seq.status.value for seq in beams] == [
        "following",
        "following",
        "preempted",
        "following",
    ]
    roster.check_integrity()
    roster.admit(third)
    roster.part(third, [first, last])
    assert roster.running == [first, third]
    assert (first.followers, third.followers) == ([last], [second])
    roster.check_integrity()
    roster.gather([second, first, third, last])
    assert roster.waiting == [second, other]
    assert roster.running == []
    roster.check_integrity()
