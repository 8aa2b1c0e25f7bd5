"""The page's own scripts and styles, in the order in which they load, and their addresses."""

import hashlib
from pathlib import Path

STATIC = Path(__file__).parent / "static"
PREFIX = "static/pageturn"
SCRIPTS = (
    "core.js",
    "socket.js",
    "menu.js",
    "dialog.js",
    "settings.js",
    "live.js",
    "places.js",
    "facts.js",
    "several.js",
    "residency.js",
    "messages.js",
    "compare.js",
    "card.js",
    "candidates.js",
    "from_here.js",
    "conversation_settings.js",
    "context_meter.js",
    "shortcuts.js",
    "composer.js",
    "banner.js",
    "unread.js",
    "search.js",
    "transfers.js",
    "conversations.js",
    "transcript.js",
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


def address_of(name: str) -> str:
    """Relative to the page; a changed file has a new address."""
    digest = hashlib.blake2b((STATIC / name).read_bytes(), digest_size=6).hexdigest()
    return f"{PREFIX}/{name}?v={digest}"
