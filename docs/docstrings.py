"""Docstrings as the reference shows them: examples as code blocks, ``matrix[i][j]`` as code and not as a link."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
_SUBSCRIPTS = re.compile(r"(?<![`\w])\w+(?:\[[^][`\n]+\]){2,}")


class Docstrings(Extension):
    """Griffe reads a docstring after this has rewritten it."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrites the docstring of one function, class or module."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """Examples fenced, chains of subscripts in backticks."""
    parts = []
    end = 0
    for example in _EXAMPLE.finditer(text):
        parts += [_SUBSCRIPTS.sub(r"`\g<0>`", text[end : example.start()]), f"```pycon\n{example[0]}\n```"]
        end = example.end()
    return "".join([*parts, _SUBSCRIPTS.sub(r"`\g<0>`", text[end:])])
