"""What operators read."""

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
        assert (await http.get("/api/stats")).status_code == 503
        assert (await http.get("/metrics")).status_code == 200
        engine.status = EngineStatus("dead", "", 0.0, "out of memory")
        response = await http.get("/health")
        assert (response.status_code, response.json()["error"]) == (503, "out of memory")
        assert (await http.get("/ping")).text == "pong"


async def test_stats_are_one_document_that_adds_up(running: Running) -> None:
    async with running.http() as http:
        document = (await http.get("/api/stats")).json()
    blocks = document["blocks"]
    assert blocks.keys() == {"total", "private", "shared", "cached", "free", "block_size"}
    parts = ("private", "shared", "cached", "free")
    assert sum(blocks[part] for part in parts) == blocks["total"]
    assert document["tokens"].keys() == {"capacity", "stored"}
    assert {"running", "waiting"} <= document["requests"].keys()
    assert document["counters"].keys() >= {
        "preemptions",
        "forks",
        "cow_copies",
        "prefix_queries",
        "prefix_hits",
        "generated_tokens",
        "prompt_tokens",
    }
    assert document["counterfactual_bytes"].keys() == {"paged", "max_len", "pow2", "exact"}
    assert document["model"]["model_name"] == "fake"


async def test_blocks_and_requests(start: Start) -> None:
    running = await start(FakeEngine(token_interval=30.0, num_blocks=6))
    async with running.ready_socket() as client, running.http() as http:
        await client.send("send", content="hello")
        await client.skip_to("delta")
        blocks = (await http.get("/api/blocks")).json()["blocks"]
        requests = (await http.get("/api/requests")).json()["requests"]
    assert [block["state"] for block in blocks] == ["private"] * 4 + ["free"] * 2
    assert blocks[0].keys() == {"block_id", "state", "ref_count", "owners"}
    assert [request["state"] for request in requests] == ["running"]


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
