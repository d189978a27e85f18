"""What users type, read or refused in one line."""

import pytest

from hccljax.cli.words import named, operator, size, sizes
from hccljax.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("64MB", 64 << 20), ("64M", 64 << 20), ("64MiB", 64 << 20), ("1gb", 1 << 30), ("1.5KB", 1536), ("512B", 512),
     ("0B", 0), (" 8 KB ", 8192), ("2TB", 2 << 40)],
)  # fmt: skip
def test_sizes(text, nbytes):
    assert size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "why"),
    [("1QB", "expected a number with B, KB"), ("64", "has no unit: write 64B"), ("", "expected a number"),
     ("-1MB", "expected a number"), ("1.3B", "is 1.3 bytes"), ("1e3MB", "expected a number"), ("9" * 40, "expected")],
)  # fmt: skip
def test_no_sizes(text, why):
    with pytest.raises(ArgumentError, match=why):
        size(text)


def test_ranges():
    assert sizes("1KB:4KB") == [1024, 2048, 4096]
    assert sizes("3B:10B") == [3, 6, 10]
    assert sizes("8B:8B") == [8]
    for text, why in (("4KB:1KB", "write 1KB:4KB"), ("1KB", "a colon between them"), ("0B:1KB", "above 0")):
        with pytest.raises(ArgumentError, match=why):
            sizes(text)


@pytest.mark.parametrize("text", ["allreduce", "AllReduce", "all_reduce", "all-reduce"])
def test_operators(text):
    assert operator(text) == "all_reduce"


def test_no_operator():
    with pytest.raises(ArgumentError, match=r"operator 'alreduce': .*Did you mean allreduce"):
        operator("alreduce")


def test_names(tmp_path, monkeypatch):
    (tmp_path / "a_module_of_mine.py").write_text("class Inner:\n    value = 3\nbroken = None\n")
    (tmp_path / "a_broken_module.py").write_text("import there_is_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    assert named("a_module_of_mine:Inner.value") == 3
    for text, why in (
        ("a_module_of_mine:inner", "has no 'inner'. Did you mean Inner"),
        ("no_module_at_all:x", "there is no module"),
        ("a_module_of_mine", "expected module:name"),
    ):
        with pytest.raises(ArgumentError, match=why):
            named(text)
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        named("a_broken_module:x")
