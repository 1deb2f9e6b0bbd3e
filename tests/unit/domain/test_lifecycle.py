from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus, JobEventType, Outcome, PauseMode
from comfyrelay.errors import Fault
from tests.support.world import START as NOW
from tests.support.world import queued_dispatch

MINUTE = timedelta(minutes=1)

Event = Callable[[Dispatch, datetime], Transition | None]

EVENTS: dict[str, Event] = {
    "complete": lambda d, now: lifecycle.complete(d, now=now),
    "fail (job)": lambda d, now: lifecycle.fail(d, fault=Fault.JOB, error="e", now=now),
    "fail (worker)": lambda d, now: lifecycle.fail(d, fault=Fault.WORKER, error="e", now=now),
    "fail (interrupted)": lambda d, now: lifecycle.fail(d, fault=Fault.INTERRUPTED, error="e", now=now),
    "requeue": lambda d, now: lifecycle.requeue(d, reason="r", now=now),
    "defer": lambda d, now: lifecycle.defer(d, reason="r", now=now, base=MINUTE, longest=5 * MINUTE),
    "expire": lambda d, now: lifecycle.expire(d, now=now, grace=timedelta(0), has_idle_worker=False),
    "fail_exhausted": lambda d, now: lifecycle.fail_exhausted(d, now=now),
    "fail permanently": lambda d, now: lifecycle.fail_permanently(d, error="e", now=now),
    "cancel": lambda d, now: lifecycle.cancel(d, now=now),
    "pause after": lambda d, now: lifecycle.pause(d, mode=PauseMode.AFTER, now=now),
    "pause now": lambda d, now: lifecycle.pause(d, mode=PauseMode.NOW, now=now),
    "resume": lambda d, now: lifecycle.resume(d, now=now),
    "priority": lambda d, _: lifecycle.set_priority(d, priority=7),
}


def lease(dispatch: Dispatch, now: datetime = NOW) -> Dispatch:
    return lifecycle.lease(
        dispatch,
        worker_id="w",
        lease_token=f"token-{dispatch.epoch + 1}",
        request_id=None,
        is_prefetch=False,
        ttl=15 * MINUTE,
        now=now,
    ).after


def leased(**values: object) -> Dispatch:
    return lease(queued_dispatch())._replace(**values)  # type: ignore[arg-type]


def after(transition: Transition | None) -> Dispatch:
    assert transition is not None
    return transition.after


class TestComplete:
    def test_complete_ends_the_lease_and_measures_the_duration(self) -> None:
        done = after(lifecycle.complete(leased(), now=NOW + MINUTE))
        assert (done.status, done.finished_at, done.duration_seconds) == ("completed", NOW + MINUTE, 60)
        assert (done.lease_token, done.worker_id, done.leased_at, done.lease_expires_at) == (None, None, None, None)

    @pytest.mark.parametrize(("late", "seconds"), [(None, 60), (20.0, 40), (0.0, 60), (3600.0, 0)])
    def test_duration_of_a_prefetched_job_is_its_run_within_the_lease(self, late: float | None, seconds: float) -> None:
        now = NOW + MINUTE
        began_at = lifecycle.began_at(leased(), after_seconds=late, now=now)
        assert began_at == now - timedelta(seconds=seconds)
        assert after(lifecycle.complete(leased(), now=now, began_at=began_at)).duration_seconds == seconds

    def test_complete_wins_over_a_requested_cancel(self) -> None:
        canceling = after(lifecycle.cancel(leased(), now=NOW))
        assert after(lifecycle.complete(canceling, now=NOW)).status == "completed"

    def test_only_a_lease_completes(self) -> None:
        assert lifecycle.complete(queued_dispatch(), now=NOW) is None


class TestFail:
    def test_job_fault_is_final(self) -> None:
        transition = lifecycle.fail(leased(), fault=Fault.JOB, error="bad graph", now=NOW)
        assert (after(transition).status, after(transition).last_error) == ("failed", "bad graph")

    def test_worker_fault_is_retried_until_attempts_run_out(self) -> None:
        statuses = [
            after(lifecycle.fail(leased(attempts=n), fault=Fault.WORKER, error="e", now=NOW)).status for n in (1, 2, 3)
        ]
        assert statuses == ["queued", "queued", "failed"]

    def test_retry_may_be_delayed(self) -> None:
        transition = lifecycle.fail(leased(), fault=Fault.WORKER, error="e", now=NOW, retry_after=MINUTE)
        assert after(transition).available_at == NOW + MINUTE

    def test_interruption_returns_the_attempt(self) -> None:
        transition = lifecycle.fail(leased(attempts=3), fault=Fault.INTERRUPTED, error="spot", now=NOW)
        assert (after(transition).status, after(transition).attempts) == ("queued", 2)


class TestRequeue:
    def test_requeue_returns_the_attempt_and_keeps_the_epoch(self) -> None:
        back = after(lifecycle.requeue(leased(), reason="shutdown", now=NOW))
        assert (back.attempts, back.epoch, back.last_error) == (0, 1, "Requeued: shutdown")

    def test_requeue_keeps_rank_and_priority(self) -> None:
        back = after(lifecycle.requeue(leased(rank=42, priority=3), reason="shutdown", now=NOW))
        assert (back.rank, back.priority) == (42, 3)


class TestDefer:
    def test_defer_doubles_the_wait_up_to_a_limit(self) -> None:
        waits = []
        for deferrals in range(5):
            transition = EVENTS["defer"](leased(deferrals=deferrals), NOW)
            assert after(transition).deferrals == deferrals + 1
            waits.append((after(transition).available_at - NOW) / MINUTE)
        assert waits == [1, 2, 4, 5, 5]

    def test_defer_costs_no_attempt_and_has_its_own_outcome(self) -> None:
        transition = EVENTS["defer"](leased(), NOW)
        assert after(transition).attempts == 0
        assert transition is not None
        assert transition.lease_outcome is Outcome.DEFERRED


class TestExpire:
    def test_lease_expires_at_its_exact_end(self) -> None:
        end = NOW + 15 * MINUTE
        assert EVENTS["expire"](leased(), end - timedelta(microseconds=1)) is None
        assert after(EVENTS["expire"](leased(), end)).status == "queued"

    def test_expired_lease_uses_the_attempt(self) -> None:
        end = NOW + 15 * MINUTE
        assert after(EVENTS["expire"](leased(), end)).attempts == 1
        assert after(EVENTS["expire"](leased(attempts=3), end)).status == "failed"

    @pytest.mark.parametrize("has_idle_worker", [True, False])
    def test_unexpired_lease_stays_despite_idle_workers(self, has_idle_worker: bool) -> None:
        """A heartbeat may have arrived since the reaper's query."""
        held = leased()
        assert held.lease_expires_at is not None
        before = held.lease_expires_at - timedelta(microseconds=1)
        assert lifecycle.expire(held, now=before, grace=timedelta(0), has_idle_worker=has_idle_worker) is None

    @pytest.mark.parametrize("has_idle_worker", [True, False])
    @pytest.mark.parametrize("attempts", [1, 3])
    def test_late_lease_ends_for_an_idle_worker_or_after_the_grace(self, attempts: int, has_idle_worker: bool) -> None:
        late = NOW + 20 * MINUTE
        held = leased(attempts=attempts)
        ended = lifecycle.expire(
            held, now=late - timedelta(microseconds=1), grace=5 * MINUTE, has_idle_worker=has_idle_worker
        )
        assert (ended is not None) == (has_idle_worker and attempts < 3)
        assert lifecycle.expire(held, now=late, grace=5 * MINUTE, has_idle_worker=has_idle_worker) is not None


class TestRequests:
    @pytest.mark.parametrize("event", ["fail (job)", "fail (worker)", "fail (interrupted)", "requeue", "expire"])
    def test_requested_cancel_turns_every_other_end_into_canceled(self, event: str) -> None:
        canceling = after(lifecycle.cancel(leased(), now=NOW))
        assert canceling.status == "leased"
        assert after(EVENTS[event](canceling, NOW + 15 * MINUTE)).status == "canceled"

    @pytest.mark.parametrize("event", ["fail (worker)", "fail (interrupted)", "requeue", "expire"])
    @pytest.mark.parametrize("mode", list(PauseMode))
    def test_requested_pause_turns_every_requeue_into_paused(self, event: str, mode: PauseMode) -> None:
        pausing = after(lifecycle.pause(leased(), mode=mode, now=NOW))
        transition = EVENTS[event](pausing, NOW + 15 * MINUTE)
        assert after(transition).status == "paused"
        assert transition is not None
        assert transition.event_type is JobEventType.PAUSED

    def test_waiting_dispatch_is_cancelled_at_once(self) -> None:
        assert after(lifecycle.cancel(queued_dispatch(), now=NOW)).status == "canceled"
        assert after(lifecycle.cancel(queued_dispatch(status=DispatchStatus.PAUSED), now=NOW)).status == "canceled"

    def test_second_request_changes_nothing(self) -> None:
        for event in ("cancel", "pause now"):
            once = after(EVENTS[event](leased(), NOW))
            assert EVENTS[event](once, NOW) is None

    def test_pause_can_become_immediate_but_not_graceful_again(self) -> None:
        soft = after(EVENTS["pause after"](leased(), NOW))
        hard = after(EVENTS["pause now"](soft, NOW))
        assert hard.pause_mode == PauseMode.NOW
        assert EVENTS["pause after"](hard, NOW) is None

    @pytest.mark.parametrize("is_prefetch", [True, False])
    def test_pause_releases_prefetched_leases(self, is_prefetch: bool) -> None:
        pausing = after(EVENTS["pause after"](leased()._replace(is_prefetch=is_prefetch), NOW))
        assert (pausing.release_requested_at is not None) == is_prefetch

    def test_resume_withdraws_a_request(self) -> None:
        pausing = after(EVENTS["pause now"](leased(), NOW))
        resumed = after(lifecycle.resume(pausing, now=NOW))
        assert (resumed.status, resumed.pause_requested_at, resumed.pause_mode) == ("leased", None, None)

    def test_resumed_dispatch_keeps_its_start_time(self) -> None:
        paused = queued_dispatch(status=DispatchStatus.PAUSED, available_at=NOW + MINUTE)
        assert after(lifecycle.resume(paused, now=NOW)).available_at == NOW + MINUTE

    @pytest.mark.parametrize(
        ("cancel", "mode", "release", "word"),
        [
            (None, None, None, None),
            (None, PauseMode.AFTER, None, None),
            (None, PauseMode.AFTER, NOW, "release"),
            (None, PauseMode.NOW, NOW, "pause"),
            (NOW, PauseMode.NOW, NOW, "cancel"),
        ],
    )
    def test_strongest_stop_request_wins(
        self, cancel: datetime | None, mode: PauseMode | None, release: datetime | None, word: str | None
    ) -> None:
        request = lifecycle.stop_request(cancel_requested_at=cancel, pause_mode=mode, release_requested_at=release)
        assert request == word


class TestExhaust:
    @pytest.mark.parametrize("status", [DispatchStatus.QUEUED, DispatchStatus.PAUSED])
    def test_waiting_dispatch_without_attempts_fails(self, status: DispatchStatus) -> None:
        assert after(lifecycle.fail_exhausted(queued_dispatch(status=status, attempts=3), now=NOW)).status == "failed"

    def test_leased_dispatch_or_one_with_attempts_left_is_not_failed(self) -> None:
        assert lifecycle.fail_exhausted(queued_dispatch(attempts=2), now=NOW) is None
        assert lifecycle.fail_exhausted(leased(attempts=3), now=NOW) is None


@pytest.mark.parametrize("event", EVENTS)
def test_terminal_states_absorb_every_event(event: str) -> None:
    for status in sorted(TERMINAL_DISPATCH):
        ended = queued_dispatch(status=status, finished_at=NOW, attempts=3)
        assert EVENTS[event](ended, NOW + 60 * MINUTE) is None, status


steps = st.lists(st.sampled_from(["lease", *EVENTS]), max_size=40)


@given(steps=steps, max_attempts=st.integers(1, 4))
def test_any_sequence_of_events_keeps_the_invariants(steps: list[str], max_attempts: int) -> None:
    dispatch, now = queued_dispatch(max_attempts=max_attempts), NOW
    for step in steps:
        now += 5 * MINUTE
        before = dispatch
        if step == "lease":
            may_lease = before.status == DispatchStatus.QUEUED and not before.attempts_used_up
            dispatch = lease(before, now) if may_lease else before
        elif (transition := EVENTS[step](before, now)) is not None:
            assert transition.before == before
            assert transition.after.version == before.version + 1
            assert (transition.lease_outcome is not None) == (before.is_leased and not transition.after.is_leased)
            dispatch = transition.after
        assert dispatch.epoch >= before.epoch
        assert dispatch.version >= before.version
        assert 0 <= dispatch.attempts <= max_attempts
        assert dispatch.is_leased == (dispatch.lease_token is not None) == (dispatch.lease_expires_at is not None)
        assert dispatch.is_terminal == (dispatch.finished_at is not None)
        assert not before.is_terminal or dispatch == before
        if not dispatch.is_leased:
            assert (dispatch.cancel_requested_at, dispatch.pause_requested_at, dispatch.pause_mode) == (None,) * 3


@given(ends=st.lists(st.sampled_from(["expire", "fail (worker)"]), min_size=4, max_size=4), most=st.integers(1, 4))
def test_always_failing_dispatch_ends_after_exactly_its_attempts(ends: list[str], most: int) -> None:
    dispatch, now, leases = queued_dispatch(max_attempts=most), NOW, 0
    while not dispatch.is_terminal:
        dispatch = lease(dispatch, now)
        now += 15 * MINUTE
        dispatch = after(EVENTS[ends[leases]](dispatch, now))
        leases += 1
    assert (dispatch.status, leases) == ("failed", most)
