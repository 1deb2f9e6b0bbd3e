"""Only signed grants are accepted."""

from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfyrelay.errors import Forbidden, InvalidInput
from comfyrelay.storage.signing import UrlGrant, sign, verify

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EXPIRES = int(NOW.timestamp()) + 60

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_grants = st.builds(
    UrlGrant,
    method=st.sampled_from(["GET", "PUT"]),
    path=_texts,
    expires=st.integers(EXPIRES, 10**12),
    content_type=st.none() | _texts,
    size=st.none() | st.integers(0, 10**14),
    max_size=st.none() | st.integers(0, 10**14),
    filename=st.none() | _texts,
    for_worker=st.booleans(),
)


def query(grant: UrlGrant, secret: str = "first secret") -> dict[str, str]:
    return dict(parse_qsl(sign(grant, secret=secret), keep_blank_values=True, strict_parsing=True))


@settings(deadline=None)
@given(grant=_grants)
def test_signed_url_is_verified(grant: UrlGrant) -> None:
    assert verify(grant.method, grant.path, query(grant), secrets=["first secret"], now=NOW) == grant


@settings(deadline=None)
@given(signed=_grants, wanted=_grants)
def test_signature_is_valid_for_only_one_grant(signed: UrlGrant, wanted: UrlGrant) -> None:
    assume(signed != wanted)
    forged = {**query(wanted), "signature": query(signed)["signature"]}
    with pytest.raises(Forbidden, match="is invalid"):
        verify(wanted.method, wanted.path, forged, secrets=["first secret"], now=NOW)


@settings(deadline=None)
@given(junk=st.dictionaries(st.sampled_from(["expires", "type", "size", "max", "name", "signature"]), st.text()))
def test_malformed_query_is_refused(junk: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        verify("GET", "a", junk, secrets=["first secret"], now=NOW)


@pytest.mark.parametrize("number", ["", "-1", "+1", "1.0", "1e3", "٣", "0x10", " 1", "9" * 5000, "nan"])
def test_invalid_number_is_refused(number: str) -> None:
    for key in ("expires", "size", "max"):
        fields = {**query(UrlGrant(method="GET", path="a", expires=EXPIRES)), key: number}
        with pytest.raises(Forbidden):
            verify("GET", "a", fields, secrets=["first secret"], now=NOW)


@pytest.mark.parametrize(("method", "allowed"), [("GET", True), ("HEAD", True), ("PUT", False), ("get", False)])
def test_get_grant_allows_only_get_and_head(method: str, allowed: bool) -> None:
    fields = query(UrlGrant(method="GET", path="a", expires=EXPIRES))
    if allowed:
        assert verify(method, "a", fields, secrets=["first secret"], now=NOW).method == "GET"
        return
    with pytest.raises(Forbidden):
        verify(method, "a", fields, secrets=["first secret"], now=NOW)


def test_grant_expires_after_its_last_second() -> None:
    fields = query(UrlGrant(method="GET", path="a", expires=EXPIRES))
    at = datetime.fromtimestamp
    verify("GET", "a", fields, secrets=["first secret"], now=at(EXPIRES - 0.001, UTC))
    with pytest.raises(Forbidden, match="expired"):
        verify("GET", "a", fields, secrets=["first secret"], now=at(EXPIRES, UTC))


def test_secrets_can_be_rotated() -> None:
    fields = query(UrlGrant(method="GET", path="a", expires=EXPIRES), secret="old")
    verify("GET", "a", fields, secrets=["new", "old"], now=NOW)
    for secrets in (["new"], [], [""]):
        with pytest.raises(Forbidden):
            verify("GET", "a", fields, secrets=secrets, now=NOW)


def test_upload_must_match_the_grant() -> None:
    grant = UrlGrant(method="PUT", path="a", expires=EXPIRES, content_type="image/png", size=5, max_size=9)
    grant.check_upload(content_type="image/png", content_length=5)
    grant.check_upload(content_type="image/png", content_length=None)
    for content_type, length in (("image/gif", 5), (None, 5), ("image/png", 4), ("image/png", 6)):
        with pytest.raises(Forbidden):
            grant.check_upload(content_type=content_type, content_length=length)


def test_oversized_upload_is_refused() -> None:
    grant = UrlGrant(method="PUT", path="a", expires=EXPIRES, content_type="image/png", max_size=9)
    grant.check_upload(content_type="image/png", content_length=9)
    with pytest.raises(InvalidInput, match="at most 9 bytes"):
        grant.check_upload(content_type="image/png", content_length=10)
