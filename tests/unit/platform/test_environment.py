"""Child processes inherit only a fixed list of variables, and no secrets of this process."""

import re

import pytest
from structlog.testing import capture_logs

from comfyrelay.system.commands import environment
from comfyrelay.system.commands.environment import NAMES, PREFIXES, SECRET_WORDS, inherited_environment
from tests.support.paths import ROOT

SECRETS = [
    *("NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "PYTHON_KEYRING_PASSWORD", "AMD_ACCOUNT", "XDG_SESSION_SECRET"),
    *("cuda_registry_token", "PYTORCH_SECRET", "NCCL_AUTH", "TRITON_CREDENTIALS", "MALLOC_PASSWD", "LC_KEY"),
    *("AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DATABASE_URL", "PATHS", "MY_PATH"),
]


@pytest.mark.parametrize("name", SECRETS)
def test_variable_outside_the_list_is_inherited_only_if_named(name: str) -> None:
    assert inherited_environment((), {name: "x"}) == {}
    assert inherited_environment([name], {name: "x"}) == {name: "x"}


@pytest.mark.parametrize("name", ["PATH", "https_proxy", "CUDA_VISIBLE_DEVICES", "OMP_WAIT_POLICY", "Path", "LC_ALL"])
def test_variable_of_the_list_is_inherited(name: str) -> None:
    assert inherited_environment((), {name: "x"}) == {name: "x"}


def test_no_listed_name_looks_like_a_secret() -> None:
    assert not [name for name in NAMES if any(word in name for word in SECRET_WORDS)]


@pytest.mark.parametrize(
    ("value", "inherited"),
    [
        ("http://user:pw@proxy.test:3128", "http://proxy.test:3128"),
        ("http://user:p@ss/#w@proxy.test:3128/", "http://proxy.test:3128/"),
        ("user:pw@proxy.test:3128", "proxy.test:3128"),
        ("socks5h://token@proxy.test", "socks5h://proxy.test"),
        ("http://proxy.test:3128", "http://proxy.test:3128"),
    ],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "ALL_PROXY", "HF_ENDPOINT"])
def test_address_loses_its_login_unless_it_is_named(name: str, value: str, inherited: str) -> None:
    assert inherited_environment((), {name: value}) == {name: inherited}
    assert inherited_environment([name], {name: value}) == {name: value}


def test_removed_login_is_logged_once_without_its_value() -> None:
    environment._log_login.cache_clear()
    with capture_logs() as logs:
        for _ in range(2):
            inherited_environment((), {"HTTPS_PROXY": "http://user:pw@proxy.test"})
    [line] = logs
    assert line == {"event": "environment.login_removed", "variable": "HTTPS_PROXY", "log_level": "warning"}


def test_guide_lists_all_inherited_variables() -> None:
    text = (ROOT / "docs" / "howto" / "start-comfyui.md").read_text("utf-8")
    section = text.partition("### Environment")[2].partition("```")[0]
    rows = {
        cells[1].strip(): re.findall(r"`([^`]+)`", cells[2])
        for line in section.splitlines()
        if len(cells := line.split("|")) == 4
    }
    excluded, prefixes = rows.pop("except names that contain"), rows.pop("names that begin with")
    assert tuple(excluded) == SECRET_WORDS
    assert tuple(prefixes) == PREFIXES
    assert sorted(name for names in rows.values() for name in names) == sorted(NAMES)
