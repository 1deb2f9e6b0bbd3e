"""A proxy in front of moto's server that adds the AWS behaviour moto lacks.

Instances boot on command (`let_boot`), capacity runs out (`have_capacity`), and calls are throttled or cut off. It
refuses a desired capacity above the maximum and filters with too many values, and keeps Spot quotas and scaling
activities. It also stores settings that moto drops: warm-up, changed capacity rebalance, and the subscribers of a
budget.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

SCALING = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
ElementTree.register_namespace("", SCALING)
_SERVICE = re.compile(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/")
_FILTER_VALUE = re.compile(r"Filter\.\d+\.Value\.\d+")
NO_CAPACITY = (
    "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available that matches "
    "your request. Launching EC2 instance failed."
)
OVER_QUOTA = (
    "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded. Launching EC2 "
    "instance failed."
)
# Features that moto or some of its responses lack.
STORED_SETTINGS = ("DefaultInstanceWarmup", "CapacityRebalance")

Answer = tuple[int, str, bytes]


class Proxy:
    def __init__(self, moto_url: str) -> None:
        self._moto = urlsplit(moto_url).netloc
        self._lock = threading.RLock()
        self.reset()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if proxy.is_cut_off:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, kind, content = proxy.answer(self.path, dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def reset(self) -> None:
        """Reset the proxy, but not moto."""
        # the number of calls by operation
        self.calls: Counter[str] = Counter()
        self.throttled = 0
        self.is_cut_off = False
        # vCPU quotas by code; other quotas have AWS's default
        self.quotas: dict[str, float] = {}
        self.default_quota = 0.0
        self._booted: set[str] = set()
        self._capacity: dict[str, tuple[int, str | None]] = {}
        self._desired: dict[str, int] = {}
        self._max: dict[str, int] = {}
        self._settings: dict[str, dict[str, str]] = {}
        self._activities: dict[str, list[tuple[str, str]]] = {}
        self._subscribers: dict[str, list[dict[str, Any]]] = {}

    @contextmanager
    def serving(self) -> Iterator["Proxy"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def let_boot(self, group: str) -> None:
        """Put current and future instances in service."""
        with self._lock:
            self._booted.add(group)

    def have_capacity(self, group: str, machines: int, *, why: str | None = NO_CAPACITY) -> None:
        """Limit the capacity; without a reason, the group keeps waiting for capacity."""
        with self._lock:
            self._capacity[group] = (machines, why)

    def find_capacity(self, group: str) -> None:
        """Remove the limit and launch the pending instances."""
        with self._lock:
            self._capacity.pop(group, None)
            if (desired := self._desired.pop(group, None)) is not None:
                self._set_desired(group, desired)

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        found = _SERVICE.search(headers.get("Authorization", ""))
        service = found[1] if found else ""
        target = headers.get("X-Amz-Target", "").rpartition(".")[2]
        form = {name: values[0] for name, values in parse_qs(body.decode(), True).items()} if not target else {}
        operation = target or form.get("Action", "") or path.rpartition("/")[2]
        with self._lock:
            self.calls[operation] += 1
            if self.throttled:
                self.throttled -= 1
                return _error(service, "Throttling", "Rate exceeded", is_json=bool(target))
            values = Counter(name.split(".")[1] for name in form if _FILTER_VALUE.fullmatch(name))
            if service == "ec2" and any(count > 200 for count in values.values()):
                return _error(service, "FilterLimitExceeded", "The maximum number of filter values is 200.")
            if service == "servicequotas":
                return self._quota(operation, json.loads(body))
            if operation == "DescribeSubscribersForNotification":
                return self._budget_subscribers(json.loads(body))
            if service == "autoscaling" and (own := getattr(self, f"_{_snake(operation)}", None)) is not None:
                result: Answer = own(form, headers)
                return result
            if operation == "CreateBudget":
                request = json.loads(body)
                self._subscribers[request["Budget"]["BudgetName"]] = request["NotificationsWithSubscribers"]
            return self._forward(headers, body, path)

    def _create_auto_scaling_group(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        return self._store_settings(form, headers)

    def _update_auto_scaling_group(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        return self._store_settings(form, headers)

    def _delete_auto_scaling_group(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        group = form["AutoScalingGroupName"]
        for state in (self._desired, self._settings, self._activities):
            state.pop(group, None)
        # moto would give these activities to the next group with this name
        for describe, key, delete in (
            ("DescribePolicies", "PolicyName", "DeletePolicy"),
            ("DescribeLifecycleHooks", "LifecycleHookName", "DeleteLifecycleHook"),
        ):
            request = {"Version": "2011-01-01", "AutoScalingGroupName": group}
            found = self._forward(headers, urlencode({**request, "Action": describe}).encode())[2]
            for item in ElementTree.fromstring(found).iter(_tag(key)):
                self._forward(headers, urlencode({**request, "Action": delete, key: item.text or ""}).encode())
        return self._forward(headers, urlencode(form).encode())

    def _set_desired_capacity(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        group, desired = form["AutoScalingGroupName"], int(form["DesiredCapacity"])
        maximum = self._max.get(group, 0)
        if desired > maximum:
            text = f"New SetDesiredCapacity value {desired} is above max value {maximum} for the AutoScalingGroup."
            return _error("autoscaling", "ValidationError", text)
        self._desired.pop(group, None)
        existing = self._count(group, headers)
        available, why = self._capacity.get(group, (desired, None))
        launched = min(desired, max(existing, available))
        status, kind, content = self._forward(headers, urlencode({**form, "DesiredCapacity": launched}).encode())
        if status == 200:
            self._activities.setdefault(group, []).extend([("Successful", "")] * max(launched - existing, 0))
            if launched < desired:
                self._desired[group] = desired
                if why is not None:
                    self._activities[group].append(("Failed", why))
        self._headers = headers
        return status, kind, content

    def _terminate_instance_in_auto_scaling_group(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        instance_id = form["InstanceId"]
        for member in self._groups(headers).findall(f".//{_tag('AutoScalingGroups')}/{_tag('member')}"):
            if instance_id in [instance.text for instance in member.iter(_tag("InstanceId"))]:
                name = _text(member, "AutoScalingGroupName")
                if name in self._desired:
                    self._desired[name] -= 1
                return self._forward(headers, urlencode(form).encode())
        text = f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
        return _error("autoscaling", "ValidationError", text)

    def _describe_auto_scaling_groups(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        status, kind, content = self._forward(headers, urlencode(form).encode())
        if status != 200:
            return status, kind, content
        root = ElementTree.fromstring(content)
        for member in root.findall(f".//{_tag('AutoScalingGroups')}/{_tag('member')}"):
            name = _text(member, "AutoScalingGroupName")
            for key, value in self._settings.get(name, {}).items():
                found = member.find(_tag(key))
                (found if found is not None else ElementTree.SubElement(member, _tag(key))).text = value
            if name in self._desired:
                desired = member.find(_tag("DesiredCapacity"))
                assert desired is not None
                desired.text = str(self._desired[name])
            if name not in self._booted:
                for state in member.iter(_tag("LifecycleState")):
                    state.text = "Pending"
        return status, kind, ElementTree.tostring(root)

    def _put_scaling_policy(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        """Add the name that moto does not return."""
        status, kind, content = self._forward(headers, urlencode(form).encode())
        root = ElementTree.fromstring(content)
        result = root.find(_tag("PutScalingPolicyResult"))
        if status == 200 and result is not None and result.find(_tag("PolicyARN")) is None:
            name = f"arn:aws:autoscaling:eu-west-1:123456789012:scalingPolicy:1:policyName/{form['PolicyName']}"
            ElementTree.SubElement(result, _tag("PolicyARN")).text = name
        return status, kind, ElementTree.tostring(root)

    def _describe_scaling_activities(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        group = form["AutoScalingGroupName"]
        now = datetime.now(UTC).isoformat()
        members = "".join(
            f"<member><ActivityId>{group}-{number}</ActivityId><AutoScalingGroupName>{group}</AutoScalingGroupName>"
            f"<Description>Launching a new EC2 instance.</Description><Cause>a change of capacity</Cause>"
            f"<StartTime>{now}</StartTime><StatusCode>{code}</StatusCode><StatusMessage>{escape(text)}</StatusMessage>"
            "</member>"
            for number, (code, text) in reversed([*enumerate(self._activities.get(group, ()))])
        )
        return _xml(
            f'<DescribeScalingActivitiesResponse xmlns="{SCALING}"><DescribeScalingActivitiesResult>'
            f"<Activities>{members}</Activities></DescribeScalingActivitiesResult></DescribeScalingActivitiesResponse>"
        )

    def _quota(self, operation: str, request: Mapping[str, str]) -> Answer:
        code = request["QuotaCode"]
        if operation == "GetServiceQuota" and code not in self.quotas:
            return _error("servicequotas", "NoSuchResourceException", "There is no such quota.", is_json=True)
        value = self.quotas.get(code, self.default_quota)
        return 200, "application/x-amz-json-1.1", json.dumps({"Quota": {"QuotaCode": code, "Value": value}}).encode()

    def _budget_subscribers(self, request: Mapping[str, Any]) -> Answer:
        for entry in self._subscribers.get(request["BudgetName"], ()):
            if entry["Notification"] == request["Notification"]:
                found = {"Subscribers": entry["Subscribers"]}
                return 200, "application/x-amz-json-1.1", json.dumps(found).encode()
        return _error("budgets", "NotFoundException", "There is no such notification.", is_json=True)

    def _store_settings(self, form: dict[str, str], headers: Mapping[str, str]) -> Answer:
        group = form["AutoScalingGroupName"]
        if "MaxSize" in form:
            self._max[group] = int(form["MaxSize"])
        self._settings.setdefault(group, {}).update({key: form[key] for key in STORED_SETTINGS if key in form})
        return self._forward(headers, urlencode(form).encode())

    def _set_desired(self, group: str, desired: int) -> None:
        form = {"Action": "SetDesiredCapacity", "Version": "2011-01-01", "AutoScalingGroupName": group}
        self._set_desired_capacity({**form, "DesiredCapacity": str(desired)}, self._headers)

    def _count(self, group: str, headers: Mapping[str, str]) -> int:
        root = self._groups(headers, group)
        return len(root.findall(f".//{_tag('Instances')}/{_tag('member')}"))

    def _groups(self, headers: Mapping[str, str], name: str | None = None) -> ElementTree.Element:
        form = {"Action": "DescribeAutoScalingGroups", "Version": "2011-01-01"}
        if name is not None:
            form["AutoScalingGroupNames.member.1"] = name
        return ElementTree.fromstring(self._forward(headers, urlencode(form).encode())[2])

    def _forward(self, headers: Mapping[str, str], body: bytes, path: str = "/") -> Answer:
        connection = HTTPConnection(self._moto)
        forwarded = {name: value for name, value in headers.items() if name not in ("Host", "Content-Length")}
        connection.request("POST", path, body, forwarded)
        response = connection.getresponse()
        found = response.status, response.headers.get("Content-Type", ""), response.read()
        connection.close()
        return found


def _error(service: str, code: str, text: str, *, is_json: bool = False) -> Answer:
    if is_json:
        return 400, "application/x-amz-json-1.1", json.dumps({"__type": code, "message": text}).encode()
    error = f"<Error><Code>{code}</Code><Message>{escape(text)}</Message></Error>"
    if service == "ec2":
        return _xml(f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>", 400)
    return _xml(f"<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>", 400)


def _xml(text: str, status: int = 200) -> Answer:
    return status, "text/xml", text.encode()


def _tag(name: str) -> str:
    return f"{{{SCALING}}}{name}"


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(_tag(name)) or ""


def _snake(operation: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
