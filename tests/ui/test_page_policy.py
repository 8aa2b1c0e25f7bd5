"""The page's Content-Security-Policy: its own inline scripts run, any other does not."""

import base64
import hashlib

from starlette.types import Message, Receive, Scope, Send

from ui.page_policy import PagePolicy, policy_of


async def policies(*messages: Message) -> tuple[dict[str, str], bytes]:
    """The headers and the body with which an answer made of `messages` arrives."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    await PagePolicy(app)({"type": "http"}, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return headers, b"".join(message.get("body", b"") for message in sent)


def start(kind: str) -> Message:
    headers = [(b"content-type", kind.encode()), (b"content-security-policy", b"none")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(text: str, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


def digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_every_inline_script_is_named_by_its_digest_and_no_other() -> None:
    first, second = 'a = "b";\n', "c"
    page = f'<script>{first}</script><script src="d.js"></script><script async>{second}</script>'
    policy = policy_of(page.encode())
    hashes = f"'sha256-{digest(first)}' 'sha256-{digest(second)}'"
    assert f"script-src 'self' 'unsafe-eval' {hashes};" in policy
    assert "'unsafe-inline'" not in policy.replace("style-src 'self' 'unsafe-inline'", "")


async def test_a_page_in_pieces_gets_the_policy_of_the_whole() -> None:
    headers, text = await policies(
        start("text/html; charset=utf-8"), body("<script>on", more=True), body("e</script>")
    )
    assert headers["content-security-policy"] == policy_of(b"<script>one</script>")
    assert text == b"<script>one</script>"


async def test_what_is_no_page_passes_as_it_is() -> None:
    headers, text = await policies(start("application/json"), body("{", more=True), body("}"))
    assert headers["content-security-policy"] == "none"
    assert text == b"{}"
