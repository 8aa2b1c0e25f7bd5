"""A peer answers by turns and stands still between them; one that is missing or fails says why."""

import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import process
from benchmarks.peers.process import Peer, PeerError

SCRIPT = """
import json, sys, threading, time
path, threads, cases = sys.argv[1:]
assert threads == "2"
ticks = open(path, "a", buffering=1)
threading.Thread(target=lambda: [(ticks.write("."), time.sleep(0.01)) for _ in range(3000)], daemon=True).start()
print("a line of the engine's own")
for line in sys.stdin:
    case, salt = json.loads(line)
    if case == "broken":
        sys.exit("out of memory")
    print("figure:", json.loads(cases)[case] + salt, flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run_made_up.py").write_text(SCRIPT)
    monkeypatch.setattr(process, "__file__", str(tmp_path / "process.py"))
    cases = {"a": 100, "b": 200, "broken": 0}
    peer = Peer("made_up", Path(sys.executable), tmp_path / "ticks", 2, cases)
    yield peer
    peer.close()


def test_figures_come_by_turns_and_nothing_runs_between(peer: Peer, tmp_path: Path) -> None:
    assert [peer.rate(case, salt) for case, salt in (("a", 0), ("b", 1), ("a", 2))] == [
        100,
        201,
        102,
    ]
    ticks = tmp_path / "ticks"
    time.sleep(0.1)  # a signal takes a moment
    before = ticks.stat().st_size
    time.sleep(0.3)
    assert ticks.stat().st_size == before
    assert peer.rate("b", 3) == 203
    assert ticks.stat().st_size >= before


def test_a_peer_that_fails_says_why(peer: Peer) -> None:
    assert peer.rate("a", 0) == 100
    with pytest.raises(PeerError, match="out of memory"):
        peer.rate("broken", 0)


def test_a_peer_that_is_not_installed_says_so(tmp_path: Path) -> None:
    peer = Peer("llama_cpp", Path(sys.executable), tmp_path, 2, {})
    with pytest.raises(PeerError, match="llama_cpp"):
        peer.rate("1 stream", 0)
    peer.close()
