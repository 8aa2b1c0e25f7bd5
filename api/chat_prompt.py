"""From a chat's body to the token ids of its prompt."""

import json
from dataclasses import replace
from typing import Any

from api.chat_messages import read_messages
from api.context import ApiContext
from api.openai_schema import ChatBody, TokenizeBody
from api.text_limit import check_length
from api.tools import ToolUse, as_text
from engine.chat_template import TemplateOptions, strings_of
from engine.errors import RequestError


async def render_prompt(
    context: ApiContext, body: ChatBody | TokenizeBody, use: ToolUse | None
) -> list[int]:
    """The prompt of `body.messages`, with the tools of `use` in it. Raises RequestError by field."""
    messages = read_messages(body.messages or [])
    check_length(context, sum(map(len, strings_of(messages))), "messages")
    variables = body.chat_template_kwargs or {}
    check_length(context, len(json.dumps(variables)), "chat_template_kwargs")
    is_continued = _is_continued(body, messages)
    options = TemplateOptions(
        add_generation_prompt=body.add_generation_prompt is not False and not is_continued,
        continue_final_message=is_continued,
        variables=variables,
    )
    return await render_messages(context, messages, use, options)


async def render_messages(
    context: ApiContext,
    messages: list[dict[str, Any]],
    use: ToolUse | None,
    options: TemplateOptions,
) -> list[int]:
    """The prompt of checked messages with the tools of `use`, in the template's way or in words."""
    tools = () if use is None else tuple(use.documents())
    check_length(context, len(json.dumps(tools)), "tools")
    if not context.engine.knows_tools:
        messages, tools = as_text(messages, use), ()
    return await context.engine.render_chat(messages, replace(options, tools=tools))


def _is_continued(body: ChatBody | TokenizeBody, messages: list[dict[str, Any]]) -> bool:
    """Whether the model goes on with the last message. Raises RequestError where it cannot."""
    if not body.continue_final_message:
        return False
    name = "continue_final_message"
    if body.add_generation_prompt:
        raise RequestError(f"{name}: not beside add_generation_prompt", param=name)
    if messages and (messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls")):
        text = f"{name}: the last message must be an assistant's, without calls"
        raise RequestError(text, param=name)
    return True
