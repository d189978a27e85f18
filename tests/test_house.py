"""The rules of the house that a reader relies on: the direction of imports, sizes, no back doors."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "hccljax").rglob("*.py"))
IDS = [str(module.relative_to(ROOT / "hccljax")) for module in MODULES]

each_module = pytest.mark.parametrize("module", MODULES, ids=IDS)


def _nodes(module, *kinds):
    return [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, kinds)]


def test_the_package_has_the_modules_that_these_rules_are_about():
    assert {"__init__.py", "communicator.py", "algorithm/ring.py", "primitives/permute.py"} <= set(IDS)


def test_imports_only_go_downwards():
    command = "import sys; from importlinter import cli; sys.exit(cli.lint_imports('pyproject.toml', no_cache=True))"
    result = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Contracts: 1 kept, 0 broken" in result.stdout


@each_module
def test_no_module_is_longer_than_400_lines(module):
    assert len(module.read_text().splitlines()) <= 400


@each_module
def test_every_module_has_a_docstring(module):
    assert ast.get_docstring(ast.parse(module.read_text()))


@each_module
def test_no_function_body_is_longer_than_60_lines(module):
    too_long = {}
    for function in _nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
        statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
        length = statements[-1].end_lineno - statements[0].lineno + 1 if statements else 0
        if length > 60:
            too_long[function.name] = length
    assert not too_long


@each_module
def test_no_module_imports_a_star(module):
    assert not [node for node in _nodes(module, ast.ImportFrom) if any(alias.name == "*" for alias in node.names)]


@each_module
def test_no_module_reaches_into_private_jax(module):
    assert "jax._src" not in module.read_text()
    imports = [alias.name for node in _nodes(module, ast.Import) for alias in node.names]
    imports += [
        f"{node.module}.{alias.name}"
        for node in _nodes(module, ast.ImportFrom)
        if node.level == 0
        for alias in node.names
    ]
    jax_names = [name for name in imports if name.split(".")[0] in ("jax", "jaxlib")]
    assert not [name for name in jax_names if any(part.startswith("_") for part in name.split("."))]


@each_module
def test_no_module_asserts(module):
    assert not _nodes(module, ast.Assert)  # python -O drops them; what a user passes gets an error


@each_module
def test_no_module_prints_or_exits(module):
    if any(module.is_relative_to(ROOT / "hccljax" / program) for program in ("demo", "cli", "__main__.py")):
        return
    called = {ast.unparse(node.func) for node in _nodes(module, ast.Call)}
    assert not called & {"print", "exit", "sys.exit", "os._exit", "breakpoint"}
