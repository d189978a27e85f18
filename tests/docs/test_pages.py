"""Every page runs: its Python blocks in order, its commands, and both print what the page shows."""

import re
from pathlib import Path

import pytest
from documents import as_shown, blocks, promised, run

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUNS = [path for path in PAGES if any(block.runs for block in blocks(path))]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_page_prints_what_it_shows(path, as_before, tmp_path):
    for ran in run(path, tmp_path):
        if ran.shown is not None:
            assert as_shown(ran.printed, ran.shown.text), f"{ran.block.text}\nprints\n{ran.printed}"
            continue
        lines = iter(ran.printed.splitlines())
        missing = [text for text in ran.promised if not any(text in line for line in lines)]
        assert not missing, f"{ran.block.text}\nprints\n{ran.printed}"


def test_the_pages_run_code_and_commands():
    languages = [block.language for path in RUNS for block in blocks(path) if block.runs]
    assert len(RUNS) >= 12
    assert languages.count("python") >= 70
    assert languages.count("bash") >= 15


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_block_escapes_the_reader(path):
    """A fence that is indented, or of another language, would not be run."""
    opened = re.findall(r"^( *)(?:```|~~~)(\w+)", path.read_text(), re.MULTILINE)
    assert {language for _, language in opened} <= {"python", "bash", "text", "json"}
    assert not any(indent for indent, _ in opened)
    assert len(opened) == len(blocks(path))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_block_shows_nothing(path):
    assert all(block.text.strip() for block in blocks(path))


@pytest.mark.parametrize("path", [*PAGES, DOCS.parent / "README.md"], ids=lambda path: path.stem)
def test_text_is_plain(path):
    text = path.read_text()
    assert "—" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


class TestTheReader:
    def test_finds_what_a_page_prints_otherwise(self, tmp_path):
        page = tmp_path / "page.md"
        page.write_text("```python\nprint(6 * 7)  # 42: the answer\n```\n\n```text\n41\n```\n")
        (ran,) = run(page, tmp_path)
        assert ran.promised == ["42"]
        assert ran.printed == "42\n"
        assert not as_shown(ran.printed, ran.shown.text)

    def test_an_error_that_is_not_shown_is_one(self, tmp_path):
        page = tmp_path / "page.md"
        page.write_text("```python\n1 / 0\n```\n")
        with pytest.raises(ZeroDivisionError):
            list(run(page, tmp_path))

    def test_commands_errors_and_files(self, tmp_path):
        page = tmp_path / "page.md"
        page.write_text(
            '```json title="table.json"\n{}\n```\n\n```bash\nHCCL_BUFFSIZE=0 hccljax check table.json  # twice\n'
            "pip install it\n```\n\n```text\n…\n```\n"
        )
        (ran,) = run(page, tmp_path)
        assert (tmp_path / "table.json").read_text() == "{}\n"
        assert ran.printed.startswith("EI0001  HCCL_BUFFSIZE=0: ")
        assert "table.json" in ran.printed

    @pytest.mark.parametrize(
        ("printed", "shown", "same"),
        [
            ("a\nb\nc\n", "a\n…\nc\n", True),
            ("a\nc\n", "a\n…\nc\n", True),
            ("a\nb\nd\n", "a\n…\nc\n", False),
            ("a  \nb\n", "a\nb\n", True),
            ("a\n  … and 5 more\n", "a\n  … and 5 more\n", True),
            ("a\n  … and 5 more\n", "a\n  … and 6 more\n", False),
        ],
    )
    def test_a_line_of_dots_stands_for_lines(self, printed, shown, same):
        assert as_shown(printed, shown) is same

    def test_promises_are_what_stands_behind_print(self):
        assert promised("print(1)  # 1\nx = 2  # no promise\nprint(\n    x\n)  # 2: two\n") == ["1", "2"]
