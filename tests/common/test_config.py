import pytest
from pydantic import ValidationError

from headrace.config import Settings, apply_parameters, describe_settings
from headrace.errors import InvalidParameter, UndefinedObject


def test_defaults_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Settings().host, Settings().port, Settings().barrier_interval_ms) == ("127.0.0.1", 4566, 1000)
    monkeypatch.setenv("HEADRACE_PORT", "5000")
    monkeypatch.setenv("HEADRACE_RUN_FSYNC", "false")
    assert (Settings().port, Settings().run_fsync) == (5000, False)
    assert Settings(port=1).port == 1


def test_unknown_names_and_bad_values_are_refused() -> None:
    with pytest.raises(ValidationError):
        Settings(no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Settings(barrier_interval_ms=0)


def test_every_setting_is_described() -> None:
    described = {s.name: s for s in describe_settings(Settings(retention_ms=5))}
    assert set(described) == set(Settings.model_fields)
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
