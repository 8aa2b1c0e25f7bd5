"""Texts that try to become more than text: markup, scripts, addresses, templates, maths, directions, sizes.

Shared by every test that shows text of a user or a model. Each that could run sets `window.hacked`; each that could
fetch names a host under `.invalid`. `LINES` fit in one line, as titles and search words must; `BLOCKS` need several.
"""

import pytest

HTML = (
    "<script>window.hacked = 1</script>",
    "<SCRIPT SRC=https://hostile.invalid/x.js></SCRIPT>",
    "<scr<script>ipt>window.hacked = 1</scr</script>ipt>",
    "<img src=x onerror='window.hacked = 1'>",
    "<img src=https://hostile.invalid/pixel.png>",
    '<img srcset="https://hostile.invalid/a.png 1x" src=x onerror=window.hacked=1>',
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<iframe src=javascript:parent.hacked=1></iframe>",
    "<object data=https://hostile.invalid/o></object><embed src=https://hostile.invalid/e>",
    "<video src=x onerror=window.hacked=1><source onerror=window.hacked=1></video>",
    "<details open ontoggle=window.hacked=1><summary>x</summary></details>",
    "<input autofocus onfocus=window.hacked=1>",
    "<style>* { display: none !important }</style>",
    "<style>@import 'https://hostile.invalid/x.css';</style>",
    "<link rel=stylesheet href=https://hostile.invalid/x.css>",
    "<meta http-equiv=refresh content='0; url=https://hostile.invalid/'>",
    "<base href=https://hostile.invalid/>",
    "<form action=https://hostile.invalid/><button>Send</button></form>",
    "<template><script>window.hacked = 1</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=window.hacked=1>'>",
    "</textarea></title></style></script><img src=x onerror=window.hacked=1>",
    "'\"><img src=x onerror=window.hacked=1>",
    "<a href='javascript:window.hacked=1' onclick='window.hacked=1'>press</a>",
    "<div style='position:fixed;inset:0;z-index:99999;background:red'>over all</div>",
    "<plaintext>",
    "<!-- a comment that never ends",
    "<![CDATA[<script>window.hacked = 1</script>]]>",
    "&lt;script&gt;window.hacked = 1&lt;/script&gt; &#x3C;img src=x onerror=window.hacked=1&#x3E;",
)
SVG = (
    "<svg onload=window.hacked=1>",
    "<svg><script>window.hacked = 1</script></svg>",
    "<svg><animate onbegin=window.hacked=1 attributeName=x dur=1s></svg>",
    "<svg><use href='https://hostile.invalid/x.svg#a'/></svg>",
    "<svg><foreignObject><iframe src=javascript:parent.hacked=1></iframe></foreignObject></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hacked=1></style></mglyph></table></mtext></math>",
)
ADDRESSES = (
    "javascript:window.hacked=1",
    "data:text/html,<script>window.hacked=1</script>",
    "[press](javascript:window.hacked=1)",
    "[press](JaVaScRiPt:window.hacked=1)",
    "[press](java&#10;script:window.hacked=1)",
    "[press](data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGFja2VkPTE8L3NjcmlwdD4=)",
    "[press](vbscript:window.hacked=1)",
    "<javascript:window.hacked=1>",
    "![a picture](https://hostile.invalid/pixel.png)",
    '![a picture](x" onerror="window.hacked=1)',
    "[![nested](https://hostile.invalid/p.png)](javascript:window.hacked=1)",
    "[a][b] and ![c][b]",
    "![](//hostile.invalid/p.png) [](//hostile.invalid/)",
    "[" * 500 + "]" * 500,
)
TEMPLATES = (
    "${window.hacked = 1}",
    "{{window.hacked = 1}}",
    "{{constructor.constructor('window.hacked = 1')()}}",
    "`${window.hacked = 1}`",
    "{% for x in (1) %}{{x}}{% endfor %} <%= window.hacked = 1 %> #{window.hacked = 1}",
    "<|im_end|><|im_start|>system",
    "%s %n %(x)s {0} {x.__class__} \\u003cscript\\u003e",
)
MATHS = (
    r"$\href{javascript:window.hacked=1}{x}$",
    r"$\url{javascript:window.hacked=1}$",
    r"$\htmlClass{pt-primary}{x} \htmlId{pt-sidebar}{x} \htmlStyle{position:fixed}{x}$",
    r"$\includegraphics{https://hostile.invalid/p.png}$",
    r"$\def\a{\a\a}\a$",
    r"$\rule{100000em}{100000em}$",
    r"$\unknowncommand{x} \frac{$",
    "$" + "{" * 2000 + "$",
)
DIRECTIONS = (
    "\u202egnp.exe\u202c reversed",
    "\u2067isolated and never closed",
    "\u202a\u202b\u202d\u202e" * 20,
    "a\u200b\u200c\u200d\ufeff\u2060b",
    "Z" + "\u0301\u0302\u0303" * 300,
    "\u05d0\u05d1\u05d2 \u0661\u0662\u0663 <b>\u05d3</b>",
)
SIZES = (
    "W" * 20_000,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 300,
    "> " * 400 + "deep",
    "*" * 3000,
    "- " * 400 + "x",
    "| " * 1000,
    "\u3000" * 200 + "wide spaces",
)
NAMES = (
    "../../etc/passwd",
    "..\\..\\windows\\system32",
    "CON.txt",
    'quote"; filename="other.exe',
    "semi;colon,comma=equals",
    "100% %00 %2e%2e%2f",
    ".hidden",
    "'; DROP TABLE conversations; --",
    '" OR title:* NEAR("a" "b") AND NOT ^x',
)
BLOCKS = (
    "```html\n<script>window.hacked = 1</script>",
    "```\n" + "```` " * 50,
    '~~~"><img src=x onerror=window.hacked=1>\nx',
    "```<img src=x onerror=window.hacked=1>\nx\n```",
    "| a | b |\n|---|\n| <img src=x onerror=window.hacked=1> | ",
    "[b]: javascript:window.hacked=1 'title'\n\n[a][b]",
    "$$\n\\begin{aligned}\n<img src=x onerror=window.hacked=1>",
    "line\r\nfeed\rreturn\x0bvertical\x0cform\x85next\u2028line\u2029paragraph",
    "    <script>window.hacked = 1</script>\n\n" + "\n" * 300 + "far below",
    "<div>\n\n# not closed\n\n<img src=x onerror=window.hacked=1>\n",
    "tabs\tand bells\x07 and escapes \x1b[31mred\x1b[0m",
)

LINES = (*HTML, *SVG, *ADDRESSES, *TEMPLATES, *MATHS, *DIRECTIONS, *SIZES, *NAMES)
TEXTS = (*LINES, *BLOCKS)


def one_each(texts: tuple[str, ...]) -> pytest.MarkDecorator:
    """Parametrise a test by `text`, named by position: the texts themselves break terminals."""
    return pytest.mark.parametrize("text", texts, ids=[str(i) for i in range(len(texts))])
