"""The system prompt that a model's own chat template adds when a conversation has none."""

from chat.ports import Engine

_MARK = "a system prompt that nobody would write 7f3a"
_USER = {"role": "user", "content": "hello"}


async def default_system_prompt(engine: Engine) -> str | None:
    """None when the template adds nothing, or what it adds does not stand where a given one would.

    Found by rendering a chat with a system prompt and without: what stands in its place is the default.
    """
    marked = await engine.render_chat([{"role": "system", "content": _MARK}, _USER])
    before, found, after = (await engine.decode(marked)).partition(_MARK)
    plain = await engine.decode(await engine.render_chat([_USER]))
    fits = len(plain) >= len(before) + len(after)
    if not (found and fits and plain.startswith(before) and plain.endswith(after)):
        return None
    return plain[len(before) : len(plain) - len(after)].strip() or None
