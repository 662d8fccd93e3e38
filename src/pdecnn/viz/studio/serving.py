"""How the page is served: to this machine alone unless asked otherwise, with nothing from or to the network."""

import ipaddress
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdecnn.shared.extras import require
from pdecnn.viz.studio.pictures import MAX_BYTES

STYLE = Path(__file__).with_name("studio.css")
ONLY_SELF = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; object-src 'none'"
)
COLOURS = {  # of Gradio's theme: white on the first can be read, and so can the last two on white
    "button_primary_background_fill": "*primary_700",
    "button_primary_background_fill_hover": "*primary_800",
    "button_primary_background_fill_dark": "*primary_700",
    "button_primary_background_fill_hover_dark": "*primary_800",
    "slider_color": "*primary_700",
    "slider_color_dark": "*primary_500",
    "checkbox_background_color_selected": "*primary_700",
    "body_text_color_subdued": "*neutral_500",
    "block_info_text_color": "*neutral_500",
}
RESULTS = (Path("results"), Path("benchmarks/results"))


@dataclass(frozen=True)
class Options:
    """What the command was given.

    Attributes:
        host: Address to listen on.
        port: Port; a free one from 7860 on if None.
        share: Whether to make a public link, which needs the network.
        browser: Whether to open the page in the browser.
        results: Folders that Compare reads.
        data: A folder of images that Condense offers, or a dataset by name.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    share: bool = False
    browser: bool = True
    results: tuple[Path, ...] = ()
    data: str = ""

    @property
    def local(self) -> bool:
        """Whether only people at this machine can reach the page."""
        if self.share:
            return False
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def default_results() -> tuple[Path, ...]:
    """The folders of a checkout, as far as they are here."""
    return tuple(folder for folder in RESULTS if folder.is_dir())


class OnlySelf:
    """Tells browsers to load nothing that is not from this page: an ASGI middleware."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Adds the header to every answer."""

        async def with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", ONLY_SELF.encode())]
            await send(message)

        await self.app(scope, receive, with_header if scope["type"] == "http" else send)


def load_gradio() -> Any:
    """Gradio, told before it is imported that it must not send anything anywhere."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    return require("gradio", "studio")


def serve(options: Options, *, say: Callable[[str], object] | None = None) -> Any:
    """Serves the page in threads of its own and returns it; `say` is called with where it is."""
    gradio = load_gradio()
    from starlette.middleware import Middleware

    from pdecnn.viz.studio.page import make_page

    page = make_page(options)
    fonts = ("Segoe UI", "Helvetica Neue", "DejaVu Sans", "sans-serif")
    theme = gradio.themes.Base(primary_hue="cyan", neutral_hue="slate", font=fonts, font_mono=("monospace",))
    theme.set(**COLOURS)
    page.queue(default_concurrency_limit=4, max_size=64)
    page.launch(
        server_name=options.host,
        server_port=options.port,
        share=options.share,
        inbrowser=options.browser,
        prevent_thread_lock=True,
        quiet=True,
        max_file_size=MAX_BYTES,
        theme=theme,
        css_paths=STYLE,
        app_kwargs={"middleware": [Middleware(OnlySelf)]},
        footer_links=[],
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        show_error=False,
    )
    if say is not None:
        say(f"The studio is at {page.share_url or page.local_url}; Ctrl-C ends it.")
    return page
