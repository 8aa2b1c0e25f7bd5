"""/v1/models, /v1/chat/completions, /v1/completions, /v1/embeddings, /tokenize, /detokenize: as OpenAI and vLLM serve them."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json

from api.chat_prompt import render_prompt
from api.context import ApiContext
from api.embeddings import EmbeddingJob, EmbeddingResponse
from api.forced_calls import force_calls
from api.generation import GenerationResponse, Job, Prompt
from api.json_answer import JsonAnswer
from api.model_context import Context, check_model, read_for_model
from api.openai_documents import ChatShape, CompletionShape, Head, Shape
from api.openai_schema import (
    MAX_INPUTS,
    MAX_PROMPTS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    GenerationBody,
    TokenizeBody,
    read_prompts,
)
from api.surface import Engine
from api.text_limit import check_length
from api.tool_shape import ToolChatShape
from api.tools import read_tool_use
from chat.json_parts import Written
from engine.errors import RequestError
from engine.sampling_params import SamplingParams

MAX_ECHOED_LOGPROBS = 2**18

router = APIRouter()
_started = int(time.time())


@router.get("/v1/models")
async def list_models(context: Context) -> dict[str, Any]:
    return {"object": "list", "data": [_model_document(context.engine)]}


@router.get("/v1/models/{name:path}")
async def show_model(context: Context, name: str) -> dict[str, Any]:
    check_model(context, name)
    return _model_document(context.engine)


@router.post("/v1/chat/completions")
async def complete_chat(context: Context, request: Request) -> GenerationResponse:
    """Answer a conversation."""
    body = await read_for_model(context, request, ChatBody)
    params = body.sampling()
    use = read_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    if use is not None and use.must_call:
        params = await force_calls(context, params, use)
    await context.engine.prepare(params)
    shape = ChatShape() if use is None else ToolChatShape(use)
    token_ids = await render_prompt(context, body, use)
    return _respond(context, body, params, [Prompt(token_ids, "messages")], shape)


@router.post("/v1/completions")
async def complete(context: Context, request: Request) -> GenerationResponse:
    """Continue one prompt or several."""
    body = await read_for_model(context, request, CompletionBody)
    params = body.sampling()
    await context.engine.prepare(params)
    longest = context.engine.info.max_model_len
    named = read_prompts(body.prompt, "prompt", MAX_PROMPTS, longest)
    prompts = [await _read_prompt(context, item, name, bool(body.echo)) for name, item in named]
    if body.echo:
        params = replace(params, prompt_logprobs=params.logprobs)
        _check_echo(prompts, params)
    return _respond(context, body, params, prompts, CompletionShape())


@router.post("/v1/embeddings")
async def embed(context: Context, request: Request) -> EmbeddingResponse:
    """The vectors of one text or several: the mean of their tokens' final states, at length 1."""
    body = await read_for_model(context, request, EmbeddingBody)
    body.check_fields()
    info = context.engine.info
    dimensions = info.hidden_size if body.dimensions is None else body.dimensions
    if not 1 <= dimensions <= info.hidden_size:
        message = f"dimensions: {dimensions} is not allowed; 1 to {info.hidden_size}"
        raise RequestError(message, param="dimensions")
    named = read_prompts(body.input, "input", MAX_INPUTS, info.max_model_len)
    prompts = [await _read_prompt(context, item, name, False) for name, item in named]
    as_base64 = body.encoding_format == "base64"
    return EmbeddingResponse(context, EmbeddingJob(prompts, info.model_name, dimensions, as_base64))


@router.post("/tokenize")
async def tokenize(context: Context, request: Request) -> JsonAnswer:
    """Token ids of a plain prompt (control tokens are parsed) or of messages (they stay text)."""
    body = await read_for_model(context, request, TokenizeBody)
    body.check_fields()
    if (body.prompt is None) is (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        tokens = await render_prompt(context, body, read_tool_use(body.tools, None, None))
    else:
        tokens = await _encode(context, body.prompt or "", "prompt")
    max_model_len = context.engine.info.max_model_len
    written = Written([to_json(tokens)])
    return JsonAnswer({"count": len(tokens), "max_model_len": max_model_len, "tokens": written})


@router.post("/detokenize")
async def detokenize(context: Context, request: Request) -> JsonAnswer:
    """Text of token ids, special tokens shown."""
    body = await read_for_model(context, request, DetokenizeBody)
    body.check_fields()
    await asyncio.to_thread(_check_ids, body.tokens, context.engine.info.vocab_size)
    return JsonAnswer({"prompt": await context.engine.decode(body.tokens)})


def _check_ids(token_ids: list[int], vocab_size: int) -> None:
    """Raises RequestError naming the first that is no token."""
    for place, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            message = f"{token_id} is no token; ids are 0 to {vocab_size - 1}"
            raise RequestError(f"tokens[{place}]: {message}", param=f"tokens[{place}]")


async def _read_prompt(context: ApiContext, raw: str | list[int], param: str, echo: bool) -> Prompt:
    if isinstance(raw, str):
        return Prompt(await _encode(context, raw, param), param, raw if echo else "")
    return Prompt(raw, param, await context.engine.decode(raw) if echo else "")


async def _encode(context: ApiContext, text: str, param: str) -> list[int]:
    check_length(context, len(text), param)
    return await context.engine.encode(text)


def _check_echo(prompts: list[Prompt], params: SamplingParams) -> None:
    """Every choice repeats what is thought of its prompt's tokens: raises RequestError for more than is sent at once."""
    if params.prompt_logprobs is None:
        return
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    num_values = num_tokens * params.n * (1 + params.prompt_logprobs)
    if num_values > MAX_ECHOED_LOGPROBS:
        message = (
            f"logprobs: {num_tokens} tokens of prompts, {params.n} choices each and {params.prompt_logprobs} + 1 values a "
            f"token are {num_values} values; with echo, {MAX_ECHOED_LOGPROBS} are the most. Send fewer prompts at once"
        )
        raise RequestError(message, param="logprobs")


def _respond(
    context: ApiContext,
    body: GenerationBody,
    params: SamplingParams,
    prompts: list[Prompt],
    shape: Shape,
) -> GenerationResponse:
    job = Job(
        prompts=prompts,
        params=params,
        head=Head(shape.prefix, context.engine.info.model_name),
        shape=shape,
        stream=bool(body.stream),
        usage_chunks=body.usage_chunks(),
    )
    return GenerationResponse(context, job)


def _model_document(engine: Engine) -> dict[str, Any]:
    info = engine.info
    return {
        "id": info.model_name,
        "object": "model",
        "created": _started,
        "owned_by": "pageturn",
        "root": info.model_name,
        "parent": None,
        "max_model_len": info.max_model_len,
        "tools": "template" if engine.knows_tools else "prompt",
    }
