"""A runbook page for each compiled alert, so that its link leads somewhere."""

from __future__ import annotations

from trainswitch_controller.rulebook.compiler import CompiledRule
from trainswitch_controller.rulebook.condition import plain


def runbook_page(one: CompiledRule) -> str:
    """Return the page in Markdown, with the headings that all runbooks have."""
    rule = one.rule
    watched = "\n".join(f"- `{part.quantity.name}`: {part.quantity.help}" for part in rule.parts)
    lasting = f" The alert waits {plain(one.waits)} s before it fires." if one.waits else ""
    phases = f" It holds in these phases of training: {', '.join(rule.phases)}." if rule.phases else ""
    expression = "\n".join(f"    {line}" for line in one.expr.splitlines())
    source = f"{rule.place.path.name}, line {rule.place.line}"
    return f"""# {rule.name}

## Meaning

The rule `{rule.condition}` holds. It is written as `{rule.written}` in `{source}`.{lasting}{phases}
{rule.description or ""}
What it watches:

{watched}

## Impact

{_impact(one)}

## Diagnosis

    trainswitch status RUN

What Prometheus evaluates:

{expression}

## Mitigation

- It is right: find what changed at the step where it began, in the dashboard of the run.
- It is wrong: change the condition in `{rule.place.path.name}`, and compile it again.
"""


def _impact(one: CompiledRule) -> str:
    rule = one.rule
    if rule.action is None:
        return f"Severity {rule.severity}; people are told, and nothing is done."
    params = ", ".join(f"{name} = {value}" for name, value in rule.params.items())
    given = f" ({params})" if params else ""
    return (
        f"Severity {rule.severity}; the controller answers with `{rule.action}`{given}, as its policy says."
    )
