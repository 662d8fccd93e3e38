"""The functions that a generated file may call: C text in `parts/`, of which a file holds what it uses.

A part is a piece of text between empty lines. What it defines and what it needs is read from the text itself.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent / "parts"
# outermost first; a part stands after all that it may need
FILES = (
    "lanes.c",
    "scalar.c",
    "convolution.c",
    "product.c",
    "pooling.c",
    "reductions.c",
    "steps.c",
    "int8.c",
    "int8_convolution.c",
    "int8_steps.c",
)
_DEFINED = re.compile(
    r"^static [^(=;]*?(\w+)\(|^#define (\w+)|^\} (\w+);|^enum \{(.*)\};"
    r"|^typedef (?!struct)[^{]*?(\w+)(?: __attribute__.*)?;",
    re.MULTILINE,
)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


@dataclass(frozen=True)
class Part:
    """A piece of C, the names that it defines and all words in it but those of comments."""

    text: str
    names: frozenset[str]
    words: frozenset[str]


@lru_cache(maxsize=1)
def parts() -> tuple[Part, ...]:
    """All parts, in the order in which they may stand in a file."""
    found = []
    for file in FILES:
        for text in (FOLDER / file).read_text().strip().split("\n\n"):
            names = {word for match in _DEFINED.findall(text) for word in _WORD.findall(" ".join(match))}
            found.append(Part(text, frozenset(names), frozenset(_WORD.findall(_COMMENT.sub("", text)))))
    return tuple(found)


def needed(code: Iterable[str]) -> list[str]:
    """The parts that `code` uses, and those that they use.

    Example:
        >>> [text.partition("(")[0] for text in needed(["y[i] = sigmoid(x[i]);"])]  # doctest: +NORMALIZE_WHITESPACE
        ['static inline float from_bits', '/* e^x by 2^n times a polynomial on |r| <= ln 2 / 2; 0 where it would be
          subnormal. */\\nstatic inline float exponential', 'static inline float sigmoid']
    """
    words = {word for text in code for word in _WORD.findall(_COMMENT.sub("", text))}
    chosen = []
    for part in reversed(parts()):
        if part.names & words:
            chosen.append(part.text)
            words |= part.words
    return chosen[::-1]
