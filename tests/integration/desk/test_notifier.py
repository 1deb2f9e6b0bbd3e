"""The notifier notifies of some outcomes, sends to the chosen services, and never shows a secret of a URL."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from comfyrelay.desk.notifications.notifier import Notifier, without_secrets
from comfyrelay.desk.notifications.rules import Notification, NotificationRules, NotifiedBatch, NotifiedJob
from comfyrelay.http_client import listen
from comfyrelay.protocol.desk import NotificationEvent
from tests.support.webhook_receiver import open_receiver

START = datetime(2026, 1, 1, tzinfo=UTC)
NOTIFICATION = Notification(event=NotificationEvent.COMPLETED, title="cat is done", body="Its output is ready.")
SECRETS = {
    "json://ada:hunter22@127.0.0.1:1/hooks/s3cr3tpath?+X-Key=headersecret": ["hunter22", "s3cr3tpath", "headersecret"],
    "jsons://127.0.0.1:1/p%40ss%2Fword/": ["p@ss/word", "p%40ss%2Fword"],
    "tgram://123456789:abcdefghijklmnopqrstuvwxyzABCDEFGH/not a chat/": [
        "abcdefghijklmnopqrstuvwxyzABCDEFGH",
        "123456789",
    ],
    "tgram://brokentoken": ["brokentoken"],
    "slack://xoxbsecret": ["xoxbsecret"],
    "mailto://ada:pa55word@127.0.0.1:1": ["pa55word"],
    "nonsense://whatever-secret": ["whatever-secret"],
    "justapassword": ["justapassword"],
    "json://[broken:secretport": ["secretport"],
}


def ended(status: str = "completed", *, seconds: float = 0, error: str | None = None) -> NotifiedJob:
    return NotifiedJob(name="cat", status=status, completed_at=START + timedelta(seconds=seconds), error=error)


def batch(**counts: int) -> NotifiedBatch:
    return NotifiedBatch(id="b", name="boats", counts=counts)


def titles(
    rules: NotificationRules,
    job: NotifiedJob,
    batch: NotifiedBatch | None = None,
    *,
    active: int = 1,
    seen: float = 100,
) -> list[str]:
    found = rules.of_end(job, batch, active=active, read_at=START + timedelta(seconds=seen))
    return [notification.title for notification in found]


# Outcomes that cause a notification


def test_single_job_notifies_unless_it_was_canceled() -> None:
    rules = NotificationRules()
    assert titles(rules, ended()) == ["cat is done"]
    [failure] = rules.of_end(ended("failed", error="Too dark."), None, active=1, read_at=START)
    assert (failure.event, failure.title, failure.body) == (NotificationEvent.FAILED, "cat failed", "Too dark.")
    assert titles(rules, ended("canceled")) == []


def test_batch_notifies_once_when_its_last_item_ends() -> None:
    rules = NotificationRules()
    assert titles(rules, ended(seconds=1), batch(completed=1, queued=2)) == []
    assert titles(rules, ended(seconds=2), batch(completed=2, paused=1)) == []
    [done] = rules.of_end(ended(seconds=3), batch(completed=3), active=1, read_at=START + timedelta(seconds=5))
    assert (done.event, done.title, done.body) == (NotificationEvent.COMPLETED, "boats is done", "3 completed.")
    assert done.batch_id == "b"


def test_items_that_end_together_notify_once() -> None:
    rules = NotificationRules()
    assert titles(rules, ended(seconds=1), batch(completed=2), seen=3) == ["boats is done"]
    assert titles(rules, ended(seconds=2), batch(completed=2), seen=4) == []


def test_batch_with_retried_items_notifies_again() -> None:
    rules = NotificationRules()
    both = batch(completed=1, failed=1)
    assert titles(rules, ended("failed", seconds=1), both, seen=2) == ["boats is done, but 1 failed"]
    assert titles(rules, ended("failed", seconds=9), both, seen=10) == ["boats is done, but 1 failed"]


def test_held_batch_notifies_once_per_reason() -> None:
    rules = NotificationRules()

    def texts(held_by: str, *, seconds: float) -> list[str]:
        now = NotifiedBatch(id="b", name="boats", counts={"failed": 1, "paused": 3}, held="Held: why.", held_by=held_by)
        found = rules.of_end(
            ended("failed", seconds=seconds), now, active=0, read_at=START + timedelta(seconds=seconds)
        )
        return [f"{notification.title}: {notification.body}" for notification in found]

    assert texts("first", seconds=1) == ["boats is held: Held: why."]
    # a running item failed for the same reason
    assert texts("first", seconds=2) == []
    assert texts("second", seconds=3) == ["boats is held: Held: why."]


def test_canceled_batch_does_not_notify() -> None:
    assert titles(NotificationRules(), ended("canceled"), batch(canceled=3)) == []


def test_empty_queue_notifies_once_until_another_job_ends() -> None:
    rules = NotificationRules()
    assert titles(rules, ended("canceled", seconds=1), active=1, seen=1) == []
    assert titles(rules, ended("canceled", seconds=2), active=0, seen=4) == ["The queue is empty"]
    assert titles(rules, ended("canceled", seconds=3), active=0, seen=5) == []
    assert titles(rules, ended("canceled", seconds=9), active=0, seen=9) == ["The queue is empty"]


def test_paused_queue_notifies_its_held_jobs_when_nothing_runs() -> None:
    rules = NotificationRules()
    [_, paused] = rules.of_end(ended(seconds=1), None, active=3, held=3, read_at=START + timedelta(seconds=1))
    assert (paused.event, paused.title) == (NotificationEvent.QUEUE_EMPTY, "The queue is paused")
    assert paused.body == "The queue is paused. It holds 3 jobs. Resume it to continue. The last job was cat."
    [_] = rules.of_end(ended(seconds=2), None, active=3, read_at=START + timedelta(seconds=2))


# Receivers


async def test_webhook_receives_title_and_body() -> None:
    async with open_receiver() as receiver:
        failures = await Notifier([receiver.url.replace("http", "json")]).notify(NOTIFICATION)
    assert failures == []
    [(_, body)] = receiver.received
    assert '"title": "cat is done"' in body
    assert '"message": "Its output is ready."' in body


async def test_only_the_chosen_events_notify() -> None:
    async with open_receiver() as receiver:
        notifier = Notifier([receiver.url.replace("http", "json")], events=[NotificationEvent.FAILED])
        await notifier.notify(NOTIFICATION)
        assert receiver.received == []
        await notifier.notify(Notification(event=NotificationEvent.FAILED, title="cat failed", body="Too dark."))
    assert len(receiver.received) == 1


async def test_batch_notification_ignores_the_event_filter() -> None:
    async with open_receiver() as receiver:
        urls = [receiver.url.replace("http", "json")]
        notifier = Notifier(urls, events=[NotificationEvent.COMPLETED])
        of_batch = Notification(
            event=NotificationEvent.FAILED, title="boats is done, but 1 failed", body="…", batch_id="b"
        )
        await notifier.notify(of_batch, urls)
        await notifier.notify(
            Notification(event=NotificationEvent.QUEUE_EMPTY, title="The queue is empty", body="…"), urls
        )
        # a target in both lists is notified once
        await notifier.notify(
            Notification(event=NotificationEvent.COMPLETED, title="boats is done", body="…", batch_id="b"), urls
        )
    assert len(receiver.received) == 2


# Failures


async def test_refused_and_unreachable_targets_do_not_block_other_targets() -> None:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    async with open_receiver() as receiver, open_receiver() as refusing:
        refusing.statuses = [404]
        urls = [target.url.replace("http", "json") for target in (refusing, receiver)]
        failures = await Notifier().send("a", "b", [f"json://127.0.0.1:{port}", *urls])
    unreachable, refused = failures
    assert "onnection error" in unreachable.why
    assert "404" in refused.why
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("foo://x", "No service has this kind of URL."),
        ("telegram", "No service has this kind of URL."),
        ("tgram://x", "Use the form tgram://{bot_token}"),
        ("slack://bad", "This is not a complete URL of Slack."),
    ],
)
async def test_invalid_url_error_names_the_missing_part(url: str, why: str) -> None:
    [failure] = await Notifier().send("a", "b", [url])
    assert why in failure.why


async def test_desktop_notification_is_sent_or_names_its_requirement() -> None:
    for failure in await Notifier().send("a", "b", ["desktop://"]):
        assert failure.url == "desktop://"
        assert failure.why


@pytest.mark.parametrize("url", SECRETS)
async def test_secrets_of_a_url_are_neither_shown_nor_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    [failure] = await Notifier([url]).notify(NOTIFICATION)
    logged = [record.getMessage() for record in caplog.records]
    for secret in SECRETS[url]:
        for shown in (failure.url, failure.why, repr(failure), without_secrets(url), *logged):
            assert secret not in shown


async def test_refused_notification_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP library under apprise logs the path of every answered request."""
    caplog.set_level(logging.DEBUG)
    async with open_receiver() as refusing:
        refusing.statuses = [404]
        url = refusing.url.replace("http://", "json://ada:hunter22@").replace("/hook", "/hook?+X-Key=headersecret")
        [failure] = await Notifier([url]).notify(NOTIFICATION)
        assert len(refusing.received) == 1
    assert "404" in failure.why
    # the receiver runs in the same process and logs its requests
    logged = " ".join(record.getMessage() for record in caplog.records if not record.name.startswith("aiohttp"))
    assert "/hook" not in logged
    assert "hunter22" not in logged
    assert "headersecret" not in logged
