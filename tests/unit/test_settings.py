"""Settings have sources with an order of precedence, and explain errors."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from comfyrelay.cli.unknown_settings import warn_of_unknown
from comfyrelay.configuration import unread_file
from comfyrelay.desk.settings import load_desk_settings
from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import Settings, load_settings
from comfyrelay.worker.settings import load_worker_settings


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder without a settings file, in an environment without ComfyRelay's variables."""
    for field in Settings.model_fields:
        monkeypatch.delenv(f"COMFYRELAY_{field.upper()}", raising=False)
    monkeypatch.delenv("COMFYRELAY_CONFIG", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".local" / "share" / "comfyrelay"
    folder.mkdir(parents=True)
    return folder


def complaint() -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    return caught.value.detail


def test_without_settings_all_data_is_in_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    settings = load_settings()
    assert settings.data_dir == Path("/home/ada/.local/share/comfyrelay")
    assert settings.central_url == "sqlite:////home/ada/.local/share/comfyrelay/central.db"
    assert settings.shard_urls == {"main": "sqlite:////home/ada/.local/share/comfyrelay/tenants-main.db"}
    assert settings.objects_url == "file:///home/ada/.local/share/comfyrelay/objects"
    monkeypatch.setenv("XDG_DATA_HOME", "/data/ada")
    assert load_settings().data_dir == Path("/data/ada/comfyrelay")


def test_defaults_match_the_documentation() -> None:
    settings = Settings()
    assert (settings.lease_ttl_seconds, settings.max_attempts) == (900, 3)
    assert (settings.max_fleet_workers, settings.max_active_jobs_per_user) == (50, 5)
    assert (settings.presigned_ttl_seconds, settings.reaper_interval_seconds) == (900, 5)
    assert (settings.warm_lookahead_rows, settings.warm_wait_seconds) == (32, 120)
    assert settings.stage == "production"


@pytest.mark.parametrize(
    ("given", "late", "urls"),
    [
        ({}, 900, 3600),
        ({"lease_ttl_seconds": 60}, 60, 900),
        ({"lease_ttl_seconds": 60, "late_grace_seconds": 1000}, 1000, 2120),
        ({"late_grace_seconds": 0}, 0, 1800),
        ({"presigned_ttl_seconds": 9000}, 900, 9000),
        ({"lease_ttl_seconds": 10**6}, 10**6, 7 * 24 * 3600),
    ],
)
def test_urls_of_a_lease_outlive_the_lease_and_its_grace_period(
    given: dict[str, int], late: float, urls: float
) -> None:
    settings = Settings.model_validate(given)
    assert (settings.late_seconds, settings.lease_url_ttl_seconds) == (late, urls)


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_DATABASE_URL", "postgresql://db/central")
    monkeypatch.setenv("COMFYRELAY_SHARDS", '{"eu": "postgres://db/eu", "us": "sqlite:///us.db"}')
    monkeypatch.setenv("COMFYRELAY_STAGE", "staging")
    settings = load_settings()
    assert settings.central_url == "postgresql://db/central"
    assert settings.shard_urls == {"eu": "postgres://db/eu", "us": "sqlite:///us.db"}
    assert settings.stage == "staging"


def test_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_LEASE_TTL_SECONDS", "")
    assert load_settings().lease_ttl_seconds == 900


def test_constructing_settings_reads_nothing(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_STAGE", "staging")
    (empty_place / "comfyrelay.toml").write_text("max_attempts = 9\n")
    assert (Settings().stage, Settings().max_attempts) == ("production", 3)


def test_environment_takes_precedence_over_the_file(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_place / "comfyrelay.toml").write_text("max_attempts = 4\nlease_ttl_seconds = 60\n")
    monkeypatch.setenv("COMFYRELAY_MAX_ATTEMPTS", "5")
    settings = load_settings()
    assert (settings.max_attempts, settings.lease_ttl_seconds) == (5, 60)


def test_shards_of_the_environment_replace_the_shards_of_the_file(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_place / "comfyrelay.toml").write_text('[shards]\nold = "sqlite:///old.db"\n')
    assert load_settings().shard_urls == {"old": "sqlite:///old.db"}
    monkeypatch.setenv("COMFYRELAY_SHARDS", '{"new": "sqlite:///new.db"}')
    assert load_settings().shard_urls == {"new": "sqlite:///new.db"}


def test_file_in_the_current_folder_is_not_read(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("comfyrelay.toml").write_text("max_attempts = 9\n")
    assert load_settings().max_attempts == 3
    assert unread_file() == Path("comfyrelay.toml").absolute()
    warn_of_unknown()
    assert "comfyrelay.toml is not read." in " ".join(capsys.readouterr().err.split())
    monkeypatch.chdir(empty_place)
    assert unread_file() is None


def test_data_folder_of_the_command_line_has_its_own_file(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, attempts in (("mine", 5), ("theirs", 6)):
        (empty_place / name).mkdir()
        (empty_place / name / "comfyrelay.toml").write_text(f"max_attempts = {attempts}\n")
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(empty_place / "theirs"))
    assert load_settings().max_attempts == 6
    assert load_settings(empty_place / "mine").max_attempts == 5


def test_settings_file_may_be_in_another_folder(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_place / "comfyrelay.toml").write_text("max_attempts = 4\n")
    (empty_place / "other.toml").write_text("max_attempts = 6\n")
    monkeypatch.setenv("COMFYRELAY_CONFIG", str(empty_place / "other.toml"))
    assert load_settings().max_attempts == 6


def test_missing_named_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_CONFIG", "nowhere.toml")
    assert complaint().startswith("COMFYRELAY_CONFIG is nowhere.toml, which is not a file.")


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("lease_ttl", "Did you mean 'lease_ttl_seconds'?"),
        ("interupted_jobs", "Did you mean interrupted_jobs in [worker] or [desk]?"),
        # a known setting in the wrong place
        ("interrupted_jobs", "Did you mean interrupted_jobs in [worker] or [desk]?"),
        ("shutdown_second", "Did you mean shutdown_seconds in [worker] or [desk]?"),
        ("dessk", "Did you mean [desk]?"),
        ("zzz", "Remove it"),
    ],
)
def test_unknown_key_in_the_file_is_refused(empty_place: Path, key: str, advice: str) -> None:
    (empty_place / "comfyrelay.toml").write_text(f"{key} = 1\n")
    message = complaint()
    assert f"comfyrelay.toml: unknown setting {key!r}" in message
    assert advice in message


def test_top_level_setting_inside_a_table_gets_a_hint(empty_place: Path) -> None:
    (empty_place / "comfyrelay.toml").write_text("[desk]\nport = 8420\n")
    with pytest.raises(ConfigurationError) as caught:
        load_desk_settings()
    told = "comfyrelay.toml: unknown setting 'port' in [desk]. Did you mean port in the part before all tables?"
    assert caught.value.detail == f"{empty_place}/{told}"


@pytest.mark.parametrize("content", [b"max_attempts = \n", b"\xff\xfe"])
def test_file_that_is_not_toml_is_refused(empty_place: Path, content: bytes) -> None:
    (empty_place / "comfyrelay.toml").write_bytes(content)
    assert "comfyrelay.toml is not valid TOML" in complaint()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("LEASE_TTL_SECONDS", "0", "must be greater than 0"),
        ("LEASE_TTL_SECONDS", "inf", "must be a finite number"),
        ("MAX_ATTEMPTS", "-3", "must be greater than 0"),
        ("MAX_ATTEMPTS", "three", "must be a whole number. Correct it"),
        ("PORT", "abc", "must be a whole number. Correct it"),
        ("PORT", "70000", "must be at most 65535."),
        ("WARM_WAIT_SECONDS", "-1", "must be at least 0."),
        ("STAGE", "prod", "must be 'staging' or 'production'"),
        ("SHARDS", "[]", "must be a valid dictionary"),
        ("SHARDS", '{"main": ', "is not valid JSON"),
    ],
)
def test_wrong_value_names_its_variable_and_the_rule(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(f"COMFYRELAY_{variable}", value)
    message = complaint()
    assert message.startswith(f"COMFYRELAY_{variable} ")
    assert reason in message


def test_invalid_value_error_names_the_file(empty_place: Path) -> None:
    (empty_place / "comfyrelay.toml").write_text("max_attempts = 0\n")
    assert f"Correct it as max_attempts in {empty_place / 'comfyrelay.toml'}." in complaint()


def test_all_invalid_values_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_STAGE", "prod")
    monkeypatch.setenv("COMFYRELAY_MAX_ATTEMPTS", "0")
    assert len(complaint().splitlines()) == 2


def test_priorities_must_be_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_USER_PRIORITY_MIN", "11")
    assert "COMFYRELAY_USER_PRIORITY_MIN (11) must not be above COMFYRELAY_USER_PRIORITY_MAX (10)" in complaint()


@pytest.mark.parametrize("url", ["mysql://u:hunter2@db/x", "sqlite://", "", "db.sqlite?password=hunter2"])
def test_only_sqlite_and_postgresql_are_accepted_and_passwords_are_hidden(url: str) -> None:
    with pytest.raises(ValidationError, match="must start with one of sqlite:///") as caught:
        Settings(database_url=url)
    assert "hunter2" not in str(caught.value)


def test_password_is_not_printed() -> None:
    settings = Settings(database_url="postgresql://u:hunter2@db/x", shards={"a": "postgres://u:hunter2@db/y"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().stage = "staging"  # type: ignore[misc]


def test_relative_data_folder_is_made_absolute() -> None:
    assert Settings(data_dir=Path("here")).data_dir == Path.cwd() / "here"


@pytest.mark.parametrize("name", ["API_BASE_URL", "COMFYRELAY_WORKER_API_BASE_URL"])
def test_message_names_the_variable_that_is_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "nonsense")
    with pytest.raises(ConfigurationError, match=rf"^{name} \(address of the control plane\): "):
        load_worker_settings()
