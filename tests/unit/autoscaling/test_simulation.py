"""The simulation: the decisions of the server in a simulated world of events."""

import json
from collections.abc import Sequence
from datetime import timedelta
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from comfyrelay.autoscaling.simulation.generator import Workload, generate, model_shares
from comfyrelay.autoscaling.simulation.plot import BOTTOM, HEIGHT, LEFT, LETTER, RIGHT, TOP, WIDTH, trade_off
from comfyrelay.autoscaling.simulation.simulator import Simulation, SimulationOutcome, scaling_of, simulate
from comfyrelay.autoscaling.simulation.summary import SimulationSummary, lower_bound, quantile, summary
from comfyrelay.autoscaling.simulation.traces import TraceRequest, from_history, parse_trace, read_trace
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.cli.fleet.app import fleet_app
from comfyrelay.cli.fleet.simulate import _print_summaries
from comfyrelay.domain.autoscaling.spec import Policy
from comfyrelay.errors import InvalidInput
from tests.support.full import full_only
from tests.support.observations import OURS
from tests.support.world import START

SPOT = WorldSettings(evictions_per_hour=2.0, refused_share=0.3)
HEADER = "arrival_seconds,duration_seconds,workflow,model\n"
runner = CliRunner()


def steady(every: float, *, hours: float, seconds: float = 30.0) -> Sequence[TraceRequest]:
    return [TraceRequest(number * every, seconds, "w", "m") for number in range(int(hours * 3600 / every))]


requests = st.lists(
    st.builds(
        TraceRequest,
        st.floats(0, 5_000),
        st.floats(0, 600),
        st.sampled_from(("a", "b")),
        st.sampled_from(("m", "n", "o")),
    ),
    min_size=1,
    max_size=20,
).map(sorted)


@given(requests, st.sampled_from(Policy), st.integers(0, 9), st.booleans())
@settings(max_examples=20, deadline=None)
def test_every_request_is_served_and_the_fleet_returns_to_zero(
    arriving: Sequence[TraceRequest], policy: Policy, seed: int, is_spot: bool
) -> None:
    """A simulation ends only after its last machine."""
    setting = SPOT if is_spot else WorldSettings()
    simulation = Simulation(arriving, scaling_of(policy, setting), setting, seed=seed)
    outcome = simulation.run()
    assert all(wait >= 0 for wait in outcome.waits)
    assert outcome.peak_machines <= setting.max_machines
    assert outcome.busy_ended == 0
    work = sum(request.duration_seconds for request in arriving)
    assert outcome.busy_seconds >= work - 1e-3
    assert outcome.machine_seconds >= outcome.busy_seconds - 1e-3


@pytest.mark.parametrize("policy", OURS)
# At 120 s, the reserve of `fast` is just below one more machine.
@pytest.mark.parametrize("every", [45.0, 120.0, *full_only(20.0, 150.0)])
def test_constant_load_launches_machines_once(policy: Policy, every: float) -> None:
    """No oscillation: machines are launched in the first of eight hours only."""
    short, long = (simulate(steady(every, hours=hours), policy) for hours in (1, 8))
    assert long.launches == short.launches


@pytest.mark.parametrize("policy", Policy)
def test_outcome_is_deterministic_per_seed(policy: Policy) -> None:
    arriving = generate(Workload(days=0.3), seed=4)
    assert simulate(arriving, policy, SPOT, seed=7) == simulate(arriving, policy, SPOT, seed=7)


def test_first_request_waits_for_the_boot_and_one_second_for_the_decision() -> None:
    setting = WorldSettings(boot_spread=0.0)
    for policy in OURS:
        assert simulate([TraceRequest(100.0, 30.0, "w", "m")], policy, setting).waits == [181.0]


def test_reference_policy_decides_after_two_minutes() -> None:
    """A job that is submitted just after a minute is published at the next minute, and acted upon a minute later."""
    outcome = simulate([TraceRequest(60.5, 30.0, "w", "m")], Policy.REFERENCE, WorldSettings(boot_spread=0.0))
    assert outcome.waits == [119.5 + 180.0]


def test_reference_policy_stops_machines_fifteen_minutes_after_the_last_job() -> None:
    outcome = simulate([TraceRequest(60.0, 30.0, "w", "m")], Policy.REFERENCE, WorldSettings(boot_spread=0.0))
    idle = outcome.machine_seconds - 180.0 - 52.0
    assert 900.0 <= idle <= 900.0 + 3 * 60.0


def test_last_machine_idles_as_long_as_a_restart_costs() -> None:
    outcome = simulate([TraceRequest(60.0, 30.0, "w", "m")], Policy.CHEAP, WorldSettings(boot_spread=0.0))
    assert 420.0 <= outcome.machine_seconds - 180.0 - 52.0 <= 420.0 + 20.0


def test_model_is_loaded_once_per_machine() -> None:
    setting = WorldSettings(boot_spread=0.0)
    same = [TraceRequest(0.0, 10.0, "w", "m"), TraceRequest(400.0, 10.0, "w", "m")]
    other = [same[0], same[1]._replace(model="n")]
    assert (
        simulate(other, Policy.CHEAP, setting).busy_seconds - simulate(same, Policy.CHEAP, setting).busy_seconds == 22
    )


def test_job_of_a_reclaimed_machine_runs_again() -> None:
    outcome = simulate(
        [TraceRequest(0.0, 3000.0, "w", "m")], Policy.BALANCED, WorldSettings(evictions_per_hour=1.0), seed=3
    )
    assert outcome.evictions > 0
    assert outcome.lost_seconds > 0
    assert outcome.busy_seconds >= 3000.0


def test_refused_launches_are_retried() -> None:
    outcome = simulate([TraceRequest(0.0, 30.0, "w", "m")], Policy.BALANCED, WorldSettings(refused_share=0.8), seed=3)
    assert outcome.refusals > 0
    assert outcome.waits[0] > 0


def test_generated_requests_match_the_workload() -> None:
    days = 50
    found = generate(Workload(days=days), seed=1)
    gaps = [after.arrival_seconds - before.arrival_seconds for before, after in pairwise(found)]
    durations = sorted(request.duration_seconds for request in found)
    assert len(found) / days == pytest.approx(1160, rel=0.1)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(12, rel=0.15)
    assert mean(durations) == pytest.approx(29, rel=0.02)
    assert quantile(durations, 0.95) == pytest.approx(69, rel=0.02)
    models = [request.model for request in found]
    assert len(set(models)) == 80
    assert models.count("model0") / len(models) == pytest.approx(0.31, abs=0.01)
    assert sum(model_shares(Workload())[:5]) == pytest.approx(0.70)
    assert sum(model_shares(Workload())) == pytest.approx(1.0)


def test_our_policies_beat_the_reference_on_a_small_sample() -> None:
    """`bench` measures more seeds and days against stricter goals."""
    arriving = generate(Workload(days=3), seed=2)
    setting = WorldSettings()
    policies = (Policy.REFERENCE, Policy.BALANCED, Policy.CHEAP, *full_only(Policy.FAST))
    found = {policy: summary(policy, simulate(arriving, policy, setting, seed=2), setting) for policy in policies}
    reference, balanced, cheap, *_ = found.values()
    assert balanced.wait_p95 <= 0.4 * reference.wait_p95
    assert balanced.machine_hours <= 1.05 * reference.machine_hours
    assert cheap.machine_hours <= 0.75 * reference.machine_hours
    assert cheap.wait_p95 <= 1.1 * reference.wait_p95
    assert all(result.busy_ended == 0 for result in found.values())
    bound = lower_bound(arriving, setting)
    assert all(
        result.wait_p95 >= bound.wait_p95 and result.machine_hours > bound.machine_hours for result in found.values()
    )


def test_simulation_steps_per_request_are_bounded() -> None:
    """Counts steps, because the duration depends on the machine."""
    arriving = generate(Workload(days=2), seed=1)
    outcome = simulate(arriving, Policy.BALANCED)
    assert outcome.decisions <= 4 * len(arriving)
    assert outcome.events <= 8 * len(arriving)


# Traces.


def test_trace_is_sorted_by_arrival_with_columns_in_any_order() -> None:
    found = parse_trace(["model,workflow,arrival_seconds,duration_seconds\n", "m,w,9,1\n", "\n", "n,w,2.5,3\n"])
    assert found == [TraceRequest(0.0, 3.0, "w", "n"), TraceRequest(6.5, 1.0, "w", "m")]


def test_arrivals_may_be_unix_timestamps() -> None:
    """The first arrival is the start of the simulation, not 1970."""
    found = parse_trace([HEADER, "1760000000,1,w,m\n", "1760000060.5,1,w,m\n"])
    assert [request.arrival_seconds for request in found] == [0.0, 60.5]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: arrival_seconds, duration_seconds, workflow, model is missing"),
        ("arrival_seconds,duration_seconds,model\n", "line 1: workflow is missing"),
        (HEADER, "contains no requests"),
        (HEADER + "1,2,w,m\n1,soon,w,m\n", "line 3: duration_seconds is 'soon'"),
        (HEADER + "-1,2,w,m\n", "line 2: arrival_seconds is '-1'"),
        (HEADER + "1,nan,w,m\n", "line 2: duration_seconds is 'nan'"),
        (HEADER + "1,1e300,w,m\n", "line 2: duration_seconds is '1e300'"),
        (HEADER + "1,2,w,m\n1,2," + "w" * 200_000 + ",m\n", "line 3: field larger than field limit"),
        (HEADER + "0,2,w,m\n1760000000,2,w,m\n", "spans 20,370 days, but at most a year can be simulated"),
        (HEADER.replace(",", ";") + "1;2;w;m\n", "columns are separated by commas, not by semicolons"),
        (HEADER + "1,2\n", "line 2: 2 values, but the first line names 4 columns"),
    ],
)
def test_invalid_trace_is_refused_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=problem):
        read_trace(file)


def test_unreadable_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"trace\.csv is not text"):
        read_trace(file)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(tmp_path / "other.csv")


# The lower bound and the plot.


def test_lower_bound_waits_only_when_all_machines_are_busy() -> None:
    together = [TraceRequest(0.0, 10.0, "w", "m")] * 3
    found = lower_bound(together, WorldSettings(max_machines=2))
    assert (found.wait_p50, found.wait_p99) == (0.0, 10.0)
    assert found.machine_hours == pytest.approx(30 / 3600)


def test_plot_is_an_svg_with_a_mark_per_policy() -> None:
    arriving = steady(60.0, hours=0.5)
    found = [summary(policy, simulate(arriving, policy), WorldSettings()) for policy in OURS]
    found.append(lower_bound(arriving, WorldSettings()))
    svg = ElementTree.fromstring(trade_off(found, "30 <requests>", "boot 180 s"))
    texts = [text for text in svg.findall("{http://www.w3.org/2000/svg}text") if text.get("x")]
    assert {"30 <requests>", "boot 180 s", "dashed: our policies"} <= {text.text for text in texts}
    labels = [text for text in texts if any((text.text or "").startswith(f"{one.policy}:") for one in found)]
    assert len(labels) == 4
    for label in labels:
        left, top = float(label.get("x", 0)), float(label.get("y", 0))
        assert left >= LEFT
        assert left + LETTER * len(label.text or "") <= WIDTH - RIGHT + 0.1
        assert TOP <= top <= HEIGHT - BOTTOM
    assert len({(label.get("x"), label.get("y")) for label in labels}) == 4
    assert len(svg.findall("{http://www.w3.org/2000/svg}circle")) == 4
    assert "30 <requests>" in (svg.findtext("{http://www.w3.org/2000/svg}title") or "")


def test_empty_simulation_has_a_summary() -> None:
    assert summary("fast", SimulationOutcome(), WorldSettings()).wait_p99 == 0.0


# The command.


def test_command_compares_policies_and_draws(tmp_path: Path) -> None:
    trace, plot = tmp_path / "trace.csv", tmp_path / "plot.svg"
    trace.write_text(HEADER + "".join(f"{number * 7},30,w,m\n" for number in range(50)))
    found = runner.invoke(
        fleet_app,
        [
            "simulate",
            "--trace",
            str(trace),
            "--policy",
            "fast",
            "--compare",
            "reference",
            "--plot",
            str(plot),
            "--json",
        ],
    )
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert [entry["policy"] for entry in report["policies"]] == ["reference", "fast"]
    assert report["policies"][1]["jobs"] == report["clairvoyant"]["jobs"] == 50
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert "50 requests in 5.72 minutes" in plot.read_text()
    assert "boot 180 s, at most 10 machines, 0.2 per machine-hour" in plot.read_text()


def test_command_shows_a_table_of_our_policies() -> None:
    found = runner.invoke(fleet_app, ["simulate", "--generate", "--days", "0.1", "--evictions-per-hour", "5"])
    assert found.exit_code == 0, found.output
    assert all(name in found.stdout for name in ("cheap", "balanced", "fast", "clairvoyant"))


def test_table_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    monkeypatch.setattr("comfyrelay.cli.fleet.simulate.out", Console(width=80, file=shown))
    many = [
        SimulationSummary(
            policy=policy,
            jobs=30_000,
            wait_p50=1234.0,
            wait_p95=12345.0,
            wait_p99=12345.0,
            machine_hours=12345.6,
            busy_hours=1.0,
            launches=12_345,
            cold_starts=12_345,
            cost_per_job=0.0123,
            peak_machines=10,
        )
        for policy in ("reference", "balanced")
    ]
    _print_summaries(many, many[0], compared=True)
    assert "…" not in shown.getvalue()
    assert "12345 s" in shown.getvalue()
    assert max(len(line) for line in shown.getvalue().splitlines()) <= 80


def test_single_request_is_written_in_the_singular(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + "1760000000,30,w,m\n")
    found = runner.invoke(fleet_app, ["simulate", "--trace", str(trace)])
    assert found.exit_code == 0, found.output
    assert "1 request. clairvoyant: a bound that no real policy can reach." in found.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "--trace FILE, --generate or --fleet SLUG"),
        (["--generate", "--fleet", "main"], "only one of"),
        (["--generate", "--trace", "t.csv"], "only one of"),
    ],
)
def test_command_requires_one_source_of_requests(words: list[str], problem: str) -> None:
    found = runner.invoke(fleet_app, ["simulate", *words])
    assert isinstance(found.exception, InvalidInput)
    assert problem in str(found.exception)


def test_history_becomes_requests() -> None:
    class Done:
        def __init__(self, seconds: float) -> None:
            self.created_at = START + timedelta(seconds=seconds)
            self.duration_seconds = 12.0
            self.workflow = "w"
            self.workflow_hash = "hash"

    assert from_history([Done(50.0), Done(20.0)]) == [
        TraceRequest(0.0, 12.0, "w", "hash"),
        TraceRequest(30.0, 12.0, "w", "hash"),
    ]
    assert from_history([]) == []
