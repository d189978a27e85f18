import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hccljax.errors import SettingError, shown
from hccljax.selection.settings import Settings


def test_an_empty_environment_gives_the_defaults(monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "ring")
    assert Settings.from_environment({}) == Settings() == Settings(algo="", entry_log=False)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HCCL_ALGO": "ring"}, Settings("ring")),
        ({"HCCL_ALGO": " level0:ring; level1:tree "}, Settings(" level0:ring; level1:tree ")),
        ({"HCCL_ALGO": "not checked here"}, Settings("not checked here")),
        ({"HCCL_ALGO": ""}, Settings()),
        ({"HCCL_ENTRY_LOG_ENABLE": "0"}, Settings()),
        ({"HCCL_ENTRY_LOG_ENABLE": "1"}, Settings(entry_log=True)),
        ({"HCCL_ENTRY_LOG_ENABLE": ""}, Settings()),
        ({"HCCL_ALGO": "tree", "HCCL_ENTRY_LOG_ENABLE": "1"}, Settings("tree", True)),
        ({"HCCL_BUFFSIZE": "200", "hccl_algo": "ring"}, Settings()),
    ],
)
def test_variables_are_read(environ, expected):
    assert Settings.from_environment(environ) == expected


@pytest.mark.parametrize(
    "value",
    ["2", "true", "TRUE", "on", " 1", "01", "-1", "\uff11", "\udcff", pytest.param("x" * 100_000, id="long")],
)
def test_a_bad_switch_is_refused_every_time(value):
    for _ in range(2):  # an error is never answered from the cache with something else
        with pytest.raises(SettingError) as caught:
            Settings.from_environment({"HCCL_ENTRY_LOG_ENABLE": value})
        message = str(caught.value)
        assert message.startswith("EI0001: HCCL_ENTRY_LOG_ENABLE is ")
        assert shown(value) in message
        assert "expected 0 (off) or 1 (on)" in message
        assert "HCCL_ENTRY_LOG_ENABLE=0 or HCCL_ENTRY_LOG_ENABLE=1, or unset it" in message
        assert len(message) < 300
        message.encode()


@given(st.text(), st.text())
def test_any_environment_gives_settings_or_a_setting_error(algo, entry_log):
    environ = {"HCCL_ALGO": algo, "HCCL_ENTRY_LOG_ENABLE": entry_log}
    if entry_log in ("", "0", "1"):
        assert Settings.from_environment(environ) == Settings(algo, entry_log == "1")
    else:
        with pytest.raises(SettingError):
            Settings.from_environment(environ)


def test_the_process_environment_is_read_anew_at_each_call(monkeypatch):
    monkeypatch.delenv("HCCL_ALGO", raising=False)
    monkeypatch.delenv("HCCL_ENTRY_LOG_ENABLE", raising=False)
    assert Settings.from_environment() == Settings()
    monkeypatch.setenv("HCCL_ALGO", "ring")
    assert Settings.from_environment() == Settings("ring")
    monkeypatch.setenv("HCCL_ENTRY_LOG_ENABLE", "1")
    assert Settings.from_environment() == Settings("ring", True)
    monkeypatch.setenv("HCCL_ALGO", "tree")
    assert Settings.from_environment() == Settings("tree", True)
    monkeypatch.setenv("HCCL_ENTRY_LOG_ENABLE", "yes")
    with pytest.raises(SettingError, match="HCCL_ENTRY_LOG_ENABLE is 'yes'"):
        Settings.from_environment()


def test_the_same_texts_give_the_same_object():
    environ = {"HCCL_ALGO": "ring", "HCCL_ENTRY_LOG_ENABLE": "1"}
    assert Settings.from_environment(environ) is Settings.from_environment(dict(environ))


def test_settings_are_frozen_and_hashable():
    assert hash(Settings("ring")) == hash(Settings("ring"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().algo = "ring"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"algo": None}, r"algo \(HCCL_ALGO\) is None, expected a text"),
        ({"algo": b"ring"}, r"algo \(HCCL_ALGO\) is b'ring', expected a text"),
        ({"entry_log": 1}, r"entry_log \(HCCL_ENTRY_LOG_ENABLE\) is 1, expected a bool"),
        ({"entry_log": "1"}, r"entry_log \(HCCL_ENTRY_LOG_ENABLE\) is '1', expected a bool"),
    ],
)
def test_settings_check_themselves(fields, says):
    with pytest.raises(SettingError, match=says):
        Settings(**fields)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", 200 << 20),
        ("1", 1 << 20),
        ("200", 200 << 20),
        ("1048575", 1048575 << 20),
        ("1048576", 1048576),
        ("536870912", 512 << 20),
    ],
)
def test_a_buffer_is_in_megabytes_below_a_million_of_them_else_in_bytes(text, wanted):
    assert Settings.from_environment({"HCCL_BUFFSIZE": text}).buffer == wanted


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "200MB", " 200", "\u0663", "9" * 40])
def test_a_buffer_that_is_none_is_refused(text):
    with pytest.raises(SettingError, match=r"HCCL_BUFFSIZE is .*, expected a whole number: MB .* else bytes; set"):
        Settings.from_environment({"HCCL_BUFFSIZE": text})


def test_determinism_is_one_of_three_words():
    words = {
        text: Settings.from_environment({"HCCL_DETERMINISTIC": text}).deterministic for text in ("", "true", "strict")
    }
    assert words == {"": "false", "true": "true", "strict": "strict"}
    with pytest.raises(SettingError, match="HCCL_DETERMINISTIC is 'STRICT', expected one of false, true, strict"):
        Settings.from_environment({"HCCL_DETERMINISTIC": "STRICT"})
