"""Whether a branch's keys and values are still in the KV pool: going on in it is instant, or costs a prefill."""

from chat.events import Residency
from chat.ports import Engine
from chat.prompts import check_num_characters, count_characters
from chat.turns import prompt_messages
from engine.chat_template import TemplateOptions
from storage.conversations import ConversationStore

_AS_HISTORY = TemplateOptions(add_generation_prompt=False)
_INSTANT_BLOCKS = 2


async def find_residency(engine: Engine, store: ConversationStore, message_id: str) -> Residency:
    """The path to what `select` of the message would show, as a next turn's prompt begins.

    Raises MissingRowError, and RequestError for one that is far too long to be a prompt.
    """
    system_prompt, path = await store.branch(message_id)
    messages = prompt_messages(system_prompt, path, None)
    # A message takes a token at least, whatever it says.
    least_per_message = engine.most_characters // engine.info.max_model_len
    num_characters = count_characters(messages) + least_per_message * len(messages)
    check_num_characters(engine, num_characters, "message_id")
    prompt = await engine.render_chat(messages, _AS_HISTORY)
    cached = await engine.count_resident(prompt)
    instant = len(prompt) - cached < _INSTANT_BLOCKS * engine.stats.blocks.block_size
    return Residency(message_id, path[-1].id, len(prompt), cached, instant)
