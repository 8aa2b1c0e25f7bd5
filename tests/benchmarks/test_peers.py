"""A peer answers by turns and stands still between them; one that is missing or fails says why."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.peers import process
from benchmarks.peers.process import Peer, PeerError

SCRIPT = """
import json, os, sys, threading, time
path, threads, cases = sys.argv[1:]
assert threads == "2"
ticks = open(path, "a", buffering=1)
threading.Thread(target=lambda: [(ticks.write(".\\n"), time.sleep(0.01)) for _ in range(3000)], daemon=True).start()
print("a line of the engine's own")
for line in sys.stdin:
    case, salt = json.loads(line)
    if case == "broken":
        sys.exit("out of memory")
    if case == "killed":
        os.kill(os.getpid(), 9)
    if case == "words":
        print("figure: many", flush=True)
        continue
    if case == "never":
        continue
    time.sleep(0.1)
    print("figure:", json.loads(cases)[case] + salt, flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run_made_up.py").write_text(SCRIPT)
    monkeypatch.setattr(process, "__file__", str(tmp_path / "process.py"))
    cases = {"a": 100, "b": 200}
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
    assert ticks.stat().st_size > before


@pytest.mark.parametrize(
    ("case", "reason"),
    [("broken", "out of memory"), ("killed", "it ended with -9"), ("words", "'many' is no figure")],
)
def test_a_peer_that_fails_says_why(peer: Peer, case: str, reason: str) -> None:
    assert peer.rate("a", 0) == 100
    with pytest.raises(PeerError, match=reason):
        peer.rate(case, 0)


def test_a_round_ends_when_its_peer_is_closed(peer: Peer) -> None:
    """As when the benchmark is ended: the round waits in a thread."""
    assert peer.rate("a", 0) == 100
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(peer.rate, "never", 0)
        time.sleep(0.2)
        peer.close()
        with pytest.raises((PeerError, ValueError)):
            waiting.result(timeout=10)


def test_a_python_that_is_not_there_is_an_end_of_the_peer(tmp_path: Path) -> None:
    peer = Peer("llama_cpp", tmp_path / "python", tmp_path, 2, {})
    with pytest.raises(PeerError, match="No such file"):
        peer.rate("1 stream", 0)
    peer.close()


def test_a_peer_that_is_not_installed_says_so(tmp_path: Path) -> None:
    peer = Peer("llama_cpp", Path(sys.executable), tmp_path, 2, {})
    with pytest.raises(PeerError, match="llama_cpp"):
        peer.rate("1 stream", 0)
    peer.close()
