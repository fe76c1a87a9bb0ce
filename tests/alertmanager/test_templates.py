"""What people are told: the templates, rendered by amtool as Alertmanager renders them."""

from __future__ import annotations

import copy
import html.parser
import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "alertmanager" / "templates"
EXTERNAL_URL = "https://alerts.example.org"
FAR_PAST = "0001-01-01T00:00:00Z"
CHANNELS = {"slack.text": "text", "email.text": "text", "email.html": "html", "wecom.markdown": "text"}
MOST = {"slack.text": 5, "email.text": 10, "email.html": 10, "wecom.markdown": 3}
WECOM_BYTES = 2048
each_channel = pytest.mark.parametrize("channel", CHANNELS)

Group = dict[str, Any]
Render = Callable[[str, Group], str]


def alert(name: str, severity: str, description: str, **changes: Any) -> dict[str, Any]:
    """Return an alert as Alertmanager hands it to templates; `changes` may hold labels and its own fields."""
    fields: dict[str, Any] = {
        key: changes.pop(key) for key in ("status", "startsAt", "endsAt") if key in changes
    }
    runbook_url = changes.pop("runbook_url", f"docs/runbooks/{name}.md")
    return {
        "status": "firing",
        "labels": {"alertname": name, "severity": severity, "run": "gpt2-wikitext", **changes},
        "annotations": {"summary": "A summary.", "description": description, "runbook_url": runbook_url},
        "startsAt": "2026-03-07T14:03:12.4Z",
        "endsAt": FAR_PAST,
        "generatorURL": "http://prometheus:9090/graph",
        "fingerprint": "8b9b1b6bd3e1f5a7",
        **fields,
    }


def group(alerts: Sequence[dict[str, Any]], **labels: str) -> Group:
    """Return a group of alerts as Alertmanager hands it to templates."""
    firing = any(one["status"] == "firing" for one in alerts)
    return {
        "receiver": "page",
        "status": "firing" if firing else "resolved",
        "alerts": list(alerts),
        "groupLabels": labels,
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": EXTERNAL_URL,
    }


NON_FINITE = alert(
    "TrainNonFinite",
    "critical",
    "Run gpt2-wikitext has counted 3 steps with a non-finite value; the limit is 0. "
    "Most are in the grad of rank 2.",
    action="pause",
)
ANSWER = alert(
    "TrainIntervention",
    "none",
    "TrainNonFinite: pause was carried out. Paused runs wait for 'trainswitch resume gpt2-wikitext'. ",
    state="applied",
)
PAGE = group([ANSWER, NON_FINITE], run="gpt2-wikitext")


def ended(one: dict[str, Any]) -> dict[str, Any]:
    """Return the alert as it is when it has resolved, a minute and a half after it began."""
    return {**copy.deepcopy(one), "status": "resolved", "endsAt": "2026-03-07T14:04:42.4Z"}


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Render a template of ours for a group of alerts."""
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.fail(
            "amtool is not on PATH: install it, on Debian with `apt install prometheus-alertmanager`."
        )

    def rendered(name: str, data: Group) -> str:
        path = tmp_path / "group.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        done = subprocess.run(
            [
                amtool,
                "template",
                "render",
                f"--template.glob={TEMPLATES}/*.tmpl",
                f'--template.text={{{{ template "trainswitch.{name}" . }}}}',
                f"--template.data={path}",
                f"--template.type={CHANNELS.get(name, 'text')}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return rendered


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value for key, value in attrs if key == "href" and value]


def links(channel: str, text: str) -> list[str]:
    """Return the addresses that a message leads to."""
    if channel == "email.html":
        parser = _Links()
        parser.feed(text)
        return parser.found
    return re.findall(r"https?://[^\s|>)]+", text)


def words(channel: str, text: str) -> str:
    """Return a message without its markup, on one line."""
    if channel == "email.html":
        text = html.unescape(re.sub(r"<[^>]+>", " ", text.partition("<body")[2]))
    return re.sub(r"\s+([,:])", r"\1", " ".join(re.sub(r"</?font[^>]*>|\*", "", text).split()))


@each_channel
def test_a_page_says_what_since_when_how_bad_and_what_the_controller_did(
    render: Render, channel: str
) -> None:
    """The alert, its severity and begin, its description and the controller's answer are in every channel."""
    said = words(channel, render(channel, PAGE))
    assert "TrainNonFinite" in said
    assert "critical, since 7 Mar 14:03:12 UTC" in said
    assert NON_FINITE["annotations"]["description"] in said
    assert f"Controller: {ANSWER['annotations']['description'].strip()}" in said
    assert "TrainIntervention" not in said


@each_channel
def test_a_page_leads_to_dashboard_runbook_and_silence(render: Render, channel: str) -> None:
    """The dashboard opens at this run and time, the runbook is this alert's, the silence is filled in."""
    found = links(channel, render(channel, PAGE))
    assert "http://localhost:9095/runbooks/TrainNonFinite" in found
    (dashboard,) = [urllib.parse.urlsplit(link) for link in found if ":3000/" in link]
    assert dashboard.path == "/d/trainswitch-run"
    begin = 1_772_892_192_400  # 2026-03-07T14:03:12.4Z
    assert urllib.parse.parse_qs(dashboard.query) == {
        "var-run": ["gpt2-wikitext"],
        "from": [str(begin - 30 * 60 * 1000)],
        "to": ["now"],
    }
    (silence,) = [urllib.parse.unquote(link) for link in found if link.startswith(EXTERNAL_URL)]
    alone = (
        'run="gpt2-wikitext"'
        if channel.startswith("wecom")
        else 'alertname="TrainNonFinite",run="gpt2-wikitext"'
    )
    assert silence == f"{EXTERNAL_URL}/#/silences/new?filter={{{alone}}}"


def test_the_dashboard_of_the_links_exists_and_has_their_variable() -> None:
    """A renamed dashboard or variable would turn every link into a page that is not found."""
    dashboard = json.loads((ROOT / "grafana/dashboards/trainswitch-run.json").read_text(encoding="utf-8"))
    assert dashboard["uid"] == "trainswitch-run"
    assert "run" in {variable["name"] for variable in dashboard["templating"]["list"]}
    assert "/d/trainswitch-run?" in (TEMPLATES / "shared.tmpl").read_text(encoding="utf-8")


@each_channel
def test_what_has_ended_is_told_with_its_duration(render: Render, channel: str) -> None:
    """A resolved group says so, with how long each alert lasted, and the dashboard stays at that time."""
    data = group([ended(ANSWER), ended(NON_FINITE)], run="gpt2-wikitext")
    text = render(channel, data)
    assert "Resolved: TrainNonFinite, lasted 1m30s" in words(channel, text)
    assert "since" not in words(channel, text)
    assert "Controller" not in text
    end = 1_772_892_282_400  # 2026-03-07T14:04:42.4Z
    assert any(f"to={end + 10 * 60 * 1000}" in link for link in links(channel, text))
    assert render("title", data) == "RESOLVED gpt2-wikitext: TrainNonFinite"


@each_channel
def test_a_run_that_still_waits_is_not_called_healthy(render: Render, channel: str) -> None:
    """When the alert has resolved and the controller's pause still holds the run, both are said."""
    data = group([ANSWER, ended(NON_FINITE)], run="gpt2-wikitext")
    said = words(channel, render(channel, data))
    assert "Resolved: TrainNonFinite" in said
    assert "Paused runs wait for 'trainswitch resume gpt2-wikitext'." in said
    data = group([ANSWER], run="gpt2-wikitext")
    assert render("title", data) == "CONTROLLER gpt2-wikitext"


@each_channel
def test_an_alert_that_asks_for_an_action_says_so_until_it_is_answered(render: Render, channel: str) -> None:
    """Without an answer of the controller a page does not pass it over in silence."""
    said = words(channel, render(channel, group([NON_FINITE], run="gpt2-wikitext")))
    assert "Controller: asked for pause; has not answered yet." in said
    hung = alert("TrainHung", "critical", "No step for 70 s; the limit is 60 s.")
    assert "Controller" not in render(channel, group([hung], run="gpt2-wikitext"))


@each_channel
def test_a_message_is_bounded(render: Render, channel: str) -> None:
    """However many alerts of whatever length are in a group, a message stays one that a phone can show."""
    description = "Far beyond the limit. " * 200
    many = [
        alert(f"TrainTrouble{number:02d}", "critical", description, action="pause") for number in range(40)
    ]
    answers = [alert("TrainIntervention", "none", description, state=state) for state in "abc"]
    data = group([*answers, *many, *(ended(one) for one in many)], run="gpt2-" + "w" * 30)
    text = render(channel, data)
    said = words(channel, text)
    assert said.count("critical, since") == MOST[channel]
    assert said.count("Resolved: ") == MOST[channel]
    assert "… 40 alerts in all" in said
    assert "… 40 resolved in all" in said
    assert len(text.splitlines()) < 80
    if channel == "wecom.markdown":
        assert len(text.encode()) <= WECOM_BYTES
    assert render("title", data).endswith("TrainTrouble00, TrainTrouble01, TrainTrouble02 and more (40)")


@each_channel
def test_a_description_cannot_become_markup(render: Render, channel: str) -> None:
    """Names of layers and runs are other people's: they call nobody and load nothing."""
    evil = "Layer <!channel> <script>alert(1)</script> <font color='info'>& [all fine](http://evil.example)"
    text = render(channel, group([alert("TrainLossUnstable", "warning", evil)], run="gpt2-wikitext"))
    if channel == "email.html":
        parser = _Links()
        parser.feed(text)
        assert "script" not in parser.tags
        assert evil in html.unescape(text)
    elif channel == "slack.text":
        assert "&lt;!channel&gt;" in text
        assert "<!" not in text
    elif channel == "wecom.markdown":
        assert "<script" not in text
        assert "<font color='info'" not in text
        assert "](http://evil" not in text


@each_channel
def test_a_digest_says_which_run_each_alert_is_of(render: Render, channel: str) -> None:
    """A group of several runs names the run at every alert and has no run of its own."""
    alerts = [
        alert("TrainLossPlateau", "info", f"Nothing gained by {run}.", run=run) for run in ("a-1", "b-2")
    ]
    said = words(channel, render(channel, group(alerts, severity="info")))
    for run in ("a-1", "b-2"):
        assert f"TrainLossPlateau of {run}, info, since" in re.sub(r"\[(\w+)\]\([^)]*\)", r"\1", said)
    assert "trainswitch status" not in said
    assert render("title", group(alerts, severity="info")) == "INFO: TrainLossPlateau, TrainLossPlateau"


@each_channel
def test_a_runbook_of_ones_own_is_linked_as_it_is_or_left_out(render: Render, channel: str) -> None:
    """Rules of a user's own may name a whole address, or none."""
    own = alert("Mine", "critical", "Mine.", runbook_url="https://wiki.example.org/mine")
    assert "https://wiki.example.org/mine" in links(channel, render(channel, group([own], run="a")))
    del own["annotations"]["runbook_url"]
    assert "unbook" not in words(channel, render(channel, group([own], run="a")))


def test_the_colour_is_that_of_the_worst_alert(render: Render) -> None:
    """Critical is red, a warning orange, the end green; the controller's answer has no colour of its own."""
    warning = alert("TrainLossSpike", "warning", "A spike.")
    information = alert("TrainLossPlateau", "info", "A plateau.")
    for alerts, expected in (
        ([information, NON_FINITE, warning, ANSWER], "danger"),
        ([warning, information], "warning"),
        ([information, warning], "warning"),
        ([information], "#439FE0"),
        ([ANSWER, ended(NON_FINITE)], "good"),
    ):
        assert render("color", group(alerts, run="a")) == expected


def test_alerts_of_no_run_are_told_of_too(render: Render) -> None:
    """A controller that is down has no run; its message neither breaks nor invents one."""
    down = alert("TrainControllerDown", "critical", "The controller does not answer.")
    del down["labels"]["run"]
    data = group([down])
    assert render("title", data) == "CRITICAL: TrainControllerDown"
    assert "var-run" not in render("slack.text", data)
    assert "of ," not in render("slack.text", data)


@each_channel
def test_the_documentation_shows_what_is_really_sent(render: Render, channel: str) -> None:
    """The examples in docs/notifications.md are the rendered page, to the letter."""
    page = (ROOT / "docs" / "notifications.md").read_text(encoding="utf-8")
    if channel == "email.html":  # nobody reads HTML in a manual: its text is shown
        return
    data = {**PAGE, "externalURL": "http://localhost:9093"}
    assert f"```\n{render(channel, data).rstrip()}\n```" in page
