"""/api/conversations over HTTP."""

import re

import httpx2 as httpx
import pytest

from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine


async def make(running: Running, content: str = "hello there") -> str:
    """The id of a new conversation with one finished turn."""
    async with running.ready_socket() as client:
        await client.send("send", content=content)
        started = await client.expect("started")
        await client.until("finished")
    return started["conversation_id"]


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def test_list_query_and_tree(running: Running) -> None:
    first, second = await make(running, "about bread"), await make(running, "about rivers")
    async with running.http() as http:
        items = (await http.get("/api/conversations")).json()["items"]
        assert [item["id"] for item in items] == [second, first]
        found = (await http.get("/api/conversations?query=bread")).json()["items"]
        assert [item["id"] for item in found] == [first]
        for nothing in ("%00", "%20%00%20", "%20"):
            found = (await http.get(f"/api/conversations?query={nothing}")).json()["items"]
            assert found == items
        tree = (await http.get(f"/api/conversations/{first}")).json()
    assert tree["conversation"]["id"] == first
    assert [m["role"] for m in tree["messages"]] == ["user", "assistant"]
    assert tree["messages"][1]["status"] == "done"


async def test_patch_changes_and_refuses(running: Running) -> None:
    path = f"/api/conversations/{await make(running)}"
    async with running.http() as http:
        changes = {"title": "New", "pinned": True, "system_prompt": "Be brief."}
        response = await http.patch(path, json=changes | {"sampling": {"temperature": 0.1}})
        assert response.status_code == 200
        assert (response.json()["title"], response.json()["pinned"]) == ("New", True)
        detail = (await http.get(path)).json()["conversation"]
        assert detail["system_prompt"] == "Be brief."
        assert detail["sampling"] == {"temperature": 0.1}
        assert detail["when_full"] == "stop"
        assert (await http.patch(path, json={"when_full": "drop_oldest"})).status_code == 200
        assert (await http.get(path)).json()["conversation"]["when_full"] == "drop_oldest"
        bad = await http.patch(path, json={"when_full": "explode"})
        assert error_of(bad) == (400, "invalid_value", "when_full")
        bad = await http.patch(path, json={"colour": "red"})
        assert error_of(bad) == (400, "unknown_field", "colour")
        bad = await http.patch(path, json={"sampling": {"temperature": 9}})
        assert error_of(bad) == (400, "invalid_value", "sampling.temperature")
        assert (await http.patch(path, json=[])).status_code == 400
        assert (await http.patch(path, content="{")).status_code == 400


async def test_delete_restore_and_purge(running: Running) -> None:
    conversation = await make(running)
    path = f"/api/conversations/{conversation}"
    async with running.http() as http:
        assert (await http.delete(path)).status_code == 204
        assert (await http.get("/api/conversations")).json()["items"] == []
        assert (await http.get(path)).status_code == 404
        assert (await http.post(f"{path}/restore")).json()["id"] == conversation
        assert len((await http.get("/api/conversations")).json()["items"]) == 1
        assert (await http.delete(f"{path}?purge=true")).status_code == 204
        assert error_of(await http.post(f"{path}/restore"))[:2] == (404, "not_found")
        bad = await http.delete(f"{path}?purge=maybe")
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "purge")


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_an_unknown_conversation_is_404(running: Running, method: str) -> None:
    async with running.http() as http:
        response = await http.request(method, "/api/conversations/nothing", json={})
    assert error_of(response)[:2] == (404, "not_found")


async def test_export_and_import_keep_the_conversation(running: Running) -> None:
    conversation = await make(running, "hello\nthere")
    path = f"/api/conversations/{conversation}/export"
    async with running.http() as http:
        exported = await http.get(path)
        assert "attachment" in exported.headers["content-disposition"]
        again = "/api/conversations/import?again=true"
        imported = await http.post(again, json=exported.json())
        assert imported.status_code == 201
        (copy,) = imported.json()["conversation_ids"]
        assert copy != conversation
        trees = [
            (await http.get(f"/api/conversations/{i}")).json()["messages"]
            for i in (conversation, copy)
        ]
        contents = [[(m["role"], m["content"]) for m in tree] for tree in trees]
        assert contents[0] == contents[1]
        markdown = await http.get(f"{path}?format=markdown")
        assert markdown.headers["content-type"].startswith("text/markdown")
        assert "hello\nthere" in markdown.text
        bad = await http.get(f"{path}?format=pdf")
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "format")
        for body in ("{", "[]", "{}", '{"messages": 5}'):
            response = await http.post("/api/conversations/import", content=body)
            assert response.status_code == 400, body


async def test_a_number_that_no_export_could_show_is_not_imported(running: Running) -> None:
    conversation = await make(running)
    async with running.http() as http:
        exported = await http.get(f"/api/conversations/{conversation}/export")
        infinite, found = re.subn(r'("queue_ms":\s*)[\d.]+', r"\g<1>1e999", exported.text)
        assert found
        response = await http.post("/api/conversations/import", content=infinite)
    assert error_of(response)[:2] == (400, "invalid_json")


async def test_history_can_be_read_while_the_model_loads(start: Start) -> None:
    from engine.stats import EngineStatus

    engine = FakeEngine()
    running = await start(engine)
    conversation = await make(running)
    engine.status = EngineStatus("loading", "", 0.0)
    async with running.http() as http:
        assert (await http.get(f"/api/conversations/{conversation}")).status_code == 200
