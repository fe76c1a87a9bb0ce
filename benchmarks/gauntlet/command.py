"""``scripts/gauntlet``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gauntlet import verdict
from benchmarks.gauntlet.faults import FAULTS
from benchmarks.gauntlet.healthy import SHAPES
from benchmarks.gauntlet.plan import QUICK_SHAPES, Plan, plan
from benchmarks.gauntlet.spec import Spec
from benchmarks.gauntlet.stack import run_wave, running_stack
from benchmarks.gauntlet.twins import train_twins
from benchmarks.gauntlet.verdict import Faulted, Outcome
from trainswitch_controller.cli.errors import UsageProblem
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain, console

_COLUMNS = (
    *("FAULT", "SEED", "DETECTED", "AFTER", "ANSWER", "AFTER", "STEPS", "LOST"),
    *("LOSS", "UNFAULTED", "UNPROTECTED", ""),
)


def run(
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed and three healthy runs: 10 instead of 27 minutes.")
    ] = False,
    first_seed: Annotated[
        int, typer.Option("--seed", min=1, help="The first of three seeds, or the one.")
    ] = 11,
    fault: Annotated[
        list[str] | None, typer.Option(help="Only this fault, and no healthy runs; can be repeated.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep everything; what is over here is not run again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train runs that faults befall, with the switch and without it, and healthy ones beside them.

    Bars: 95 % of the faulted runs end with a validation loss within 5 % of the unfaulted twin's, the median
    of the steps lost is at most 2 % of a run, and no healthy run is intervened on.
    """
    for name in fault or ():
        if name not in FAULTS:
            raise UsageProblem(f"--fault {name!r} is none of {', '.join(FAULTS)}.")
    report = Report(as_json=as_json)
    shapes = 0 if fault else QUICK_SHAPES if quick else len(SHAPES)
    seeds = [first_seed] if quick else [first_seed, first_seed + 1, first_seed + 2]
    with tempfile.TemporaryDirectory(prefix="trainswitch-gauntlet-") as made:
        folder = (keep or Path(made)).absolute()
        made_plan = plan(folder, faults=fault or tuple(FAULTS), seeds=seeds, shapes=shapes)
        outcomes = _run_all(made_plan, folder / "results.jsonl", report)
        ends = _twins(made_plan, report)
    faulted = [
        Faulted(
            outcome=one,
            reference=ends[made_plan.unfaulted[one.run].run].val_loss,
            unprotected=ends[made_plan.unprotected[one.run].run],
        )
        for one in outcomes
        if one.fault is not None
    ]
    missed = _tell(report, faulted, [one for one in outcomes if one.fault is None])
    if missed:
        raise typer.Exit(1)


def _run_all(made: Plan, results: Path, report: Report) -> list[Outcome]:
    """Train the protected runs, wave by wave, and return what became of them."""
    known = _known(results)
    for number, wave in enumerate(made.waves, start=1):
        missing = [spec for spec in wave if spec.run not in known]
        if missing:
            report.say(f"Wave {number} of {len(made.waves)}: {len(missing)} runs at once under one stack.")
            known |= _run_wave(missing, results, report)
    return [known[spec.run] for wave in made.waves for spec in wave]


def _run_wave(specs: Sequence[Spec], results: Path, report: Report) -> dict[str, Outcome]:
    """Train runs of one home, and write down at once what became of each."""
    found: dict[str, Outcome] = {}

    def over(outcome: Outcome) -> None:
        found[outcome.run] = outcome
        with results.open("a", encoding="utf-8") as handle:
            handle.write(outcome.model_dump_json() + "\n")
        report.say(_line(outcome))

    home = specs[0].home
    assert home is not None
    with running_stack(home, lambda _: None) as stack, console(stderr=True).status("starting") as line:
        run_wave(stack, specs, on_over=over, on_progress=line.update)
    return found


def _known(results: Path) -> dict[str, Outcome]:
    results.parent.mkdir(parents=True, exist_ok=True)
    if not results.exists():
        return {}
    lines = results.read_text(encoding="utf-8").splitlines()
    return {outcome.run: outcome for outcome in map(Outcome.model_validate_json, lines)}


def _twins(made: Plan, report: Report) -> dict[str, verdict.End]:
    count = len(made.twins)
    report.say(f"{count} twins, without a fault or without protection, at full speed.")
    with console(stderr=True).status("twins") as line:
        return train_twins(made.twins, lambda done: line.update(f"{done} of {count} twins are over"))


def _line(one: Outcome) -> str:
    """Return what is said of a run as it ends."""
    loss = "no loss" if one.end.val_loss is None else f"validation loss {one.end.val_loss:.3f}"
    text = f"{one.run}: {one.end.how} at step {one.end.reached}, {loss}"
    if one.fault is not None:
        text += f"; {one.detected or 'not detected'}"
        text += f", {one.answer} after {one.answer_seconds} s" if one.answer else ", no answer"
    if one.false_interventions:
        text += f"; WITHOUT A FAULT: {', '.join(one.false_interventions)}"
    return text


def _tell(report: Report, faulted: list[Faulted], healthy: list[Outcome]) -> list[str]:
    """Print what was found, and return the bars that are missed."""
    missed = verdict.problems(faulted, healthy)
    report.table(
        _COLUMNS,
        [_row(one) for one in faulted],
    )
    recovered = sum(one.recovered for one in faulted)
    wrong = sum(len(one.false_interventions) for one in (*healthy, *(one.outcome for one in faulted)))
    if faulted:
        alone = sum(one.healed_alone for one in faulted)
        report.say(
            f"{recovered} of {len(faulted)} faulted runs recovered, {alone} of their unprotected twins. "
            f"Median of the steps lost: {verdict.median_lost(faulted):.2%} of a run."
        )
    report.say(f"{len(healthy)} healthy runs; interventions without a fault: {wrong}.")
    report.result(
        {
            "ok": not missed,
            "bars": {"recovered": verdict.BAR_RECOVERED, "median_lost": verdict.BAR_LOST, "false": 0},
            "recovered": recovered,
            "faulted": [
                {
                    **json.loads(one.model_dump_json()),
                    "recovered": one.recovered,
                    "healed_alone": one.healed_alone,
                    "lost_share": round(one.lost_share, 4),
                }
                for one in faulted
            ],
            "healthy": [json.loads(one.model_dump_json()) for one in healthy],
            "false_interventions": wrong,
        }
    )
    if missed:
        complain(f"the bar is missed: {'; '.join(missed)}.")
    return missed


def _row(one: Faulted) -> tuple[object, ...]:
    outcome = one.outcome
    alone = one.unprotected
    return (
        outcome.fault,
        outcome.seed,
        outcome.detected,
        _seconds(outcome.detected_seconds),
        outcome.answer,
        _seconds(outcome.answer_seconds),
        outcome.answer_steps,
        f"{one.lost_share:.1%}",
        _loss(outcome.end),
        None if one.reference is None else f"{one.reference:.3f}",
        _loss(alone) + (" (heals)" if one.healed_alone else ""),
        "recovered" if one.recovered else "NOT RECOVERED",
    )


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} s"


def _loss(end: verdict.End) -> str:
    if end.how != "finished":
        return end.how
    return "NaN" if end.val_loss is None else f"{end.val_loss:.3f}"
