"""`assay study`: evidence-gated experiments on any RL repository. Nothing here imports torch."""

from __future__ import annotations

import typer

from assay.cli.study import begin, candidates, launch, records, results, start

app = typer.Typer(
    help="Prove that a change is better: contract, approvals, candidates, runs, verdicts.",
    no_args_is_help=True,
)
app.command("start")(start.start)
app.command("init")(begin.init)
app.command("migrate")(begin.migrate)
app.command("audit")(begin.audit)
app.add_typer(begin.contract, name="contract")
app.command("metrics")(begin.metrics)
app.command("baseline")(candidates.baseline)
app.command("propose")(candidates.propose)
app.command("review")(candidates.review)
app.command("validate")(candidates.validate)
app.command("discard")(candidates.discard)
app.command("next")(records.next_step)
app.command("status")(records.status)
app.command("run")(launch.run)
app.command("batch")(launch.batch)
app.add_typer(launch.queue, name="queue")
app.command("loop")(launch.loop)
app.command("stop")(launch.stop)
app.command("monitor")(results.monitor)
app.command("analyze")(results.analyze)
app.command("scorecard")(results.scorecard)
app.command("reflect")(results.reflect)
app.add_typer(results.probe, name="probe")
app.command("audit-result")(results.audit_result)
app.command("verdict")(results.verdict)
app.command("report")(records.report)
app.command("verify")(records.verify)
app.command("re-anchor")(records.anchor)
app.command("demo")(records.demo)
