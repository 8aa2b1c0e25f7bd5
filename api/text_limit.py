"""How long a text may be that is handed to the tokenizer, whose threads all requests share."""

from api.context import ApiContext
from engine.errors import RequestError

MIN_TEXT_LIMIT = 2**18
CHARACTERS_PER_TOKEN = 8


def check_length(context: ApiContext, num_characters: int, param: str) -> None:
    """Raises RequestError for what is longer than any prompt could be."""
    limit = max(MIN_TEXT_LIMIT, CHARACTERS_PER_TOKEN * context.engine.info.max_model_len)
    if num_characters > limit:
        message = f"{param} has {num_characters} characters; at most {limit} are read"
        raise RequestError(message, param=param)
