"""List the alert rules and test each of them."""

from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.server.admin.router import admin_router, changes_nothing
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import SlugInPath
from comfyrelay.services.operations.alerts import shown

router = admin_router("/alerts")


@router.get("")
async def list_alert_rules(context: ContextOf) -> Answer[Items[wire.AlertRuleView]]:
    """List the alert rules of this server, with their receivers and the last alert. URLs are shown without secrets."""
    alerts = context.engine.operations.alerts
    items = [
        wire.AlertRuleView(
            name=name,
            urls=[shown(url) for url in rule.urls],
            quiet_minutes=rule.quiet_minutes,
            last_sent_at=alerts.states[name].last_sent_at,
            failures=dict(alerts.states[name].failures),
        )
        for name, rule in alerts.rules.items()
    ]
    return Answer(data=Items(items=items))


@router.post("/{name}/test", responses=error_responses(404, 422))
@changes_nothing
async def test_alert_rule(name: SlugInPath, context: ContextOf) -> Answer[wire.AlertTest]:
    """Send a test alert to all receivers of a rule. `failures` maps each receiver that was not reached to the
    reason."""
    failures = await context.engine.operations.alerts.send_test(name)
    message = "Some receivers were not reached." if failures else "The test was sent."
    return Answer(data=wire.AlertTest(failures=dict(failures)), message=message)
