"""How many requests may wait."""

import pytest

from engine.errors import OverloadedError
from engine.waiting_room import WaitingRoom


def test_a_full_room_takes_nobody_until_one_leaves() -> None:
    room = WaitingRoom(2)
    room.enter(1)
    give_back = room.keep_place()
    with pytest.raises(OverloadedError, match="2 requests are waiting, and no more than 2 may"):
        room.enter(2)
    with pytest.raises(OverloadedError):
        room.keep_place()
    give_back()
    give_back()
    room.enter(2)
    with pytest.raises(OverloadedError):
        room.enter(3)
    room.leave("unknown")
    room.leave(1)
    room.enter(3)


def test_no_limit() -> None:
    room = WaitingRoom(0)
    for key in range(5000):
        room.enter(key)
