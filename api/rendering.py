"""Rendered text for sockets of the page's variant: one rendering per generation, shared by all windows that show it.

Rendering itself is handed in by app.py; this file decides when and how often it runs.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol
from weakref import WeakValueDictionary

HISTORY_ENTRIES = 1_000


class StreamRenderer(Protocol):
    """Sanitised HTML of growing Markdown; `ui.render.StreamRenderer` is the one of the page."""

    def update(self, text: str) -> tuple[str, str]:
        """For the whole text so far: blocks that are finished since the last call, and the unfinished tail."""
        ...

    def render(self, text: str) -> str:
        """The whole of a finished text."""
        ...


class CandidateText:
    """One candidate's text so far: `frozen` only grows, `tail` is the unfinished rest; both lag behind `text`."""

    def __init__(self, renderer: StreamRenderer) -> None:
        self.renderer = renderer
        self.text = self.frozen = self.tail = ""
        self.rendered_text = ""

    def refresh(self) -> None:
        """Bring `frozen` and `tail` up to `text`."""
        if self.rendered_text != self.text:
            new, self.tail = self.renderer.update(self.text)
            self.frozen += new
            self.rendered_text = self.text


class GenerationText:
    """The texts of a generation's candidates. Every window offers it the same events; each counts once.

    `seq` is the last event contained; before the first there may be a snapshot of number -1.
    """

    def __init__(self, new_renderer: Callable[[], StreamRenderer]) -> None:
        self.new_renderer = new_renderer
        self.candidates: dict[int, CandidateText] = {}
        self.seq = -2

    def candidate(self, index: int) -> CandidateText:
        """The candidate's text, empty before its first event."""
        return self.candidates.setdefault(index, CandidateText(self.new_renderer()))

    def add(self, seq: int, index: int, text: str) -> None:
        """Append a delta."""
        if seq > self.seq:
            self.candidate(index).text += text
            self.seq = seq

    def skip_to(self, seq: int, texts: Sequence[str]) -> None:
        """Take over the texts of a snapshot."""
        if seq > self.seq:
            for index, text in enumerate(texts):
                self.candidate(index).text = text
            self.seq = seq


class Rendering:
    """Live generations by id, and a bounded memory of finished texts."""

    def __init__(self, new_renderer: Callable[[], StreamRenderer]) -> None:
        self._new_renderer = new_renderer
        self._generations: WeakValueDictionary[str, GenerationText] = WeakValueDictionary()
        self.render: Callable[[str], str] = lru_cache(HISTORY_ENTRIES)(new_renderer().render)
        """A finished text as HTML; not for the event loop, which a long text would hold."""

    def generation(self, generation_id: str) -> GenerationText:
        """The generation's shared text; it lives as long as a window holds it."""
        found = self._generations.get(generation_id)
        if found is None:
            found = self._generations[generation_id] = GenerationText(self._new_renderer)
        return found
