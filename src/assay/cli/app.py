"""The command `assay` with all verbs, and how their errors are shown."""

from __future__ import annotations

import errno
from typing import Any

import typer
from typer.core import TyperGroup

from assay.cli import (
    algorithms,
    compare,
    data,
    demo,
    design,
    diagnose,
    doctor,
    envs,
    equilibria,
    evaluate,
    explain,
    export,
    league,
    output,
    plot,
    predict,
    prefer,
    resume,
    runs,
    serve,
    server,
    skills,
    study,
    test,
    train,
)
from assay.core.errors import EXIT_USER_ERROR, AssayError, RunError


class Verbs(TyperGroup):
    """Turn errors into one message and an exit code, in the same way for every verb."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb; one of two words goes before one of the first word."""
        two = " ".join(args[:2])
        if len(args) > 1 and two in self.commands:
            return two, self.commands[two], args[2:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            with output.plain_warnings():
                return super().invoke(ctx)
        except AssayError as error:
            output.show_error(error)
            raise typer.Exit(EXIT_USER_ERROR) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            output.show_error(RunError("A name is too long for a file.", "Choose a shorter one."))
            raise typer.Exit(EXIT_USER_ERROR) from None
        except KeyboardInterrupt:
            output.note("Interrupted.")
            raise typer.Exit(output.EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=Verbs,
    help="Assay: train an agent, evaluate it, and prove that a change made it better.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(design.app, name="design")
app.command("train")(train.train)
app.command("resume")(resume.resume)
app.command("evaluate")(evaluate.evaluate)
app.command("evaluate equilibria")(equilibria.equilibria)
app.command("compare")(compare.compare)
app.command("plot")(plot.plot)
app.command("diagnose")(diagnose.diagnose)
app.add_typer(test.app, name="test")
app.command("explain")(explain.explain)
app.add_typer(league.app, name="league")
app.add_typer(runs.app, name="runs")
app.command("algorithms")(algorithms.algorithms)
app.add_typer(envs.app, name="envs")
app.command("export")(export.export)
app.command("predict")(predict.predict)
app.add_typer(data.app, name="data")
app.add_typer(prefer.app, name="prefer")
app.add_typer(study.app, name="study")
app.add_typer(skills.app, name="skills")
app.add_typer(serve.app, name="serve")
app.add_typer(server.app, name="server")
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from assay import __version__

        print(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Assay: train an agent, evaluate it, and prove that a change made it better."""
