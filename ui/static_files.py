"""The page's own scripts and styles, in the order in which they load, and how they are served."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC = Path(__file__).parent / "static"
PREFIX = "static/pageturn"
SCRIPTS = (
    "core.js",
    "toasts.js",
    "socket.js",
    "popups.js",
    "explain.js",
    "menu.js",
    "dialog.js",
    "drawer.js",
    "model.js",
    "settings.js",
    "live.js",
    "places.js",
    "found.js",
    "facts.js",
    "several.js",
    "residency.js",
    "messages.js",
    "compare.js",
    "card.js",
    "sharing.js",
    "candidates.js",
    "from_here.js",
    "presets.js",
    "conversation_settings.js",
    "context_meter.js",
    "shortcuts.js",
    "composer.js",
    "banner.js",
    "unread.js",
    "search.js",
    "transfers.js",
    "conversations.js",
    "unanswered.js",
    "transcript.js",
    "sending.js",
    "outline.js",
    "tree.js",
    "chat.js",
    "jump.js",
    "owners.js",
    "blockmap.js",
    "tiles.js",
    "engine_facts.js",
    "requests.js",
    "timeline.js",
    "charts.js",
    "history.js",
    "dashboard.js",
    "start.js",
)
STYLES = ("page.css", "chat.css", "popups.css", "tree.css", "dashboard.css")


@dataclass(frozen=True)
class Bundle:
    """Several files as one, so that the page waits for one script and one style sheet."""

    name: str
    media_type: str
    content: bytes

    @property
    def address(self) -> str:
        """Relative to the page; a changed bundle has a new address."""
        digest = hashlib.blake2b(self.content, digest_size=6).hexdigest()
        return f"{PREFIX}/{self.name}?v={digest}"

    def route(self) -> Route:
        """Serves it, to be kept for good: what changes has another address."""
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}

        async def serve(request: Request) -> Response:
            return Response(self.content, media_type=self.media_type, headers=headers)

        return Route(f"/{PREFIX}/{self.name}", serve)


def script_bundle() -> Bundle:
    """All scripts, in their order."""
    return Bundle("all.js", "text/javascript", _joined(SCRIPTS))


def style_bundle() -> Bundle:
    """All styles, in their order."""
    return Bundle("all.css", "text/css", _joined(STYLES))


def _joined(names: Sequence[str]) -> bytes:
    return b"\n".join((STATIC / name).read_bytes() for name in names)
