from collections.abc import Collection
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.pool.members import Member
from comfyrelay.comfyui.pool.scheduler import choose, fits
from comfyrelay.comfyui.pool.ticket import Bucket
from tests.support.pool import member


def server(
    *, id: str, warm: Collection[str] = (), foreign_runs: int = 0, last_used: int = 0, cache_key: str | None = None
) -> Member:
    built = member(id, server=SimpleNamespace(queue_remaining=foreign_runs))
    built.warm = dict.fromkeys(warm)
    built.last_used = last_used
    built.cache_key = cache_key
    return built


def skip_none(_client_id: str, _workflow_hash: str) -> bool:
    return False


def test_no_server_is_chosen_without_candidates() -> None:
    assert choose(Bucket("w"), [], skip_none) is None


def test_excluded_server_is_never_chosen() -> None:
    a, b = server(id="a", warm=frozenset({"w"})), server(id="b")
    bucket = Bucket("w", preferred_clients=frozenset({"a"}), exclude_clients=frozenset({"a"}))
    assert choose(bucket, [a, b], skip_none) is b
    assert choose(bucket, [a], skip_none) is None


def test_server_that_the_strategy_skips_is_not_chosen() -> None:
    a, b = server(id="a"), server(id="b")
    blocked = {("a", "w")}
    assert choose(Bucket("w"), [a, b], lambda *pair: pair in blocked) is b
    assert choose(Bucket("other"), [a, b], lambda *pair: pair in blocked) is a


def test_preferred_server_is_chosen_before_a_warm_one() -> None:
    a, b = server(id="a", foreign_runs=3, last_used=9), server(id="b", warm=frozenset({"w"}))
    assert choose(Bucket("w", preferred_clients=frozenset({"a"})), [b, a], skip_none) is a


def test_preference_is_not_a_restriction() -> None:
    b = server(id="b")
    assert choose(Bucket("w", preferred_clients=frozenset({"a"})), [b], skip_none) is b


def test_warm_server_is_chosen_before_a_less_occupied_one() -> None:
    a, b = server(id="a"), server(id="b", warm=frozenset({"w"}), foreign_runs=2)
    assert choose(Bucket("w"), [a, b], skip_none) is b
    assert choose(Bucket("other"), [a, b], skip_none) is a


def test_least_occupied_server_is_chosen_before_the_longest_idle() -> None:
    a, b, c = server(id="a", foreign_runs=1), server(id="b", last_used=7), server(id="c", last_used=5)
    assert choose(Bucket("w"), [a, b, c], skip_none) is c


servers = st.lists(
    st.builds(
        server,
        id=st.sampled_from("abcdefgh"),
        warm=st.frozensets(st.sampled_from(["w", "v"])),
        foreign_runs=st.integers(0, 3),
        last_used=st.integers(0, 100),
    ),
    unique_by=lambda build: build.id,
)
ids = st.frozensets(st.sampled_from("abcdefgh"))


@given(candidates=servers, preferred=ids, excluded=ids, skipped=ids)
def test_chosen_server_is_the_best_fit(
    candidates: list[Member], preferred: frozenset[str], excluded: frozenset[str], skipped: frozenset[str]
) -> None:
    bucket = Bucket("w", preferred, excluded)

    def should_skip(client_id: str, _workflow_hash: str) -> bool:
        return client_id in skipped

    fitting = [candidate for candidate in candidates if fits(bucket, candidate.id, should_skip)]
    assert {candidate.id for candidate in fitting} == {candidate.id for candidate in candidates} - excluded - skipped
    chosen = choose(bucket, candidates, should_skip)
    if chosen is None:
        assert not fitting
        return
    assert chosen in fitting
    if chosen.id not in preferred:
        assert all(candidate.id not in preferred for candidate in fitting)
        if "w" not in chosen.warm:
            assert all("w" not in candidate.warm for candidate in fitting)
            assert chosen.foreign_runs == min(candidate.foreign_runs for candidate in fitting)


def test_most_recent_warm_server_is_chosen() -> None:
    a = server(id="a", warm=["v", "w"])
    b = server(id="b", warm=["w", "v"], last_used=9)
    assert choose(Bucket("w"), [a, b], skip_none) is b
    assert choose(Bucket("v"), [a, b], skip_none) is a


def test_server_with_the_cached_result_is_chosen_before_a_warm_one() -> None:
    a, b = server(id="a", warm=frozenset({"w"})), server(id="b", cache_key="this")
    assert choose(Bucket("w", same_as="this"), [a, b], skip_none) is b
    assert choose(Bucket("w"), [a, b], skip_none) is a
