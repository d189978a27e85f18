"""What the demo says where it cannot run: one message, no traceback, exit status 2."""

from __future__ import annotations

import pytest

from hccljax.demo.__main__ import main

WITHOUT = """
import runpy, sys
sys.modules[{module!r}] = None
runpy.run_module("hccljax.demo", run_name="__main__")
"""


@pytest.mark.parametrize(("module", "package"), [("sklearn", "scikit-learn"), ("rich", "rich")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(python, module, package):
    result = python("-c", WITHOUT.format(module=module))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == f"The demo needs {package}, which is not installed: pip install 'hccljax[demo]'\n"


def test_another_missing_module_is_no_question_of_extras(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hccljax.demo.run", None)
    with pytest.raises(ModuleNotFoundError, match=r"hccljax\.demo\.run"):
        main(["--algorithms", "ring"])


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("rung", "EI0003: algorithm='rung': expected one of "),
        (
            "level0:ring;level0:tree",
            "EI0003: algorithm='level0:ring;level0:tree', read as HCCL_ALGO: names level0 twice",
        ),
    ],
)
def test_an_unknown_algorithm_is_refused_before_anything_trains(capsys, algorithm, message):
    assert main(["--algorithms", "ring", algorithm]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("devices", ["1", "9", "1000"])
def test_devices_that_cannot_be_had_are_refused(capsys, devices):
    assert main(["--algorithms", "ring", "--devices", devices]) == 2
    assert f"devices={devices}: expected 2 to 64, and JAX has 8" in capsys.readouterr().err


def test_devices_that_the_user_has_forced_are_kept(python):
    # One device cannot train in parallel: the message shows that it is one, and not eight.
    result = python("-m", "hccljax.demo", XLA_FLAGS="--xla_force_host_platform_device_count=1")
    assert result.returncode == 2
    assert "devices=1: expected 2 to 64, and JAX has 1" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--epochs", "0"), ("--epochs", "x"), ("--devices", "0"), ("--seed", "-1")]
)
def test_numbers_that_make_no_sense_are_refused(capsys, option, value):
    with pytest.raises(SystemExit) as stopped:
        main([f"{option}={value}"])
    assert stopped.value.code == 2
    assert option in capsys.readouterr().err
