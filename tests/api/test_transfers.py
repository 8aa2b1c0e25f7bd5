"""Files of conversations over HTTP: names, what is refused, and that a refusal changes nothing."""

import json

import pytest

from tests.api.conftest import Running
from tests.api.test_conversations import error_of, make
from tests.chat.exports import chatgpt, open_webui


async def test_one_file_with_everything_and_back(running: Running) -> None:
    await make(running, "about bread")
    await make(running, "about rivers")
    async with running.http() as http:
        exported = await http.get("/api/conversations/export")
        assert exported.headers["content-type"] == "application/json"
        assert exported.headers["content-disposition"].startswith('attachment; filename="pageturn-')
        assert len(exported.json()["conversations"]) == 2
        here = [item["id"] for item in (await http.get("/api/conversations")).json()["items"]]
        known = await http.post("/api/conversations/import", content=exported.content)
        twins = [{"position": i, "conversation_id": id_} for i, id_ in enumerate(here)]
        assert known.json() == {
            "conversation_ids": [],
            "already_here": twins,
            "settings_left_out": [],
            "num_empty": 0,
        }
        path = "/api/conversations/import?again=true"
        imported = await http.post(path, content=exported.content)
        assert imported.status_code == 201
        assert len(imported.json()["conversation_ids"]) == 2
        assert imported.json()["already_here"] == []
        assert len((await http.get("/api/conversations")).json()["items"]) == 4
        archive = await http.get("/api/conversations/export?format=markdown")
        assert archive.headers["content-type"] == "application/zip"
        assert archive.content.startswith(b"PK")


async def test_files_are_named_by_the_title(running: Running) -> None:
    conversation = await make(running)
    path = f"/api/conversations/{conversation}"
    async with running.http() as http:
        for title, plain, quoted in (
            ("A / B", "chat-a-b.md", "chat-a-b.md"),
            ("猫", "chat.md", "chat-%E7%8C%AB.md"),
            ('x"; filename="y.exe', "chat-x-filename-y-exe.md", "chat-x-filename-y-exe.md"),
        ):
            await http.patch(path, json={"title": title})
            header = (await http.get(f"{path}/export?format=markdown")).headers
            expected = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quoted}"
            assert header["content-disposition"] == expected


async def test_foreign_files_are_taken_in_and_faults_are_placed(running: Running) -> None:
    async with running.http() as http:
        body = json.dumps([chatgpt(), open_webui()])
        response = await http.post("/api/conversations/import", content=body)
        assert len(response.json()["conversation_ids"]) == 2
        broken = chatgpt() | {"current_node": "gone"}
        body = json.dumps([chatgpt(), broken])
        refused = await http.post("/api/conversations/import", content=body)
        assert error_of(refused) == (400, "invalid_value", "[1].current_node")
        for content in (b"", b" \n", b"\xef\xbb\xbf"):
            refused = await http.post("/api/conversations/import", content=content)
            assert error_of(refused) == (400, "invalid_json", None), content
            assert refused.json()["error"]["message"] == "the file is empty"
        for content in (b"[" * 100_000, b"\xff", b"PK\x03\x04", b'"x'):
            refused = await http.post("/api/conversations/import", content=content)
            assert error_of(refused)[:2] == (400, "invalid_json"), content[:9]
        assert len((await http.get("/api/conversations")).json()["items"]) == 2


async def test_pages_and_hits(running: Running) -> None:
    for number in range(3):
        await make(running, f"bread number {number}")
    async with running.http() as http:
        first = (await http.get("/api/conversations?limit=2")).json()
        rest = (await http.get(f"/api/conversations?limit=2&after={first['next']}")).json()
        assert [len(first["items"]), len(rest["items"]), rest["next"]] == [2, 1, None]
        found = (await http.get("/api/conversations?query=bread%202&limit=2")).json()
        (item,) = found["items"]
        assert item["message_id"] is not None
        assert item["snippet"] == ["", "bread", " number ", "2", ""]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("after=x", "after"),
        ("query=bread&after=1.2", "after"),
        ("limit=0", "limit"),
        ("limit=501&query=bread", "limit"),
        ("limit=many", "limit"),
        (f"query={'x' * 501}", "query"),
        (f"after={'1' * 201}", "after"),
    ],
)
async def test_a_page_that_cannot_be_is_refused(running: Running, query: str, param: str) -> None:
    async with running.http() as http:
        response = await http.get(f"/api/conversations?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_copy_and_a_deleted_branch(running: Running) -> None:
    conversation = await make(running, "about bread")
    async with running.http() as http:
        copy = await http.post(f"/api/conversations/{conversation}/duplicate")
        assert (copy.status_code, copy.json()["title"]) == (201, "Copy of about bread")
        again = await http.post(f"/api/conversations/{copy.json()['id']}/duplicate")
        assert again.json()["title"] == "Copy 2 of about bread"
        tree = (await http.get(f"/api/conversations/{conversation}")).json()["messages"]
        user, answer = (message["id"] for message in tree)
        deleted = (await http.delete(f"/api/messages/{answer}")).json()
        assert deleted == {
            "conversation_id": conversation,
            "message_id": answer,
            "num_messages": 1,
            "head_id": user,
        }
        assert error_of(await http.delete(f"/api/messages/{answer}"))[:2] == (404, "not_found")
        restored = (await http.post(f"/api/messages/{answer}/restore")).json()
        assert restored == deleted
        assert error_of(await http.post(f"/api/messages/{answer}/restore"))[:2] == (
            404,
            "not_found",
        )


async def test_an_outline_and_what_a_branch_costs(running: Running) -> None:
    conversation = await make(running, "about\n\nbread " + "x" * 300)
    async with running.http() as http:
        outline = (await http.get(f"/api/conversations/{conversation}/outline")).json()
        user, answer = outline["nodes"]
        assert outline["conversation_id"] == conversation
        assert outline["head_id"] == answer["id"]
        assert user["beginning"] == "about bread " + "x" * 147
        assert (answer["parent_id"], answer["role"], answer["status"]) == (
            user["id"],
            "assistant",
            "done",
        )
        cost = (await http.get(f"/api/messages/{user['id']}/residency")).json()
        assert cost["leaf_id"] == answer["id"]
        assert cost["instant"] is True
        assert 0 < cost["cached_tokens"] < cost["prompt_tokens"]
        missing = await http.get("/api/messages/nothing/residency")
        assert error_of(missing) == (404, "not_found", "message_id")
        assert (await http.get("/api/conversations/nothing/outline")).status_code == 404
