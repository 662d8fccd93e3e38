"""What the tabs share: errors as sentences, and progress."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import gradio as gr

from pdecnn.shared.progress import ProgressCallback

EXPECTED = (OSError, ValueError, RuntimeError, ImportError, TypeError, MemoryError)
LONGEST = 600


def sentence(error: BaseException) -> str:
    """What went wrong, without the stack."""
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler with its errors as sentences that stay until they are closed."""

    @wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except gr.Error:
            raise
        except EXPECTED as error:
            raise gr.Error(sentence(error), duration=None, title="That did not work", print_exception=False) from None
        except Exception as error:
            logging.getLogger(__name__).exception("a handler of the studio failed")
            text = f"This is a defect, please report it: {type(error).__name__}: {sentence(error)}"
            raise gr.Error(text, duration=None, title="Defect", print_exception=False) from None

    return safe


def html(elem_id: str, value: str = "") -> gr.HTML:
    """A place for HTML with the studio's style and none of Gradio's."""
    return gr.HTML(value, elem_id=elem_id, elem_classes="studio", apply_default_css=False)


def shown(progress: Any) -> ProgressCallback:
    """Gradio's progress as ours."""
    return lambda text, done, total: progress((done, total), desc=text)
