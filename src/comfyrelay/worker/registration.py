"""Join a fleet, and explain refusals."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import structlog

from comfyrelay.errors import (
    ComfyRelayError,
    ConfigurationError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthorized,
)
from comfyrelay.protocol.worker import PROTOCOL, Registered, WouldRegister
from comfyrelay.worker.control import ControlPlane, retry_until_reachable
from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder

log = structlog.get_logger(__name__)

# A worker whose ComfyUI starts sooner registers only when it can run jobs.
QUICK_START_SECONDS = 3.0
# Pause before registering again with a full fleet or a taken name.
RETRY_SECONDS = 30.0
# How long a stopping process waits for the response to its registration.
ANSWER_SECONDS = 5.0


class Registrar:
    def __init__(
        self,
        settings: WorkerSettings,
        control: ControlPlane,
        state: StateFolder,
        *,
        imds: Imds | None = None,
    ) -> None:
        self._imds = imds
        self._settings = settings
        self._control = control
        self._state = state

    async def register(self, details: Mapping[str, Any], *, is_at_work: bool = False) -> bool:
        """Register. Returns false if this worker is revoked.

        Waits if waiting can help, and raises `ConfigurationError` if only the operator can help. Leases of an earlier
        process are requeued, unless this process `is_at_work` on some leases.
        """
        if not await self.deregister_earlier():
            return False
        registered = await retry_until_reachable(lambda: self._register(details), on_pause=_log_once())
        if registered.leases and not is_at_work:
            # The leases belong to an earlier process whose token is lost.
            await retry_until_reachable(lambda: self._control.deregister(reason="restart"), on_pause=_log_once())
            registered = await retry_until_reachable(lambda: self._register(details), on_pause=_log_once())
        log.info(
            "worker.registered",
            worker_id=self._control.worker_id,
            fleet=f"{self._settings.fleet_stage}/{self._settings.fleet_slug}",
            workflows=registered.workflows_assigned,
            protocol=min(PROTOCOL, registered.protocol),
        )
        if self._control.version_difference is not None and registered.protocol != PROTOCOL:
            log.warning("worker.other_version", why=self._control.version_difference)
        return True

    async def deregister_earlier(self) -> bool:
        """Requeue leases that an earlier process did not record. Returns false if this worker is revoked."""
        if not self._control.token:
            return True
        try:
            await retry_until_reachable(lambda: self._control.deregister(reason="restart"), on_pause=_log_once())
        except Forbidden as error:
            # The worker is revoked. Keep the token in case an administrator restores the worker.
            log.warning("worker.forbidden", why=error.detail)
            return False
        except (Unauthorized, NotFound):
            pass
        self._control.token = ""
        self._state.delete_token()
        return True

    async def deregister(self, reason: str) -> None:
        await self._control.deregister(reason=reason)
        self._state.delete_token()

    def require_settings(self) -> None:
        """Raise `ConfigurationError` if required settings are missing."""
        if missing := missing_in(self._settings):
            raise ConfigurationError(" ".join(missing))

    async def check_settings(self, details: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` for an unknown secret or fleet. Ignores an unreachable control plane."""
        try:
            await self.dry_run(details)
        except (Unauthorized, NotFound) as error:
            raise ConfigurationError(explain(error, self._settings, self._control)) from None
        except ComfyRelayError as error:
            if isinstance(error, ConfigurationError):
                raise

    async def dry_run(self, details: Mapping[str, Any]) -> WouldRegister:
        """Return the result that registering would have, without registering."""
        return await self._control.check_registration(await self._proof(), self._details(details))

    async def _register(self, details: Mapping[str, Any]) -> Registered:
        logged = None
        while True:
            try:
                return await self._send(self._details(details))
            except (Unauthorized, NotFound) as error:
                raise ConfigurationError(explain(error, self._settings, self._control)) from None
            except (Forbidden, Conflict, InvalidInput) as error:
                if error.detail != logged:
                    log.warning("worker.registration_refused", why=explain(error, self._settings, self._control))
                logged = error.detail
            await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, details: Mapping[str, Any]) -> Registered:
        """Register once, shielded from cancellation: without the returned token, this process could not deregister."""
        proof = await self._proof()
        call = asyncio.ensure_future(self._control.register(proof, {**details, **self._key()}))
        try:
            return self._save_token(await asyncio.shield(call))
        except asyncio.CancelledError:
            with suppress(ComfyRelayError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    self._save_token(await call)
            raise

    def _key(self) -> dict[str, str]:
        try:
            return {"registration_key": self._state.registration_key()}
        except OSError as error:
            # A key that cannot be saved is useless.
            log.error("worker.key_not_saved", why=str(error))
            return {}

    def _save_token(self, registered: Registered) -> Registered:
        self._control.token = registered.token
        try:
            self._state.save_token(registered.token)
        except OSError as error:
            log.error("worker.token_not_saved", why=str(error))
        return registered

    async def _proof(self) -> dict[str, str]:
        """Return the fleet secret, or the identity document of this EC2 instance."""
        self.require_settings()
        if self._settings.fleet_secret:
            return {"X-Fleet-Secret": self._settings.fleet_secret}
        signed = await self._imds.identity() if self._imds is not None else None
        if signed is None:
            raise ConfigurationError(
                "FLEET_IDENTITY=aws, but this machine has no EC2 identity document: enable instance metadata, or set "
                "FLEET_SECRET."
            )
        return {"X-Instance-Identity": signed}

    def _details(self, details: Mapping[str, Any]) -> dict[str, Any]:
        all_details = {
            "fleet_slug": self._settings.fleet_slug,
            "stage": self._settings.fleet_stage,
            "display_name": self._settings.display_name,
            "workflow_slugs": self._settings.workflow_slugs or None,
            **details,
        }
        return {key: value for key, value in all_details.items() if value is not None}


def missing_in(settings: WorkerSettings) -> list[str]:
    """Return the missing settings, one sentence each."""
    missing = []
    if not settings.fleet_secret and settings.fleet_identity is None:
        missing.append(
            "FLEET_SECRET is not set: a worker needs it to join its fleet. On EC2, FLEET_IDENTITY=aws replaces it."
        )
    if not settings.fleet_slug:
        missing.append("FLEET_SLUG is not set: set the fleet that this worker joins.")
    return missing


def explain(error: ComfyRelayError, settings: WorkerSettings, control: ControlPlane) -> str:
    """Explain why the control plane refuses this worker, and what the operator can do."""
    fleet = f"{settings.fleet_stage} fleet {settings.fleet_slug!r}"
    match error:
        case Unauthorized():
            with_secret = f"the fleet secret: FLEET_SECRET must be one of its secrets for {settings.fleet_stage}."
            with_document = f"the identity of this instance: {error.detail}"
            return f"{control.url} does not accept {with_secret if settings.fleet_secret else with_document}"
        case NotFound():
            return f"{control.url} has no {fleet}: check FLEET_SLUG and FLEET_STAGE, or create the fleet first."
        case Forbidden():
            return f"{error.detail} Raise its limit, or wait until a worker leaves."
        case Conflict():
            return (
                f"{error.detail} Another worker has the name {control.worker_id!r}: set another WORKER_ID. If it was "
                "this one and its data folder is lost, it can register again once the old one counts as lost."
            )
        case InvalidInput():
            return _explain_input(error, control)
        case _:
            return error.detail


def _explain_input(error: InvalidInput, control: ControlPlane) -> str:
    # The refusal of a worker that is too old says so.
    if "protocol" in error.errors:
        return error.errors["protocol"]
    fields = [f"{field}: {problem}" for field, problem in error.errors.items()]
    return " ".join(filter(None, [control.version_difference, error.detail, *fields]))


def _log_once() -> Callable[[ComfyRelayError, float], None]:
    logged: set[str] = set()

    def log_pause(error: ComfyRelayError, _seconds: float) -> None:
        if error.detail not in logged:
            logged.add(error.detail)
            log.warning("worker.control_plane_unreachable", why=error.detail)

    return log_pause


async def wait_online(
    online: asyncio.Event, *, prepare: Coroutine[Any, Any, None], report: Coroutine[Any, Any, None]
) -> None:
    """Wait until a server is usable. During a longer wait, first run `prepare`, then `report`."""
    try:
        async with asyncio.timeout(QUICK_START_SECONDS):
            await online.wait()
    except TimeoutError:
        await prepare
        reporting, waiting = asyncio.create_task(report), asyncio.create_task(online.wait())
        try:
            await asyncio.wait({reporting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if reporting.done():
                # Raises an error if the worker may not register. A desk's worker reports nothing.
                reporting.result()
            await waiting
        finally:
            for task in (reporting, waiting):
                task.cancel()
            await asyncio.gather(reporting, waiting, return_exceptions=True)
    finally:
        prepare.close()
        report.close()
