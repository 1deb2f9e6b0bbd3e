"""The twins: which rule each breaks, by what change of the source, and the tests that must notice."""

from dataclasses import dataclass

CONFORMANCE = "tests/conformance"
CHAOS = "tests/chaos"
API = "tests/api"
FLEET = "tests/fleet"


@dataclass(frozen=True, kw_only=True)
class Twin:
    """`old` occurs once in `file` (a path inside the package) and becomes `new`; `tests` must then fail."""

    name: str
    file: str
    old: str
    new: str
    # What pytest is called with: a file, and an expression that picks tests in it.
    tests: str
    only: str


TWINS = (
    Twin(
        name="no fence: any token speaks for a leased dispatch",
        file="domain/lifecycle.py",
        old="return dispatch.is_leased and dispatch.lease_token == lease_token",
        new="return dispatch.is_leased and bool(lease_token)",
        tests=f"{CONFORMANCE}/test_settle.py",
        only="sqlite and (wrong_token or token_of_another_dispatch)",
    ),
    Twin(
        name="no fence: any token extends a lease",
        file="store/central/dispatches.py",
        old="d.c.lease_token == r.c.lease_token, ",
        new="",
        tests=f"{CHAOS}/test_state_machine.py",
        only="sqlite and stale_heartbeat",
    ),
    Twin(
        name="an attempt is counted when it ends, not when it begins",
        file="domain/lifecycle.py",
        old="attempts=dispatch.attempts + 1,",
        new="attempts=dispatch.attempts,",
        tests=f"{CONFORMANCE}/test_reaper.py",
        only="sqlite and workers_always_die",
    ),
    Twin(
        name="a requeue costs an attempt",
        file="domain/lifecycle.py",
        old="unpenalised = max(0, dispatch.attempts - 1)",
        new="unpenalised = dispatch.attempts",
        tests=f"{CONFORMANCE}/test_settle.py",
        only="sqlite and requeued_for_ever",
    ),
    Twin(
        name="the reaper does not look again before it reaps",
        file="domain/lifecycle.py",
        old="if not dispatch.is_leased or dispatch.lease_expires_at is None or dispatch.lease_expires_at > now:",
        new="if not dispatch.is_leased or dispatch.lease_expires_at is None:",
        tests="tests/unit/test_lifecycle.py",
        only="has_not_expired",
    ),
    Twin(
        name="an expired lease ends at once, whoever waits",
        file="domain/lifecycle.py",
        old="return now < dispatch.lease_expires_at + grace and not (is_wanted and can_begin_anew)",
        new="return False",
        tests="tests/unit/test_lifecycle.py",
        only="late_lease",
    ),
    Twin(
        name="a late lease is kept from a worker that waits",
        file="domain/lifecycle.py",
        old="return now < dispatch.lease_expires_at + grace and not (is_wanted and can_begin_anew)",
        new="return now < dispatch.lease_expires_at + grace",
        tests=f"{CONFORMANCE}/test_reaper.py",
        only="sqlite and gets_its_job_as_soon",
    ),
    Twin(
        name="a late lease ends for a worker that could not run its job",
        file="domain/lifecycle.py",
        old="can_begin_anew = not dispatch.attempts_used_up and dispatch.pause_requested_at is None",
        new="can_begin_anew = True",
        tests="tests/unit/test_lifecycle.py",
        only="late_lease",
    ),
    Twin(
        name="any key registers a name again",
        file="services/fleet/workers.py",
        old="known is not None and key_hash is not None and known.registration_key_hash == key_hash",
        new="known is not None",
        tests=f"{CONFORMANCE}/test_workers.py",
        only="sqlite and without_its_key",
    ),
    Twin(
        name="a refund is not idempotent",
        file="store/tenant/ledger.py",
        old="    for tenant_id, amount in written:\n        sums",
        new="    for tenant_id, amount in [(each.tenant_id, each.amount) for each in entries]:\n        sums",
        tests=f"{CONFORMANCE}/test_ledger.py",
        only="sqlite and (refunding_gives_back or credit_counts_once)",
    ),
    Twin(
        name="the workflow filter is dropped (SQLite)",
        file="store/central/claims.py",
        old="       AND q.workflow_id IN (SELECT value FROM json_each(:workflow_ids))\n",
        new="       AND (SELECT count(*) FROM json_each(:workflow_ids)) >= 0\n",
        tests=f"{CONFORMANCE}/test_leasing.py",
        only="sqlite and workflow_they_are_not_assigned",
    ),
    Twin(
        name="the workflow filter is dropped (PostgreSQL)",
        file="store/central/claims.py",
        old="                   AND q.workflow_id = CAST(workflow.id AS bigint)\n",
        new="",
        tests=f"{CONFORMANCE}/test_leasing.py",
        only="postgresql and workflow_they_are_not_assigned",
    ),
    Twin(
        name="tokens are reserved without the wallet's lock",
        file="store/tenant/ledger.py",
        old="return select(token_wallets.c.balance).where(own).with_for_update()",
        new="return select(token_wallets.c.balance).where(own)",
        tests=f"{CONFORMANCE}/test_ledger.py",
        only="postgresql and both_spend_the_last_tokens",
    ),
    Twin(
        name="entries are applied whatever their version",
        file="domain/settlement.py",
        old="update.version == settled.job.dispatch_version + 1 and settled.job.status not in TERMINAL_JOB",
        new="settled.job.status not in TERMINAL_JOB",
        tests=f"{CONFORMANCE}/test_settle.py",
        only="sqlite and (out_of_order or doubled)",
    ),
    Twin(
        name="a decision leaves no entry in the outbox",
        file="services/queue/decisions.py",
        old="entries=await outbox.post(tx, _updates(decisions, now) if post else {}),",
        new="entries=[OutboxEntry(id=0, db_pool=pool, updates=of) for pool, of in _updates(decisions, now).items()],",
        tests=f"{CHAOS}/test_crashes.py",
        only="sqlite and settle and after_commit and complete",
    ),
    Twin(
        name="a submission leaves nothing in the outbox",
        file="services/jobs/accept.py",
        old="submission=await outbox.submit(tx, [job.id for job in new])",
        new="submission=Submission(id=0, job_ids=[job.id for job in new])",
        tests=f"{CHAOS}/test_crashes.py",
        only="sqlite and (submit.job-after_commit-submit-1 or submit.enqueue-before_commit-submit-1)",
    ),
    Twin(
        name="a new lease has the old epoch",
        file="domain/lifecycle.py",
        old="epoch=dispatch.epoch + 1,",
        new="epoch=dispatch.epoch,",
        tests=f"{CONFORMANCE}/test_leasing.py",
        only="sqlite and counts_an_attempt",
    ),
    Twin(
        name="a cancel that was asked for is forgotten at a requeue",
        file="domain/lifecycle.py",
        old="        return _canceled(dispatch, now, began_at=began_at)\n    unpenalised",
        new="        pass\n    unpenalised",
        tests=f"{CONFORMANCE}/test_control.py",
        only="sqlite and requeue_after_a_cancel",
    ),
    Twin(
        name="prefetches are served before idle workers",
        file="domain/routing.py",
        old="""\
    for ask in waiting:
        serve(ask, min(ask.limit, ask.free_slots), is_prefetch=False)
    for ask in waiting:
        serve(""",
        new="""\
    for ask in waiting:
        serve(ask, min(ask.limit, ask.free_slots), is_prefetch=False)
        serve(""",
        tests=f"{CONFORMANCE}/test_leasing.py",
        only="sqlite and idle_worker_is_served",
    ),
    Twin(
        name="the idempotency key is not looked up again under the lock",
        file="services/jobs/submit.py",
        old="""\
            if known is not None:
                return known, None
            await self._accept.check_limit(tx, request.tenant_id, request.user_id)
""",
        new="""\
            await self._accept.check_limit(tx, request.tenant_id, request.user_id)
""",
        tests=f"{CONFORMANCE}/test_submit.py",
        only="one_key_at_the_same_time",
    ),
    Twin(
        name="an entry leaves the outbox although it could not be applied",
        file="services/outbox/applying.py",
        old="if all(update.version <= versions.get(update.job_id, update.version) for update in entry.updates)",
        new="if entry.updates",
        tests=f"{CONFORMANCE}/test_settle.py",
        only="sqlite and out_of_order",
    ),
    Twin(
        name="the reconciler takes any entry for an explanation",
        file="services/operations/reconcile.py",
        old="has_pending_update=(job.id, job.dispatch_version + 1) in pending,",
        new="has_pending_update=any(job.id == job_id for job_id, _ in pending),",
        tests=f"{CHAOS}/test_reconcile.py",
        only="sqlite and first_of_two_updates",
    ),
    Twin(
        name="a terminal job still listens",
        file="domain/lifecycle.py",
        old="    if dispatch.is_terminal or dispatch.cancel_requested_at is not None:\n        return None\n",
        new="    if dispatch.cancel_requested_at is not None:\n        return None\n",
        tests=f"{CONFORMANCE}/test_control.py",
        only="sqlite and completed_cannot_be_canceled",
    ),
    Twin(
        name="an output is not copied before it counts",
        file="services/queue/outputs.py",
        old="copied = await self._objects.copy(upload, copy)",
        new="copy, file_id, copied = upload, None, found  # type: ignore[assignment]",
        tests=f"{API}/test_outputs.py",
        only="sqlite and after_completion",
    ),
    Twin(
        name="the hash of an output is taken as told",
        file="services/queue/outputs.py",
        old="if digest != told.sha256:",
        new="if digest == told.sha256 is None:",
        tests=f"{API}/test_outputs.py",
        only="sqlite and another_hash",
    ),
    Twin(
        name="the upload is gone before the verdict is written",
        file="services/queue/outputs.py",
        old="            settlement = await self._settled(replace(report, output=taken.output))\n",
        new="            await self._remove(handed.upload_path)\n"
        "            settlement = await self._settled(replace(report, output=taken.output))\n",
        tests=f"{API}/test_outputs.py",
        only="sqlite and after_a_crash and before",
    ),
    Twin(
        name="nobody looks for what came after the end of a job",
        file="services/outbox/applying.py",
        old="for each in ended if each.leases]",
        new="for each in ended if each.leases > 1]",
        tests=f"{API}/test_outputs.py",
        only="sqlite and after_completion",
    ),
    Twin(
        name="an image is decoded whatever its header claims",
        file="storage/media.py",
        old="            check_pixels(claim.width, claim.height, self._limits)\n",
        new="",
        tests="tests/storage/test_bombs.py",
        only="before_anything_is_decoded",
    ),
    Twin(
        name="looking into media takes any memory",
        file="storage/probe_child.py",
        old="        processes.limit_memory(own_bytes + limits.max_memory_bytes)\n",
        new="",
        tests="tests/storage/test_bombs.py",
        only="more_memory_than_allowed",
    ),
    Twin(
        name="a worker is given jobs that need what it lacks",
        file="store/central/claims.py",
        old="q.workflow_hash IN (SELECT value FROM json_each(:lacking))",
        new="q.workflow_hash IN (SELECT '' FROM json_each(:lacking))",
        tests=f"{CONFORMANCE}/test_missing.py",
        only="sqlite and not_given_to_whoever_lacks",
    ),
    Twin(
        name="what a worker does not report counts as missing",
        file="services/catalogue/fitting.py",
        old="if each.fit is Fit.LACKING}",
        new="if each.fit is not Fit.ABLE}",
        tests=f"{CONFORMANCE}/test_missing.py",
        only="sqlite and does_not_say",
    ),
    Twin(
        name="a worker that changes is not held against what waits",
        file="services/fleet/workers.py",
        old="                await note_gaps(tx, worker.worker_id, capabilities, held)\n",
        new="                pass\n",
        tests=f"{CONFORMANCE}/test_missing.py",
        only="sqlite and gets_what_it_lacked",
    ),
    Twin(
        name="needs are forgotten while jobs wait for them",
        file="store/central/gaps.py",
        old="gone = [each for each in await tx.scalars(old) if each not in unfinished]",
        new="gone = [each for each in await tx.scalars(old) if unfinished is not None]",
        tests=f"{CONFORMANCE}/test_missing.py",
        only="sqlite and forgotten_and_learned_again",
    ),
    Twin(
        name="items with other nodes and models are held, too",
        file="domain/lifecycle.py",
        old="if dispatch.workflow_hash != workflow_hash:",
        new="if not workflow_hash:",
        tests=f"{CONFORMANCE}/test_holds.py",
        only="sqlite and other_models_go_on",
    ),
    Twin(
        name="the value of one item holds a batch that runs",
        file="domain/holding.py",
        old="(code in _WRONG_GRAPH and not has_completed)",
        new="(code in _WRONG_GRAPH)",
        tests=f"{CONFORMANCE}/test_holds.py",
        only="sqlite and shows_that_it_runs",
    ),
    Twin(
        name="a resume leaves out what held the batch",
        file="services/jobs/batches.py",
        old="failed += [job for job in await _failed(tx, tenant_id, batch_id) if job.id in causes]",
        new="failed += [job for job in await _failed(tx, tenant_id, batch_id) if job.id in causes and not held]",
        tests=f"{CONFORMANCE}/test_holds.py",
        only="sqlite and one_resume_runs",
    ),
    Twin(
        name="burst: the limit of money is forgotten",
        file="domain/scaling/burst.py",
        old="self._spent + cost <= self._money.limit_micros",
        new="True",
        tests="tests/unit/test_burst.py",
        only="no_limit_of_money",
    ),
    Twin(
        name="burst: it needs no limit of money",
        file="domain/scaling/burst.py",
        old=" or not purse.has_limit(job)",
        new="",
        tests="tests/unit/test_burst.py",
        only="without_a_limit",
    ),
    Twin(
        name="burst: two servers spend at the same time",
        file="services/scaling/burst.py",
        old="        await bursts.lock(tx)\n",
        new="",
        tests=f"{CONFORMANCE}/test_burst.py",
        only="whoever_is_spending",
    ),
    Twin(
        name="burst: a job goes again and again",
        file="domain/lifecycle.py",
        old="dispatch.provider != Provider.SELF_HOSTED or dispatch.has_burst",
        new="dispatch.provider != Provider.SELF_HOSTED",
        tests="tests/unit/test_burst.py",
        only="goes_to_the_cloud_once",
    ),
    Twin(
        name="burst: what a run cost is not written down",
        file="domain/lifecycle.py",
        old="cost_micros=move.before.cost_micros + micros",
        new="cost_micros=move.before.cost_micros",
        tests=f"{CONFORMANCE}/test_burst.py",
        only="sqlite and written_to_the_job_once",
    ),
    Twin(
        name="scaling: a booting machine counts as nothing",
        file="domain/scaling/staffing.py",
        old="        return ((max(0.0, machine.boot_seconds_left), machine.slots),)",
        new="        return ()",
        tests=f"{FLEET}/test_decide.py",
        only="booting_machine_is_capacity or boot_that_is_nearly_over",
    ),
    Twin(
        name="scaling: the busy machine is ended",
        file="domain/scaling/staffing.py",
        old="    return machine.state is MachineState.READY and machine.leases == 0",
        new="    return machine.state in (MachineState.READY, MachineState.BUSY)",
        tests=f"{FLEET}/test_decide.py",
        only="busy_machine_is_never_ended",
    ),
    Twin(
        name="scaling: the limit of money is forgotten",
        file="domain/scaling/limits.py",
        old="        bounds.append((affordable, text))",
        new="        bounds.append((limits.max_machines, text))",
        tests=f"{FLEET}/test_decide.py",
        only="no_more_money",
    ),
    Twin(
        name="local: the limit of machines is not looked at",
        file="fleet/providers/local.py",
        old="if len(there) >= fleet.max_machines:",
        new="if len(there) < 0:",
        tests=f"{FLEET}/test_local.py",
        only="never_more",
    ),
    Twin(
        name="command: the script is asked for keys that are there",
        file="fleet/providers/command.py",
        old="if each.key not in {machine.key for machine in there}]",
        new="]",
        tests=f"{FLEET}/test_command.py",
        only="would_make_a_second",
    ),
    Twin(
        name="the worker of a machine that is gone passes for one that is free",
        file="services/scaling/machines.py",
        old="            await self._workers.drain_in(tx, by_key[key].worker, fleet_id=fleet.id)\n",
        new="            pass\n",
        tests=f"{FLEET}/test_lost_machines.py",
        only="sqlite and gone",
    ),
    Twin(
        name="aws: an order lowers what is there",
        file="fleet/providers/aws/provider.py",
        old='wanted = max(min(total, most), group["DesiredCapacity"])\n        if wanted > group["DesiredCapacity"]:',
        new='wanted = min(total, most)\n        if wanted != group["DesiredCapacity"]:',
        tests=f"{FLEET}/aws/test_provider.py",
        only="smaller_total",
    ),
    Twin(
        name="aws: an instance of another group is ended",
        file="fleet/providers/aws/provider.py",
        old="            if each not in there:\n                continue\n",
        new="",
        tests=f"{FLEET}/aws/test_provider.py",
        only="do_not_see_each_others",
    ),
    Twin(
        name="aws: what was refused is still wanted",
        file="fleet/providers/aws/provider.py",
        old="        if missing:\n            await self._set_desired(fleet, _counted(group))\n",
        new="",
        tests=f"{FLEET}/aws/test_provider.py",
        only="no_longer_wanted and capacity",
    ),
    Twin(
        name="aws: what is as it should be is made again",
        file="fleet/aws/provision.py",
        old='if latest.get("VersionDescription") == mark:',
        new='if latest.get("VersionDescription") == "":',
        tests=f"{FLEET}/aws/test_provision.py",
        only="nothing_the_second",
    ),
)
