"""What pages list is complete: public names, algorithms, variables."""

import os
import re
import subprocess
import sys
from pathlib import Path

import hccljax
from hccljax.algorithm import algorithms as registered
from hccljax.selection.variables import ACTING, CONNECT_TIMEOUT, VARIABLES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_has_every_public_name_once():
    pages = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(r"^::: hccljax\.(\w+)$", pages, re.MULTILINE)) == sorted(hccljax.__all__)


def test_every_algorithm_has_a_section_with_formulas_and_a_picture():
    sections = re.split(r"^## ", (DOCS / "algorithms.md").read_text(), flags=re.MULTILINE)
    found = {section.split("\n")[0]: section for section in sections}
    for name in registered():
        assert "| operator | steps" in found[name], name
        assert name == "native" or f"(figures/{name}.svg)" in found[name], name


def test_every_variable_is_listed_as_what_it_is():
    table = (DOCS / "hccl.md").read_text().split("<!-- variables -->")[1].split("<!-- end of variables -->")[0]
    rows = dict(re.findall(r"^\| (HCCL_\w+) \|.*\| (acts|checked, no effect)", table, re.MULTILINE))
    assert rows == {name: "acts" if name in (*ACTING, CONNECT_TIMEOUT) else "checked, no effect" for name in VARIABLES}


def test_importing_starts_nothing_and_changes_nothing():
    code = (
        "import os, jax; flags = os.environ.get('XLA_FLAGS'); before = dict(jax.config.values); import hccljax; "
        "assert dict(jax.config.values) == before; assert os.environ.get('XLA_FLAGS') == flags; "
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    path = os.pathsep.join(filter(None, [str(DOCS.parent), os.environ.get("PYTHONPATH")]))
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=100)
