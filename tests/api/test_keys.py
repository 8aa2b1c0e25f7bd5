"""Keys: who gets in, with which of several, and files of them."""

from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from api.key_sources import read_key_file, split_keys
from api.keys import COOKIE
from api.settings import load_settings
from engine.errors import ConfigError
from tests.api.conftest import Start

KEY = "s3cret-key"
GUARDED = [
    ("GET", "/"),
    ("GET", "/static/x.js"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/api/stats"),
    ("GET", "/api/conversations"),
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
]


async def test_without_the_key_nothing_but_health_answers(start: Start) -> None:
    running = await start(api_key=KEY)
    async with running.http() as http:
        for method, path in GUARDED:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
                response = await http.request(method, path, headers=headers)
                assert response.status_code == 401, path
        error = (await http.get("/v1/models")).json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ping")).status_code == 200
    with pytest.raises(InvalidStatus) as refusal:
        async with running.socket():
            pass
    assert refusal.value.response.status_code == 401


async def test_the_key_opens_as_header_query_and_cookie(start: Start) -> None:
    running = await start(api_key=KEY)
    async with running.http() as http:
        bearer = await http.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        assert bearer.status_code == 200
        assert (await http.get(f"/v1/models?api_key={KEY}")).status_code == 200
        page = await http.get(f"/?api_key={KEY}")
        assert (page.status_code, page.headers["location"]) == (303, "/")
        cookie = page.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert KEY not in cookie
        assert (await http.get("/v1/models")).status_code == 200
        value = http.cookies[COOKIE]
    async with running.ready_socket(f"?api_key={KEY}"):
        pass
    async with running.ready_socket(additional_headers={"Cookie": f"{COOKIE}={value}"}):
        pass
    async with running.ready_socket(additional_headers={"Authorization": f"Bearer {KEY}"}):
        pass


async def test_the_page_asks_for_the_key(start: Start) -> None:
    running = await start(api_key=KEY)
    async with running.http() as http:
        response = await http.get("/")
        assert response.status_code == 401
        assert 'name="api_key"' in response.text
        assert 'role="alert"' not in response.text


async def test_a_wrong_key_leaves_the_address_and_is_told(start: Start) -> None:
    running = await start(api_key=KEY)
    async with running.http() as http:
        for wrong in ("/?api_key=wrong", "/?api_key=", "/?api_key=%00"):
            response = await http.get(wrong)
            assert response.status_code == 303
            assert COOKIE not in http.cookies
            told = await http.get(response.headers["location"])
            assert (told.status_code, told.url.path) == (401, "/")
            assert "api_key" not in str(told.url)
            assert 'role="alert"' in told.text
        assert (await http.get("/v1/models?api_key=wrong")).status_code == 401
        await http.get(f"/?api_key={KEY}")
        known = await http.get("/?api_key=wrong")
        assert (known.status_code, known.headers["location"]) == (303, "/")


async def test_the_cookie_opens_nothing_to_another_origin(start: Start) -> None:
    running = await start(api_key=KEY)
    evil = {"Origin": "http://127.0.0.1:1"}
    own = {"Origin": running.url}
    async with running.http() as http:
        await http.get(f"/?api_key={KEY}")
        cookie = {"Cookie": f"{COOKIE}={http.cookies[COOKIE]}"}
    async with running.http() as http:
        for method, path in GUARDED:
            refused = await http.request(method, path, headers=evil | cookie)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin"), path
            passed = await http.request(method, path, headers=own | cookie)
            assert passed.status_code not in (401, 403), path
        bearer = evil | {"Authorization": f"Bearer {KEY}"}
        assert (await http.post("/tokenize", headers=bearer)).status_code == 400
        assert (await http.post("/tokenize", headers=evil)).status_code == 401


async def test_each_of_several_keys_opens_and_its_cookie_is_its_own(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\nthird\n\n  fourth  \n")
    running = await start(api_key="first,second", api_key_file=file)
    cookies = set()
    for key in ("first", "second", "third", "fourth"):
        async with running.http() as http:
            bearer = {"Authorization": f"Bearer {key}"}
            assert (await http.get("/v1/models", headers=bearer)).status_code == 200
            await http.get(f"/?api_key={key}")
            cookies.add(http.cookies[COOKIE])
            assert (await http.get("/v1/models")).status_code == 200
    assert len(cookies) == 4
    async with running.http() as http:
        for wrong in ("first,second", "# of the team", "sixth"):
            bearer = {"Authorization": f"Bearer {wrong}"}
            assert (await http.get("/v1/models", headers=bearer)).status_code == 401


@pytest.mark.parametrize("text", ["", "a,", ",a", "a,,b", "a b", "a,\u00e9"])
def test_what_is_no_list_of_keys_is_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--api-key: .* is not allowed; visible ASCII") as error:
        split_keys(text)
    assert not text or text not in str(error.value)


@pytest.mark.parametrize(
    ("content", "allowed"),
    [
        (b"# nothing\n\n", "a file with one key a line, at least one"),
        (b"good\ntwo words\n", "line 2 must be visible ASCII without spaces and commas"),
        (b"a,b\n", "line 1 must be visible ASCII without spaces and commas"),
        (b"\xff\n", "a text file that can be read"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes, allowed: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_key_file(file)
    assert str(error.value).startswith(f"--api-key-file: '{file}' is not allowed; {allowed}")
    assert "two words" not in str(error.value)


def test_a_missing_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--api-key-file: .*No such file"):
        load_settings(["--api-key-file", str(tmp_path / "none")])
