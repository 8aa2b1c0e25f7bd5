"""The page that asks for the API key: one document without scripts or files, in the app's colours, light and dark."""

from urllib.parse import quote

_LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="40" height="40" aria-hidden="true">'
    '<rect width="32" height="32" rx="8" fill="#4f46e5"/>'
    '<path d="M8 9.5c3-1.4 5.6-1.2 8 .6 2.4-1.8 5-2 8-.6v13c-3-1.4-5.6-1.2-8 .6-2.4-1.8-5-2-8-.6z" fill="#fff"/>'
    '<path d="M16 10.5v12.2" stroke="#4f46e5" stroke-width="1.6"/></svg>'
)
_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7fa; --surface: #fff; --border: #e1e4eb; --line: #8a93a5; --text: #1a1f2b; --soft: #5a6373;
  --accent: #4f46e5; --over: #4338ca; --danger: #b42318; --danger-tint: #fef1f0 }
@media (prefers-color-scheme: dark) { :root { --ground: #0f1117; --surface: #171a22; --border: #2b303c; --line: #6b7486; --text: #e6e8ee;
  --soft: #a0a8b8; --accent: #6d66f0; --over: #5b54e0; --danger: #ff9b92; --danger-tint: #351a1a } }
* { box-sizing: border-box }
body { margin: 0; padding: 16px; min-height: 100vh; display: grid; place-items: center; background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif }
main { width: 100%; max-width: 400px; padding: 28px; border: 1px solid var(--border); border-radius: 16px; background: var(--surface) }
header { display: flex; align-items: center; gap: 12px; margin-bottom: 20px }
h1 { margin: 0; font-size: 22px }
label { font-weight: 600 }
input { width: 100%; min-height: 44px; margin-top: 6px; padding: 0 12px; border: 1px solid var(--line); border-radius: 10px; background: var(--surface); color: inherit; font: inherit }
input[aria-invalid] { border-color: var(--danger) }
p { margin: 8px 0 20px; color: var(--soft); font-size: 14px }
code { white-space: nowrap }
p[role=alert] { padding: 8px 12px; border-radius: 10px; background: var(--danger-tint); color: var(--danger); font-size: 15px }
button { width: 100%; min-height: 44px; border: 0; border-radius: 10px; background: var(--accent); color: #fff; font: inherit; font-weight: 600; cursor: pointer }
button:hover { background: var(--over) }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
"""


def key_page(is_wrong: bool) -> str:
    """The HTML, after a wrong key with a word about it. The form shows the key at `/?api_key=KEY`."""
    refusal, mark = "", ""
    if is_wrong:
        refusal = '<p role="alert" id="wrong">That is not a key of this server.</p>'
        mark = ' aria-invalid="true"'
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pageturn</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:image/svg+xml,{quote(_LOGO)}"><style>{_STYLE}</style></head>
<body><main><header>{_LOGO}<h1>Pageturn</h1></header>{refusal}
<form action="/"><label for="key">API key</label>
<input id="key" type="password" name="api_key" required autofocus autocomplete="current-password" aria-describedby="{"wrong " if is_wrong else ""}whence"{mark}>
<p id="whence">The key that the server was started with: <code>--api-key</code> or <code>--api-key-file</code>.</p>
<button>Open</button></form></main></body></html>"""
