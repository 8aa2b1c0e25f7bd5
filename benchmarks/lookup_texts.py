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
EMAIL = (
    "Hi Tom, the report you sent on Monday has the wrong numbers for March. The sales in the north are missing and the total "
    "on page three does not add up. Please send me a new version before Thursday noon, because I have to show it to the board "
    "on Friday. Also ask Anna whether the figures for April are ready. Thanks, Maria"
)
RIVER = (
    "The river rises in the mountains of the south, where three small streams meet near the village of Alder. It flows north "
    "for two hundred kilometres, passes four towns and a dam that was built in 1934, and reaches the sea in a wide delta. In "
    "spring, when the snow melts, the river carries five times as much water as in autumn."
)
REQUESTS = {
    "print again": f"Correct any spelling mistakes and print the text again:\n\n{PASSAGE}",
    "rewrite": f"Rewrite the following text, keep all facts and most of the wording:\n\n{PASSAGE}",
    "rewrite email": f"Rewrite this email so that it is more polite, keep everything it says:\n\n{EMAIL}",
    "rewrite simply": f"Rewrite the text in simple words and keep all facts:\n\n{RIVER}",
    "edit code": f"Add a docstring to every function:\n\n```python\n{CODE}```",
    "summarise": f"Summarize this text:\n\n{PASSAGE}",
    "story": "Tell me a short story about a lighthouse keeper.",
    "explain": "Explain to a child why the sky is blue.",
    "letter": "Write a polite letter to a landlord about a broken heater.",
}
REWRITES = ("rewrite", "rewrite email", "rewrite simply")
PROSE = ("story", "explain", "letter")
