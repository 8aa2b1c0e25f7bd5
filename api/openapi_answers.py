"""The JSON documents that routes answer with, as types: what /openapi.json says of them.

Nothing is read or written with these types: the documents are made where they are sent, and the tests hold both together.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


# --- errors and operations -----------------------------------------------------------------------


class ErrorDetail(Document):
    """`param` is the path of the field at fault, as `messages[0].content`."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Document):
    """What every refusal and failure is told with."""

    error: ErrorDetail


class Health(Document):
    """How far the server is; `fraction` is of the stage, null where it cannot tell; `error` says why it is dead."""

    status: Literal["loading", "ready", "dead", "draining"]
    stage: str
    fraction: float | None
    error: str = ""


class Version(Document):
    """The version of Pageturn."""

    version: str


# --- OpenAI's documents --------------------------------------------------------------------------


class Model(Document):
    """The one model; `tools` says how it is shown functions."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    tools: Literal["template", "prompt"]


class Models(Document):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class CachedTokens(Document):
    """How many tokens the prefix cache had."""

    cached_tokens: int


class Usage(Document):
    """The prompt counts once; sampled tokens are summed, EOS included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


FinishReason = Literal["stop", "length", "abort", "tool_calls"]


class TopLogprob(Document):
    """A token with its natural log-probability in the raw distribution, and its true bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, and the best ones of its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Document):
    """One entry a token."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Document):
    """`arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(Document):
    """A call of a function that was offered."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Document):
    """An answer. With calls, `content` may be null."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []


class ChatChoice(Document):
    """One candidate."""

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None
    message: ChatMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(Document):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class LegacyLogprobs(Document):
    """Of each token; null for the first token of a prompt, which nothing comes before."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Document):
    """One candidate of one prompt: `index` = prompt * n + candidate."""

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None
    text: str
    logprobs: LegacyLogprobs | None


class Completion(Document):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Embedding(Document):
    """A vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Document):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Document):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Tokens(Document):
    """Token ids of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(Document):
    """Text of token ids."""

    prompt: str


class OutputText(Document):
    """A part of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(Document):
    """What the model said."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(Document):
    """A call of a function that was offered; `arguments` is JSON."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed"]
    call_id: str
    name: str
    arguments: str


class InputTokens(Document):
    """How many tokens the prefix cache had."""

    cached_tokens: int


class OutputTokens(Document):
    """No model here reasons apart from its answer."""

    reasoning_tokens: int


class ResponseUsage(Document):
    """Tokens of prompt and answer."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Incomplete(Document):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class Response(Document):
    """The answer of /v1/responses. What the request said stands in it again."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete", "cancelled"]
    output: list[OutputMessage | OutputCall]
    usage: ResponseUsage
    error: None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, None]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
