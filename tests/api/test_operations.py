"""What operators read."""

from pathlib import Path

import httpx2 as httpx

from api.settings import Settings
from app import create_app
from engine.stats import EngineStatus
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine


async def test_health_follows_the_engine(start: Start) -> None:
    engine = FakeEngine()
    running = await start(engine)
    async with running.http() as http:
        assert (await http.get("/health")).status_code == 200
        engine.status = EngineStatus("loading", "reading weights", 0.5)
        response = await http.get("/health")
        assert response.status_code == 503
        assert response.json() == {
            "status": "loading",
            "stage": "reading weights",
            "fraction": 0.5,
        }
        assert "retry-after" in response.headers
        engine.status = EngineStatus("loading", "compiling")
        assert (await http.get("/health")).json()["fraction"] is None
        assert (await http.get("/api/stats")).status_code == 503
        assert (await http.get("/metrics")).status_code == 200
        engine.status = EngineStatus("dead", "", error="out of memory")
        response = await http.get("/health")
        assert (response.status_code, response.json()["error"]) == (503, "out of memory")
        assert (await http.get("/ping")).text == "pong"


async def test_probes_need_no_body(start: Start) -> None:
    engine = FakeEngine()
    running = await start(engine)
    async with running.http() as http:
        for path in ("/health", "/ping"):
            response = await http.head(path)
            assert (response.status_code, response.content) == (200, b"")
        engine.status = EngineStatus("loading", "reading weights", 0.5)
        assert (await http.head("/health")).status_code == 503


UNKNOWN_ROUTES = [
    ("GET", "/v1/chat/completions", "POST"),
    ("DELETE", "/v1/models", "GET"),
    ("HEAD", "/v1/models", "GET"),
    ("OPTIONS", "/v1/models", "GET"),
    ("PROPFIND", "/v1/models", "GET"),
    ("DELETE", "/ping", "GET, HEAD, POST"),
    ("PUT", "/metrics", "GET"),
    ("GET", "/tokenize", "POST"),
    ("POST", "/ws/chat", "GET"),
    ("PUT", "/api/conversations/x", "DELETE, GET, PATCH"),
    ("GET", "/api/requests/1/stop", "POST"),
    *(("GET", path, None) for path in ("/v1", "/v1/nothing", "/v1/", "/api", "/openapi.json/x")),
    *(("GET", path, None) for path in ("/ping/", "/health/x", "/metrics/", "/version/1", "/ws")),
    ("POST", "/api/nothing", None),
    ("OPTIONS", "/api/nothing", None),
    *(("GET", path, None) for path in ("/nothing", "/v2/models", "/docs", "/gradio_api/nothing")),
    ("POST", "/nothing", None),
    ("POST", "/", "GET"),
]


async def test_an_unknown_route_is_an_error_object(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path), engine=FakeEngine())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for method, path, allow in UNKNOWN_ROUTES:
            response = await http.request(method, path)
            assert response.status_code == (405 if allow else 404), (method, path)
            assert response.headers.get("allow") == allow, (method, path)
            if method != "HEAD":
                assert response.json()["error"]["message"].startswith(f"{method} {path}:")


async def test_a_line_break_in_an_unknown_path_changes_nothing(running: Running) -> None:
    async with running.http() as http:
        for path in ("/v1/a%0ab", "/api/%0a", "/health/%0a%00"):
            response = await http.get(path)
            assert response.json()["error"]["code"] == "unknown_route", path


async def test_a_browser_at_an_unknown_address_is_led_home(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path), engine=FakeEngine())
    transport = httpx.ASGITransport(app)
    accepted = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        page = await http.get("/nothing", headers=accepted)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert '<a href="/">' in page.text
        for method, path in (("POST", "/nothing"), ("GET", "/v1/nothing"), ("GET", "/api/x")):
            response = await http.request(method, path, headers=accepted)
            assert response.json()["error"]["code"] == "unknown_route"


async def test_a_socket_is_named_to_who_comes_without_one(running: Running) -> None:
    async with running.http() as http:
        response = await http.get("/ws/chat")
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")
    assert "WebSocket" in response.json()["error"]["message"]


async def test_version_is_the_projects(running: Running) -> None:
    async with running.http() as http:
        assert (await http.get("/version")).json()["version"].count(".") == 2


async def test_draining_refuses_new_work(running: Running) -> None:
    running.context.draining = True
    async with running.http() as http:
        response = await http.post("/v1/completions", json={"prompt": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
        assert (await http.get("/health")).json()["status"] == "draining"
    running.context.draining = False
