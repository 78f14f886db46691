import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.config import Settings, apply_parameters, describe_settings
from headrace.errors import InvalidParameter, UndefinedObject
from headrace.typed_settings import declared


def test_defaults_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Settings().host, Settings().port, Settings().barrier_interval_ms) == ("127.0.0.1", 4566, 1000)
    monkeypatch.setenv("HEADRACE_PORT", "5000")
    monkeypatch.setenv("HEADRACE_RUN_FSYNC", "false")
    assert (Settings().port, Settings().run_fsync) == (5000, False)
    assert Settings(port=1).port == 1


def test_unknown_names_and_bad_values_are_refused() -> None:
    with pytest.raises(InvalidParameter):
        Settings(no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidParameter):
        Settings(barrier_interval_ms=0)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", " 5000 ", 5000),
        ("parallelism", "3", 3),
        ("run_fsync", "Off", False),
        ("class_archive", "YES", True),
        ("data_dir", "/d", Path("/d")),
        ("cache_dir", "/c", Path("/c")),
        ("log_level", "debug", "debug"),
        ("catalog_url", "file:///x", "file:///x"),
        ("spark_conf", '{"spark.a": "b"}', {"spark.a": "b"}),
        ("deploy_generation", str((1 << 63) - 1), (1 << 63) - 1),
    ],
)
def test_texts_of_every_type_are_read(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    """In the environment, whose variables may be in small letters, and as arguments."""
    monkeypatch.setenv(f"headrace_{name}", text)
    given: dict[str, Any] = {name: text}
    for settings in (Settings(), Settings(**given)):
        assert getattr(settings, name) == value and settings.is_given(name)
    assert getattr(Settings.defaults(), name) == Settings.FIELDS[name].default
    assert not Settings.defaults().is_given(name)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("port", "soon", '"soon" is no whole number'),
        ("port", "5.0", "is no whole number"),
        ("port", True, "True is no whole number"),
        ("port", None, "None is no whole number"),
        ("port", 65536, "it may be at most 65535"),
        ("barrier_interval_ms", "9", "it has to be at least 10"),
        ("parallelism", "0", "it has to be at least 1"),
        ("run_fsync", "maybe", '"maybe" is neither true nor false'),
        ("log_level", "loud", "it has to be one of debug, info, warning, error"),
        ("log_level", [], "it has to be one of"),
        ("host", 1, "1 is no text"),
        ("data_dir", 1, "1 is no path"),
        ("spark_conf", "{", "it has to be a JSON object"),
        ("spark_conf", '["a"]', "it has to be an object of texts"),
        ("spark_conf", {"a": 1}, "it has to be an object of texts"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: object, why: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(InvalidParameter, match=f"invalid value for the setting {name}: .*{re.escape(why)}"):
        Settings(**given)


def test_settings_do_not_change() -> None:
    settings = Settings(port=1, spark_conf={"a": "b"})
    with pytest.raises(AttributeError):
        settings.port = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del settings.port
    other = settings.replaced(port=2)
    assert (settings.port, other.port, other.spark_conf) == (1, 2, {"a": "b"})
    assert settings == Settings(port=1, spark_conf={"a": "b"}) != other
    assert pickle.loads(pickle.dumps(settings)) == settings
    Settings().spark_conf["a"] = "b"
    assert Settings().spark_conf == {}
    with pytest.raises(InvalidParameter, match='there is no setting "prot"'):
        settings.replaced(prot=2)


def test_a_class_of_settings_has_those_of_its_base() -> None:
    class Further(Settings):
        """Settings of a program beside headrace's."""

        patience: int = declared(3, "How long.", least=1)

    settings = Further(port="1", patience="2")
    assert (settings.port, settings.patience, settings.host) == (1, 2, Settings().host)
    assert "patience" not in Settings.FIELDS


def test_a_secret_is_not_shown() -> None:
    settings = Settings(secret_keys="hunter2")
    assert "hunter2" not in repr(settings) and "secret_keys=***" in repr(settings)
    assert "hunter2" not in repr(describe_settings(settings))
    assert {s.name: s.value for s in describe_settings(Settings())}["secret_keys"] == ""
    with pytest.raises(InvalidParameter, match="secret_keys: it has to be a text") as refused:
        Settings(secret_keys=b"hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in refused.value.message


def test_every_setting_is_described() -> None:
    described = {s.name: s for s in describe_settings(Settings(retention_ms=5))}
    assert set(described) == set(Settings.FIELDS)
    assert all(s.meaning.endswith(".") for s in described.values())
    assert (described["retention_ms"].value, described["retention_ms"].default) == ("5", "600000")
    assert described["retention_ms"].runtime and not described["port"].runtime
    assert (described["run_fsync"].value, described["run_fsync"].type) == ("true", "bool")
    assert described["port"].env == "HEADRACE_PORT"


def test_parameters_change_at_run_time() -> None:
    settings = Settings(port=7)
    changed = apply_parameters(settings, {"barrier_interval_ms": "250", "log_level": "debug"})
    assert (changed.barrier_interval_ms, changed.log_level, changed.port) == (250, "debug", 7)
    assert settings.barrier_interval_ms == 1000
    with pytest.raises(UndefinedObject):
        apply_parameters(settings, {"nonsense": "1"})
    with pytest.raises(InvalidParameter, match="cannot be changed"):
        apply_parameters(settings, {"port": "1"})
    with pytest.raises(InvalidParameter, match="barrier_interval_ms"):
        apply_parameters(settings, {"barrier_interval_ms": "soon"})


def test_catalog_location() -> None:
    assert Settings(data_dir="/d").catalog_location == "/d/catalog.db"  # type: ignore[arg-type]
    assert Settings(catalog_url="postgresql://x/y").catalog_location == "postgresql://x/y"
