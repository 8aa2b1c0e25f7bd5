"""Whole numbers in addresses and options: plain digits. Python and pydantic take more for one (`1_0`, `+1`, ` 1`, `1.0`)."""

import re
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError

_PLAIN = re.compile("-?[0-9]+")


def plain_number(value: object) -> object:
    """`value`, when it is no text or one of digits, with a minus in front at most. Raises pydantic's `int_parsing`."""
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        raise PydanticKnownError("int_parsing")
    return value


WholeNumber = Annotated[int, BeforeValidator(plain_number)]
