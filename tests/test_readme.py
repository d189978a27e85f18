"""The README's Python examples run in order, and print what their comments say."""

import contextlib
import io
import pathlib
import re

import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README.read_text(), flags=re.S)


@pytest.fixture
def clean_registry(monkeypatch):
    base = __import__("hccljax.algorithm.base", fromlist=["_REGISTRY"])
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def expected_in(code):
    """What the comments behind print calls promise: the text up to a colon."""
    comments = [line.partition("#")[2] for line in code.splitlines() if line.startswith("print(") and "#" in line]
    return [comment.split(": ")[0].strip() for comment in comments]


def test_examples_print_what_they_promise(clean_registry):
    scope, printed, promised = {}, io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        for language, code in BLOCKS:
            if language == "python":
                exec(compile(code, str(README), "exec"), scope)
                promised += expected_in(code)
    assert len(promised) >= 8
    lines = iter(printed.getvalue().splitlines())
    missing = [text for text in promised if not any(text in line for line in lines)]  # each after the one before
    assert not missing, printed.getvalue()


def test_the_explanation_shown_is_the_one_printed(clean_registry):
    code = next(code for language, code in BLOCKS if language == "python" and "hccljax.explain(" in code)
    shown = next(code for language, code in BLOCKS if language == "text" and code.startswith("all_reduce"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("import hccljax\n" + code, str(README), "exec"), {})
    assert printed.getvalue() == shown


def test_the_schedule_shown_is_the_one_printed():
    code = next(code for language, code in BLOCKS if language == "python" and "hccljax.trace(" in code)
    shown = next(code for language, code in BLOCKS if language == "text" and code.startswith("Schedule"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("import jax\nimport hccljax\n" + code, "train.py", "exec"), {})
    assert printed.getvalue().startswith(shown)


def test_the_proofs_shown_are_the_ones_printed(clean_registry):
    python = [code for language, code in BLOCKS if language == "python"]
    proofs = next(code for code in python if "hccljax.verify(" in code)
    own = next(code for code in python if "def by_neighbours" in code).partition("print(")[0]
    shown = next(code for language, code in BLOCKS if language == "text" and "proved exactly" in code)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("import hccljax\n" + own + proofs, str(README), "exec"), {})
    assert printed.getvalue() == shown
