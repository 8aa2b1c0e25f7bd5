"""A little over two hundred JSON schemas in the shapes that programs send: nested, recursive, unions, enums, patterns, bounds, odd keys."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

KEYS = (
    "name",
    "имя",
    "名前",
    "naïve key",
    'quo"te',
    "back\\slash",
    "emoji 😀",
    "a.b/c~d",
    "Ω",
    "_",
)
PATTERNS = (
    "^[a-z]{2,8}$", "^[A-Z]{3}-[0-9]{4}$", r"^\d{3}-\d{4}$", "^(red|green|blue)$", "^[^\"]{1,6}$",
    "^#[0-9a-f]{6}$", "^v[0-9]+\\.[0-9]+$", "^[А-Я][а-я]{1,5}$", "^(a|b)*c$", "ab",
)  # fmt: skip
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "duration")
ENUMS: tuple[list[Any], ...] = (
    ["red", "green", "blue"], [1, 2, 3], [True, None, "x"], ["é", "日本", "😀"], [0.5, -1, 1000000],
    ['"', "\\", "\n"], [[1, 2], {"a": 1}], ["", " "], ["yes", "yesterday", "y"], [None],
)  # fmt: skip
WORD: Schema = {"type": "string", "maxLength": 12}


def closed(properties: Schema, *optional: str) -> Schema:
    """An object of exactly these properties, of which some may be missing."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def schemas() -> list[Schema]:
    """All of them, always the same."""
    kinds = (
        strings, numbers, enums, odd_keys, objects, arrays, unions, recursion, nested, references, records,
    )  # fmt: skip
    return [schema for kind in kinds for schema in kind()]


def strings() -> Iterator[Schema]:
    for pattern in PATTERNS:
        yield {"type": "string", "pattern": pattern}
        yield closed(
            {
                "code": {"type": "string", "pattern": pattern},
                "n": {"type": "integer", "maximum": 9, "minimum": 0},
            }
        )
    for format_name in FORMATS:
        yield {"type": "string", "format": format_name}
    for low, high in ((0, 0), (1, 1), (0, 5), (3, 8), (10, 12)):
        yield {"type": "string", "minLength": low, "maxLength": high}


def numbers() -> Iterator[Schema]:
    for low, high in ((0, 9), (-5, 5), (18, 120), (1000, 2030), (-1, 0), (7, 7), (99, 101)):
        yield {"type": "integer", "minimum": low, "maximum": high}
        yield {"type": "number", "minimum": low, "maximum": high}
        yield closed(
            {"value": {"type": "number", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}}
        )
    for multiple in (2, 5, 10):
        yield {"type": "integer", "multipleOf": multiple, "minimum": 0, "maximum": 1000}


def enums() -> Iterator[Schema]:
    for values in ENUMS:
        yield {"enum": values}
        yield closed({"choice": {"enum": values}, "again": {"enum": values}}, "again")
        yield {"const": values[0]}


def odd_keys() -> Iterator[Schema]:
    for i, key in enumerate(KEYS):
        yield closed({key: {"type": "boolean"}})
        yield closed(
            {key: WORD, f"{key}{i}": {"type": "integer", "minimum": 0, "maximum": i + 1}}, key
        )


def objects() -> Iterator[Schema]:
    for count in (1, 2, 4, 6):
        yield closed({f"flag{i}": {"type": "boolean"} for i in range(count)})
        yield closed(
            {f"flag{i}": {"type": "boolean"} for i in range(count)},
            *(f"flag{i}" for i in range(count)),
        )
        yield closed({f"note{i}": {**WORD, "description": "a word"} for i in range(count)})
        yield {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99},
            "maxProperties": count,
        }
    yield {
        "type": "object",
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 3,
    }
    yield {"type": "object", "properties": {}, "additionalProperties": False}


def arrays() -> Iterator[Schema]:
    items: tuple[Schema, ...] = (
        {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 20}, WORD, {"enum": ["a", "b"]},
        closed({"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"type": "boolean"}}),
    )  # fmt: skip
    for item in items:
        for low, high in ((0, 2), (1, 3), (4, 4)):
            yield {"type": "array", "items": item, "minItems": low, "maxItems": high}
    yield {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, WORD],
        "items": False,
        "minItems": 2,
    }
    yield {
        "type": "array",
        "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
        "maxItems": 3,
    }


def unions() -> Iterator[Schema]:
    kinds: tuple[Schema, ...] = (
        {"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 99}, WORD,
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    )  # fmt: skip
    for i, one in enumerate(kinds):
        for other in kinds[i + 1 :]:
            yield {"anyOf": [one, other]}
            yield closed({"value": {"anyOf": [other, one]}, "done": {"type": "boolean"}})
    yield {"type": ["string", "null"], "maxLength": 8}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 17}]}
    for extra in ("radius", "side"):
        yield {
            "oneOf": [
                closed(
                    {
                        "kind": {"const": "circle"},
                        extra: {"type": "integer", "minimum": 1, "maximum": 9},
                    }
                ),
                closed({"kind": {"const": "point"}}),
            ]
        }


def recursion() -> Iterator[Schema]:
    node = closed(
        {
            "value": {"type": "boolean"},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        }
    )
    yield {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    tree = closed(
        {
            "leaf": {"type": "boolean"},
            "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        },
        "children",
    )
    yield tree
    yield {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": 9},
            {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        ]
    }
    expression = {
        "anyOf": [
            closed({"number": {"type": "integer", "minimum": 0, "maximum": 99}}),
            closed(
                {
                    "sum": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/e"},
                        "minItems": 2,
                        "maxItems": 2,
                    }
                }
            ),
        ]
    }
    yield {"$defs": {"e": expression}, "$ref": "#/$defs/e"}
    for depth in range(4):
        person = closed(
            {"name": WORD, "friend": {"$ref": "#/$defs/person"}, f"x{depth}": {"type": "null"}},
            "friend",
        )
        yield {"$defs": {"person": person}, "$ref": "#/$defs/person"}


def nested() -> Iterator[Schema]:
    for depth in range(1, 9):
        inner: Schema = {"type": "boolean"}
        outer: Schema = {"type": "integer", "minimum": 0, "maximum": 5}
        for level in range(depth):
            inner = closed({f"level{level}": inner})
            outer = {"type": "array", "items": outer, "minItems": 1, "maxItems": 1}
        yield inner
        yield outer


def references() -> Iterator[Schema]:
    colour: Schema = {"enum": ["red", "green"]}
    for count in (1, 2, 3):
        names = {f"c{i}": {"$ref": "#/$defs/Colour"} for i in range(count)}
        yield {**closed(names), "$defs": {"Colour": colour}}
        yield {
            **closed(names),
            "definitions": {"Unused": {"type": "null"}},
            "$defs": {"Colour": colour},
        }


def records() -> Iterator[Schema]:
    """What a pydantic model gives: titles, defaults, descriptions, optional fields."""
    for i, kind in enumerate(
        ("Invoice", "Person", "Event", "Ticket", "Recipe", "Route", "Order", "Review")
    ):
        item = closed(
            {
                "label": {**WORD, "title": "Label"},
                "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
            }
        )
        yield {
            "$defs": {"Item": item},
            "title": kind,
            "description": f"one {kind}",
            **closed(
                {
                    "id": {"title": "Id", "type": "integer", "minimum": 0, "maximum": 10**i},
                    "note": {"anyOf": [WORD, {"type": "null"}], "default": None},
                    "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "maxItems": 1},
                },
                "note",
            ),
        }
