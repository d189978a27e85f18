"""What ``import hccljax`` offers: exactly ``__all__``, each name documented, annotated and with examples that run."""

import doctest
import inspect
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import hccljax
import hccljax.lax

ROOT = Path(__file__).parents[1]
NAMES = [name for name in hccljax.__all__ if name != "lax"]
COLLECTIVES = (
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_all_vc",
    "barrier",
    "batch_send_recv",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "send_recv",
)
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(hccljax, name))]
CLASSES = [name for name in NAMES if inspect.isclass(getattr(hccljax, name))]


def _methods(cls):
    """(name, function) for the public methods and properties that the class defines itself, and its __init__."""
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property):
            member = member.fget
        elif isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if inspect.isfunction(member) and member.__module__.startswith("hccljax"):
            yield name, member


METHODS = [(cls, name, method) for cls in CLASSES for name, method in _methods(getattr(hccljax, cls))]
METHOD_IDS = [f"{cls}.{name}" for cls, name, _ in METHODS]


def test_all_is_exactly_what_is_public():
    public = {
        name
        for name, value in vars(hccljax).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(NAMES)
    assert list(hccljax.__all__) == sorted(hccljax.__all__)


def test_every_public_module_is_a_room_of_the_package():
    modules = {name: value for name, value in vars(hccljax).items() if isinstance(value, types.ModuleType)}
    assert {name: value.__name__ for name, value in modules.items()} == {name: f"hccljax.{name}" for name in modules}


def test_every_collective_is_public():
    assert set(COLLECTIVES) == set(hccljax.collectives.__all__) <= set(NAMES)


def test_the_drop_in_module_is_what_it_lists():
    own = {
        name
        for name, value in vars(hccljax.lax).items()
        if inspect.isfunction(value) and value.__module__ == "hccljax.lax" and not name.startswith("_")
    }
    assert own == set(hccljax.lax.OURS)
    assert all(callable(getattr(jax.lax, name)) for name in own - {"pbroadcast"})
    assert hccljax.lax.exp is jax.lax.exp


def test_the_version_is_that_of_the_project():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert hccljax.__version__ == declared[1]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_of_its_own(name):
    text = getattr(hccljax, name).__doc__
    assert text
    # A dataclass without a docstring gets its signature as one.
    assert not text.startswith(f"{name}(")
    assert text.strip()[0].isupper() or text.strip().startswith(("``", "x "))


@pytest.mark.parametrize(("cls", "name", "method"), METHODS, ids=METHOD_IDS)
def test_every_public_method_has_a_docstring(cls, name, method):
    generated = name == "__init__" and (hasattr(getattr(hccljax, cls), "__dataclass_fields__") or cls == "HcclError")
    assert generated or method.__doc__


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_documents_arguments_result_errors_source_and_an_example(name):
    function = getattr(hccljax, name)
    text = inspect.getdoc(function)
    for section in ("Args:", "Returns:", "Raises:", "Source:", ">>> "):
        assert re.search(rf"^{re.escape(section)}", text, re.MULTILINE), f"{name} has no {section!r}"
    arguments = text.split("Args:")[1].split("Returns:")[0]
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^  {parameter}:", arguments, re.MULTILINE), f"{name} does not explain {parameter}"


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(COLLECTIVES)))
def test_every_other_function_explains_its_arguments(name):
    function = getattr(hccljax, name)
    text = inspect.getdoc(function)
    parameters = inspect.signature(function).parameters
    if len(parameters) > 1:
        for parameter in parameters:
            assert re.search(rf"^  {parameter}:", text, re.MULTILINE), f"{name} does not explain {parameter}"


def _annotation_gaps(function, inside_class):
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if inside_class else 0 :]
    gaps = [parameter.name for parameter in parameters if parameter.annotation is inspect.Parameter.empty]
    returns = signature.return_annotation is inspect.Signature.empty and function.__name__ != "__init__"
    return gaps + (["return"] if returns else [])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_fully_annotated(name):
    assert _annotation_gaps(getattr(hccljax, name), inside_class=False) == []


@pytest.mark.parametrize("name", hccljax.lax.OURS)
def test_every_drop_in_function_is_annotated_and_documented(name):
    function = getattr(hccljax.lax, name)
    assert _annotation_gaps(function, inside_class=False) == []
    assert f"jax.lax.{name}" in function.__doc__


@pytest.mark.parametrize(("cls", "name", "method"), METHODS, ids=METHOD_IDS)
def test_every_public_method_is_fully_annotated(cls, name, method):
    assert _annotation_gaps(method, inside_class=True) == []


def _examples():
    """(name, doctest) of every public docstring that has examples, those of methods and of the drop-in module too."""
    finder = doctest.DocTestFinder(recurse=False)
    documented = [(name, getattr(hccljax, name)) for name in NAMES]
    documented += [(f"lax.{name}", getattr(hccljax.lax, name)) for name in hccljax.lax.OURS]
    documented += [(f"{cls}.{name}", method) for cls, name, method in METHODS]
    for name, value in documented:
        for found in finder.find(value, name, globs={}):
            if found.examples:
                yield pytest.param(found, id=name)


@pytest.mark.parametrize("example", list(_examples()))
def test_the_examples_of_public_docstrings_print_what_they_say(example):
    example.globs = {"jax": jax, "jnp": jnp, "hccljax": hccljax}
    output = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=output.append)
    assert result.failed == 0, "".join(output)
    assert result.attempted > 0


def test_the_readme_lists_the_public_names():
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- public names -->(.+?)(<!--|\n#|\Z)", readme, re.DOTALL)
    assert block, "README.md has no block '<!-- public names -->'"
    listed = {name.removeprefix("hccljax.") for name in re.findall(r"`([A-Za-z_.]+)(?:\([^`]*\))?`", block[1])}
    assert listed == set(hccljax.__all__)
