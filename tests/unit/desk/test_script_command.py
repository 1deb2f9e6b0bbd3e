"""The command line of a script job has the documented options and only values that the configuration allows."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from comfyrelay.desk.scripts.command import ScriptSettings, check_settings, command_of, templates
from comfyrelay.desk.scripts.workflow import job_of
from comfyrelay.errors import ConfigurationError, InvalidInput
from tests.support.script_runs import job, settings_in


def test_command_has_all_documented_options(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, extra_options={"--fps": r"\d+", "--upscale": ""})
    script_job = job(
        negative="blurry",
        profile="production",
        tries=3,
        randomize_seed=True,
        extra_args=("--fps", "16", "--upscale", "--fps=24"),
    )
    assert command_of(settings, script_job) == [
        *(sys.executable, str(tmp_path / "script.py"), "--wait"),
        *("--profile", "production", "--template-api", str(tmp_path / "templates" / "wan.json")),
        *("--input-subdir", "cats", "--positive", "a cat", "--negative", "blurry", "--tries", "3", "--randomize-seed"),
        *("--fps", "16", "--upscale", "--fps=24"),
    ]


def test_missing_values_come_from_the_configuration(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, default_profile="production", arguments=["--port", "8189"])
    argv = command_of(settings, job())
    assert argv[2:6] == ["--port", "8189", "--wait", "--profile"]
    assert argv[6] == "production"
    assert not {"--negative", "--tries", "--randomize-seed"} & set(argv)


def test_empty_negative_prompt_is_passed(tmp_path: Path) -> None:
    argv = command_of(settings_in(tmp_path), job(negative=""))
    assert argv[-2:] == ["--negative", ""]


def test_shipped_script_is_the_default(tmp_path: Path) -> None:
    argv = command_of(settings_in(tmp_path, script=None), job())
    assert argv[:4] == [sys.executable, "-m", "comfyrelay", "batch-i2v"]
    assert argv[4:6] == ["--input-root", str(tmp_path / "input")]


@pytest.mark.parametrize("field", ["positive", "negative"])
def test_prompt_cannot_become_an_option(tmp_path: Path, field: str) -> None:
    argv = command_of(settings_in(tmp_path), job(**{field: "--template-api=/etc/passwd"}))
    assert f"--{field}=--template-api=/etc/passwd" in argv
    assert "--template-api=/etc/passwd" not in argv


PATHS = ["..", "../cats", "cats/../..", "/etc", "~/../..", "cats\\..\\..", "C:\\", "out", "no-such-folder"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["input_subdir", "template"])
def test_path_out_of_its_folder_is_refused(tmp_path: Path, field: str, path: str) -> None:
    settings = settings_in(tmp_path)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.json").write_text("{}")
    (tmp_path / "input" / "out").symlink_to(tmp_path / "secret")
    value = path if field == "input_subdir" else f"{path}/key.json"
    with pytest.raises(InvalidInput) as refused:
        command_of(settings, job(**{field: value}))
    assert set(refused.value.errors) == {field}


def test_templates_are_the_graphs_directly_in_the_folder(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    (tmp_path / "key.json").write_text("{}")
    folder = settings.template_folder
    (folder / "link.json").symlink_to(tmp_path / "key.json")
    (folder / "notes.txt").write_text("")
    (folder / "more").mkdir()
    (folder / "wan 10.json").write_text("{}")
    (folder / "wan 2.json").write_text("{}")
    assert templates(settings) == ["wan 2.json", "wan 10.json", "wan.json"]
    with pytest.raises(InvalidInput):
        command_of(settings, job(template="link.json"))


def test_unknown_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not one of look-dev, production"):
        command_of(settings_in(tmp_path), job(profile="--help"))


@pytest.mark.parametrize("tries", [0, -1, 1001])
def test_number_of_tries_is_limited(tmp_path: Path, tries: int) -> None:
    with pytest.raises(InvalidInput, match="between 1 and 1000"):
        command_of(settings_in(tmp_path), job(tries=tries))


@pytest.mark.parametrize("field", ["positive", "negative", "input_subdir"])
def test_text_too_long_for_a_command_line_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        command_of(settings_in(tmp_path), job(**{field: "é" * 60_000}))
    assert set(refused.value.errors) == {field}


@pytest.mark.parametrize("field", ["positive", "negative", "input_subdir", "template"])
@pytest.mark.parametrize("text", ["a\0b", "half \ud83d a pair"])
def test_characters_invalid_in_a_command_line_are_refused(field: str, text: str) -> None:
    with pytest.raises(ValidationError, match="cannot be stored"):
        job(**{field: text})
    with pytest.raises(InvalidInput) as refused:
        job_of({"template": "wan.json", "input_subdir": "cats", "positive": "a cat", field: text})
    assert set(refused.value.errors) == {field}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--output", "/etc"),
        ("--fps",),
        ("--fps", "--output"),
        ("--fps", "many"),
        ("--fps=16\n17",),
        ("--upscale=yes",),
        ("--upscale", "/etc/passwd"),
        ("--input-subdir", ".."),
        # most scripts accept an abbreviated option
        ("--input-sub=..",),
        ("--templ=/etc/passwd",),
        ("-c", "print()"),
        ("script2.py",),
        ("--",),
        ("",),
    ],
)
def test_unknown_option_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    settings = settings_in(tmp_path, extra_options={"--fps": r"\d+", "--upscale": ""})
    with pytest.raises(InvalidInput) as refused:
        command_of(settings, job(extra_args=arguments))
    assert set(refused.value.errors) == {"extra_args"}


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        command_of(settings_in(tmp_path), job(profile="x", template="x", input_subdir="..", tries=0, extra_args=("x",)))
    assert set(refused.value.errors) == {"profile", "template", "input_subdir", "tries", "extra_args"}


@pytest.mark.parametrize("field", ["python", "script", "working_folder", "environment", "arguments"])
def test_request_cannot_choose_the_program(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        job(**{field: "/bin/sh"})


@pytest.mark.parametrize(
    "settings",
    [
        {"extra_options": {"--input-subdir": ".*"}},
        {"extra_options": {"--inp": ".*"}},
        {"extra_options": {"--p": ".*"}},
        {"extra_options": {"-c": ".*"}},
        {"extra_options": {"script.py": ""}},
        {"extra_options": {"--fps": "("}},
        {"profiles": []},
        {"profiles": ["--help"]},
        {"default_profile": "unheard of"},
        {"shell": True},
    ],
)
def test_unsafe_configuration_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ScriptSettings(**settings)


@pytest.mark.parametrize("field", ["python", "script", "working_folder", "input_folder", "template_folder"])
def test_configured_paths_must_exist(tmp_path: Path, field: str) -> None:
    check_settings(settings_in(tmp_path))
    with pytest.raises(ConfigurationError, match=field):
        check_settings(settings_in(tmp_path, **{field: tmp_path / "gone"}))
