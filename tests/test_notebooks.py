"""Every notebook runs to its end and prints what it was saved with."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def printed(notebook):
    return [
        "".join(output.get("text", "") for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_prints_what_it_shows(path):
    notebook = nbformat.read(path, as_version=4)
    shown = printed(notebook)
    NotebookClient(notebook, timeout=300).execute()
    assert printed(notebook) == shown
