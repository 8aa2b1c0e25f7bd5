"""The page: a Gradio shell (theme, tabs, sidebar, settings) around islands that our own scripts draw.

The islands (ui/islands/*.html) are static markup; ui/static/*.js fills them over one WebSocket. Nothing of a user ever
passes through Gradio: its templates are executable, and its events cost a request each. Truth lives on the server and
preferences in the browser, so there is no `gr.State`.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.routing import Mount

from ui.gradio_import import gr, themes
from ui.page_policy import PagePolicy
from ui.static_files import PREFIX, STATIC, Bundle, script_bundle, style_bundle

_HERE = Path(__file__).parent
MAX_THREADS = 8
QUEUE_INTERVAL_S = 0.05
"""Between two looks of Gradio into its queue and its progress bars. Its own 1 and 10 ms wake the event loop all the time,
and none of our events is ever in there."""
_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
# A promise of the page's scripts: the shell mounts islands and runs events before or after they have come.
_READY = (
    "(window.pageturnReady ??= (() => { let go; const ready = new Promise((done) => (go = done)); "
    "return Object.assign(ready, { go }); })())"
)
_CLOSE_ON_PHONE = "() => ({ open: window.innerWidth > 768, __type__: 'update' })"


def build_ui() -> gr.Blocks:
    """The page's components. Theme, scripts and styles are given when it is mounted."""
    with gr.Blocks(title="Pageturn", analytics_enabled=False, fill_width=True) as page:
        with gr.Sidebar(open=True, width=288, elem_id="pt-sidebar") as sidebar:
            _island("sidebar", "conversations.mount")
        with gr.Tabs(elem_classes="pt-tabs"):
            with gr.Tab("Chat", elem_classes="pt-tab"):
                _island("chat", "chat.mount")
            with gr.Tab("Dashboard", elem_classes="pt-tab"):
                _island("dashboard", "dashboard.mount")
            with gr.Tab("Settings", elem_classes="pt-tab"):
                _settings(page)
        page.load(None, None, sidebar, js=_CLOSE_ON_PHONE, show_progress="hidden")
    return page


def mount(
    app: FastAPI, answer_unknown: Callable[[Request, Exception], Awaitable[Response]]
) -> FastAPI:
    """Serve the page at `/` and its files at `/static/pageturn`; routes added to `app` before this come first.

    `answer_unknown` answers what nobody takes: 404, and 405 for other methods of what is there.
    """
    script, style = script_bundle(), style_bundle()
    app.router.routes += [script.route(), style.route()]
    app.add_middleware(PagePolicy)
    app.mount(f"/{PREFIX}", StaticFiles(directory=STATIC), name="pageturn-static")
    page = build_ui()
    page.max_threads = MAX_THREADS
    page.queue(default_concurrency_limit=None, api_open=False)
    page._queue.sleep_when_free = QUEUE_INTERVAL_S
    page._queue.progress_update_sleep_when_free = QUEUE_INTERVAL_S
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        head=_head(script, style),
        theme=_theme(),
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        pwa=False,
        enable_monitoring=False,
        show_error=False,
        favicon_path=str(STATIC / "favicon.svg"),
    )
    mounted = app.router.routes[-1]
    assert isinstance(mounted, Mount), "the page was mounted"
    assert isinstance(mounted.app, FastAPI), "Gradio is one"
    for status in (404, 405):
        mounted.app.add_exception_handler(status, answer_unknown)
    return app


def _island(name: str, script: str) -> gr.HTML:
    markup = (_HERE / "islands" / f"{name}.html").read_text()
    return gr.HTML(
        html_template=markup,
        js_on_load=f"{_READY}.then((page) => page.{script}(element, trigger))",
        apply_default_css=False,
        elem_classes="pt-island",
    )


def _settings(page: gr.Blocks) -> None:
    """Defaults of this browser, kept in its localStorage; a conversation's own settings have a dialog in the chat."""
    with gr.Column(elem_classes="pt-settings"):
        gr.Markdown("## Model")
        _island("model", "model.mount")
        gr.Markdown("## New answers")
        gr.Markdown("Kept in this browser, for every conversation that says nothing else.")
        presets = _island("presets", "presets.mount")
        controls = [*_sampling_controls(), *_text_controls()]
        reset = gr.Button("Back to the defaults", size="sm", elem_classes="pt-reset")
        gr.Markdown("## Appearance")
        theme = gr.Radio(["System", "Light", "Dark"], value="System", label="Theme")
    for control in controls:
        control.change(None, controls, None, js="(...values) => Pageturn.settings.save(...values)")
    presets.select(None, None, controls, js="() => Pageturn.settings.values()")
    presets.input(None, controls, None, js="(...values) => Pageturn.presets.keep(...values)")
    theme.change(None, [theme], None, js="(value) => Pageturn.settings.setTheme(value)")
    reset.click(None, None, controls, js="() => Pageturn.settings.reset()")
    page.load(None, None, [*controls, theme], js=f"async () => (await {_READY}).settings.load()")


def _sampling_controls() -> list[gr.Slider]:
    """In the order of `DEFAULTS` in ui/static/settings.js."""
    return [
        gr.Slider(
            0, 2, 0.8, step=0.05, label="Temperature", info="0 always takes the likeliest word"
        ),
        gr.Slider(0, 1, 1, step=0.05, label="Top p", info="draw from the likeliest words only"),
        gr.Slider(0, 200, 0, step=1, label="Top k", info="so many words at most; 0 is off"),
        gr.Slider(0, 1, 0, step=0.01, label="Min p", info="no word below this share of the best"),
        gr.Slider(0.5, 2, 1, step=0.05, label="Repetition penalty", info="1 is off"),
        gr.Slider(
            16, 4096, 1024, step=16, label="Longest answer", info="in tokens, as far as it fits"
        ),
        gr.Slider(1, 8, 1, step=1, label="Answers", info="to each message, side by side"),
    ]


def _text_controls() -> list[gr.Textbox]:
    """They follow the sliders in `DEFAULTS`."""
    return [
        gr.Textbox(lines=2, label="Stop strings", info="one a line; an answer ends before them"),
        gr.Textbox(
            lines=3,
            label="System prompt of new chats",
            info="empty: what the model's template says",
        ),
    ]


def _head(script: Bundle, style: Bundle) -> str:
    return (
        f'<link rel="stylesheet" href="{style.address}">\n<script src="{script.address}"></script>'
    )


def _theme() -> themes.Base:
    """System fonts (nothing is fetched) and an indigo that passes contrast on white and under white text."""
    return themes.Base(
        primary_hue=themes.colors.indigo,
        neutral_hue=themes.colors.slate,
        font=_FONTS,
        font_mono=_MONO,
        radius_size=themes.sizes.radius_lg,
    ).set(
        body_background_fill="#ffffff",
        body_background_fill_dark="#0f1117",
        background_fill_primary_dark="#171a22",
        background_fill_secondary_dark="#13161d",
        block_background_fill_dark="#171a22",
        border_color_primary="#e3e6ec",
        border_color_primary_dark="#2b303c",
        body_text_color="#1a1f2b",
        body_text_color_dark="#e6e8ee",
        body_text_color_subdued="#5a6373",
        body_text_color_subdued_dark="#a0a8b8",
        block_info_text_color="#5a6373",
        block_info_text_color_dark="#a0a8b8",
        button_primary_background_fill="#4f46e5",
        button_primary_background_fill_hover="#4338ca",
        button_primary_text_color="#ffffff",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_dark="#171a22",
        button_secondary_background_fill_hover="#eef0f5",
        button_secondary_background_fill_hover_dark="#1f232d",
        button_secondary_border_color="#8a93a5",
        button_secondary_border_color_dark="#6b7486",
        button_border_width="1px",
        checkbox_label_background_fill="#f6f7fa",
        checkbox_label_background_fill_dark="#1f232d",
        checkbox_label_background_fill_hover="#eef0f5",
        checkbox_label_background_fill_hover_dark="#2b303c",
        input_background_fill_dark="#1f232d",
        slider_color="#4f46e5",
        slider_color_dark="#818cf8",
        color_accent="#4f46e5",
        link_text_color="#4338ca",
        link_text_color_dark="#a5b4fc",
    )
