"""Requests that repeat their context more or less: what prompt lookup is measured on."""

PASSAGE = (
    "Paged attention keeps the keys and values of all running requests in blocks of one size, so no memory waits for tokens "
    "that may never come. In every step a scheduler decides who computes what; long prompts are taken in pieces, so that "
    "short ones need not wait for them. Prompts that begin alike share the blocks of their beginning, and whoever comes "
    "second skips that work. When memory runs short, the request that loses least gives its blocks back and is computed "
    "again later, from its prompt and from all that it has said so far."
)
CODE = """def area(width, height):
    return width * height


def perimeter(width, height):
    return 2 * (width + height)


def diagonal(width, height):
    return (width ** 2 + height ** 2) ** 0.5


def ratio(width, height):
    if height == 0:
        raise ValueError("the height is zero")
    return width / height
"""
REQUESTS = {
    "print again": f"Correct any spelling mistakes and print the text again:\n\n{PASSAGE}",
    "rewrite": f"Rewrite the following text, keep all facts and most of the wording:\n\n{PASSAGE}",
    "edit code": f"Add a docstring to every function:\n\n```python\n{CODE}```",
    "summarise": f"Summarize this text:\n\n{PASSAGE}",
    "story": "Tell me a short story about a lighthouse keeper.",
    "explain": "Explain to a child why the sky is blue.",
    "letter": "Write a polite letter to a landlord about a broken heater.",
}
PROSE = ("story", "explain", "letter")
