"""What is shown while runs are active, and how values are formatted."""

from __future__ import annotations

import doctest
import io
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from assay.cli import algorithms, find_run, output, progress, results, seeds
from assay.cli.progress import LINE_SECONDS, Bars, Progress, curve
from assay.core.types import Clock
from assay.evaluation.formatting import number
from assay.loops.events import Activity, Evaluated, Logged, RunStarted, StepsCompiled
from assay.runs.directory import RunDirectory


def lines_of(bars: Bars) -> list[str]:
    assert isinstance(bars.console.file, io.StringIO)
    return bars.console.file.getvalue().splitlines()


def make_bars(mode: str = "lines", **options: object) -> Bars:
    console = Console(file=io.StringIO(), width=120, highlight=False, force_terminal=mode == "bar")
    return Bars(mode, console=console, **options)  # type: ignore[arg-type]


def test_lines_come_with_evaluations_and_not_with_every_log() -> None:
    bars = make_bars(now=lambda: 0.0)
    progress, clock = Progress(bars, "ppo"), Clock(1000)
    with bars:
        progress(RunStarted(Path("runs/x"), clock, resumed=False))
        for steps in range(20, 101, 20):
            clock.env_steps = steps
            metrics = {"time/env_steps_per_second": 50.0, "rollout/return_mean": 21.0}
            progress(Logged(clock, metrics))
        assert lines_of(bars) == []
        progress(Evaluated(clock, SimpleNamespace(mean=33.3, returns=np.zeros(4))))
        assert lines_of(bars) == [
            "ppo: 100 of 1,000 env_steps (10%), 50 steps/s, return 21.00, evaluation 33.30, "
            "18.0 s left"
        ]
        clock.env_steps = 230
        progress(Logged(clock, {}))
    assert len(lines_of(bars)) == 2
    assert progress.path == Path("runs/x")


def test_a_line_says_when_updates_are_compiled() -> None:
    bars = make_bars(now=lambda: 0.0)
    progress, clock = Progress(bars, "ppo"), Clock(1000, updates=1234)
    progress(StepsCompiled(clock, {"step": 0}))
    progress(StepsCompiled(clock, {"step": 1234}))
    assert lines_of(bars) == [
        "ppo: compiled updates, from the cache",
        "ppo: eager updates, compiled ones from update 1,234 on",
    ]


def test_a_slow_run_still_gives_a_line_now_and_then() -> None:
    now = 0.0
    bars = make_bars(now=lambda: now)
    bars.update("x", 1, 10_000, speed=0.1)
    assert lines_of(bars) == []
    now = LINE_SECONDS
    bars.update("x", 2, 10_000)
    assert len(lines_of(bars)) == 1


def test_a_long_rollout_and_a_long_evaluation_give_lines_too() -> None:
    now = 0.0
    bars = make_bars(now=lambda: now)
    progress, clock, activity = Progress(bars, "ppo"), Clock(1000), Activity()
    progress.beat()  # before the run has started
    progress(RunStarted(Path("runs/x"), clock, resumed=False, activity=activity))
    clock.collected = 300
    progress.beat()
    assert lines_of(bars) == []  # it said something a moment ago
    now = LINE_SECONDS
    progress.beat()
    progress.beat()
    assert lines_of(bars) == ["ppo: 300 of 1,000 env_steps (30%), collecting"]
    clock.env_steps, clock.collected, activity.doing = 400, 0, "evaluating"
    now = 2 * LINE_SECONDS
    progress.beat()
    assert lines_of(bars)[1:] == ["ppo: 400 of 1,000 env_steps (40%), evaluating"]


def test_who_stops_a_run_hears_at_once_what_it_waits_for() -> None:
    bars = make_bars(now=lambda: 0.0)
    progress, activity, clock = Progress(bars, "ppo"), Activity(), Clock(1000)
    progress(RunStarted(Path("runs/x"), clock, resumed=False, activity=activity))
    progress.beat()
    assert lines_of(bars) == []
    clock.stopping, activity.doing = True, "evaluating"
    progress.beat()
    progress.beat()
    (said,) = lines_of(bars)
    assert said.startswith(
        "ppo: stopping; it saves when this step is over, and evaluates after a resume. A second "
    )


def test_who_stops_a_run_that_is_being_saved_hears_that() -> None:
    bars = make_bars(now=lambda: 0.0)
    progress, clock = Progress(bars, "ppo"), Clock(1000, collected=3, stopping=True)
    progress(RunStarted(Path("runs/x"), clock, resumed=False, activity=Activity("saving")))
    progress.beat()
    assert lines_of(bars)[0].startswith("ppo: stopping; it is being saved. A second Ctrl-C")
    assert progress.collected == 3


def test_more_steps_than_the_budget_are_all_of_it() -> None:
    bars = make_bars()
    bars.update("x", 1100, 1000, evaluations=[1.0])
    assert lines_of(bars) == ["x: 1,000 of 1,000 env_steps (100%), evaluation 1.00"]


def test_a_terminal_gets_a_bar_with_speed_return_and_time_left() -> None:
    bars = make_bars("bar")
    with bars:
        bars.update("seed 1", 500, 1000, speed=1234.0, score=8.5)
        bars.update("seed 2", 0, 1000, state="waiting")
        bars.message("seed 3 failed: no")
    shown = bars.console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("seed 1", "50%", "1,234 steps/s, return 8.5", "waiting", "seed 3 failed: no"):
        assert words in shown


def test_a_terminal_shows_the_learning_curve() -> None:
    bars = make_bars("bar")
    progress, clock = Progress(bars, "ppo"), Clock(1000)
    with bars:
        for steps, mean in ((100, 10.0), (200, 45.0), (300, 80.0)):
            clock.env_steps = steps
            progress(Evaluated(clock, SimpleNamespace(mean=mean)))
    shown = bars.console.file.getvalue()  # type: ignore[attr-defined]
    assert "▁▅█" in shown and "evaluation 80" in shown


def test_the_curve_of_ten_evaluations_fits_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bars = Bars("bar", console=console)
    with bars:
        bars.update("ppo", 500, 1000, speed=22_000.0, score=480.0, evaluations=range(10))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{curve(range(10))} 22,000 steps/s, return 480.0, evaluation 9.00 --:--" in shown


def test_a_terminal_without_unicode_gets_the_figures_alone() -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), "ascii"), width=120, force_terminal=True)
    bars = Bars("bar", console=console)
    with bars:
        bars.update("x", 1, 10, evaluations=[1.0, 2.0])
    console.file.seek(0)
    assert "evaluation 2" in console.file.read()


def test_a_curve_of_what_cannot_be_drawn() -> None:
    assert curve([]) == ""
    assert curve([5.0, 5.0]) == "▅▅"
    assert curve([float("nan"), 1.0, 2.0]) == "▁█"
    assert len(curve(range(1000), width=7)) == 7


def test_a_resumed_run_goes_on_with_its_curve(made_runs: Path) -> None:
    bars = make_bars("bar")
    progress, clock = Progress(bars, "ppo"), Clock(512)
    with bars:
        progress(RunStarted(made_runs / "a" / "seed-1", clock, resumed=True))
        progress(Evaluated(clock, SimpleNamespace(mean=1e9)))
    means = [e["mean"] for e in RunDirectory.open(made_runs / "a" / "seed-1").evals()]
    assert len(means) == 2
    assert curve([*means, 1e9]) in bars.console.file.getvalue()  # type: ignore[attr-defined]


def test_a_closed_stderr_does_not_stop_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    bars = Bars("lines", console=Console(file=Gone()))
    bars.update("x", 500, 1000)
    assert bars.mode == "silent"
    bars.update("x", 1000, 1000)


def test_silent_mode_prints_nothing() -> None:
    bars = make_bars("silent")
    with bars:
        bars.update("x", 1000, 1000, evaluations=[1.0])
        bars.message("x")
    assert lines_of(bars) == []


def test_json_output_has_no_nan_or_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": np.float32(0.5), "b": [float("nan"), np.inf], 3: Path("x")})
    assert capsys.readouterr().out.split() == (
        '{ "a": 0.5, "b": [ null, null ], "3": "x" }'.split()
    )


def test_examples_in_the_docstrings_are_true() -> None:
    for module in (output, algorithms, progress):
        assert doctest.testmod(module).failed == 0


def test_time_adds_up_over_sessions() -> None:
    assert results._total_seconds([1.0, 2.0, 0.5, 1.5, 0.25]) == 2.0 + 1.5 + 0.25


def test_a_run_is_found_by_path_first_and_then_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASSAY_RUNS", raising=False)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    assert find_run.locate("x") == Path("runs/x")
    assert find_run.locate("runs/x") == Path("runs/x")
    (tmp_path / "x").mkdir()
    assert find_run.locate("x") == Path("x")
    # What is nowhere is looked for among the runs, so that the error can name its neighbours.
    assert find_run.locate("y") == Path("runs/y")
    assert find_run.locate("runs/y") == Path("runs/y")
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "else"))
    assert find_run.locate("y") == tmp_path / "else" / "y"


@pytest.mark.parametrize(
    ("stderr", "code", "expected"),
    [
        ("Warning: x\nError: It is bad.\nMend it.\n", 2, "It is bad.\nMend it."),
        ("Traceback:\nValueError: y\n", 1, "Traceback:\nValueError: y"),
        ("", -signal.SIGKILL, "killed by SIGKILL (out of memory?)"),
        ("", 3, "it ended with exit code 3"),
    ],
)
def test_why_a_child_failed(stderr: str, code: int, expected: str) -> None:
    assert seeds._reason(stderr, code) == expected


@pytest.mark.parametrize(
    ("code", "stops", "expected"),
    [
        (130, 1, "interrupted"),
        (130, 0, "interrupted"),  # somebody interrupted the child itself
        (-signal.SIGINT, 1, "interrupted"),  # before it listened
        (-signal.SIGKILL, 3, "interrupted"),  # we killed it
        (-signal.SIGKILL, 0, "failed"),  # the system did
        (2, 1, "failed"),  # the disk was full when it came to save
        (1, 1, "failed"),
        (0, 1, "done"),  # it was faster than the signal
    ],
)
def test_a_child_that_fails_while_it_is_stopped_has_failed(
    tmp_path: Path, code: int, stops: int, expected: str
) -> None:
    class Ended:
        job = seeds.Job("seed 1", ("train",), tmp_path / "gone", 100)

        def close(self) -> tuple[int, str]:
            return code, "Error: The disk is full."

    pool = seeds._Pool([Ended.job], 1, Bars("silent"))
    pool.stops = stops
    pool._finish(Ended())  # type: ignore[arg-type]
    assert pool.outcomes["seed 1"].status == expected
    failed = expected == "failed"
    assert (pool.outcomes["seed 1"].message == "The disk is full.") is failed


class Vanishing:
    """A file that is gone by the time its size is asked for."""

    def __truediv__(self, name: str) -> Vanishing:
        return self

    def exists(self) -> bool:
        return True

    def stat(self) -> None:
        raise FileNotFoundError


def test_a_run_may_vanish_while_it_is_read() -> None:
    job = seeds.Job("seed 1", ("train",), Vanishing(), 100)  # type: ignore[arg-type]
    seeds._Pool([job], 1, Bars("silent"))._look(job)


def test_each_evaluation_of_a_seed_makes_a_line(made_runs: Path) -> None:
    bars = make_bars(now=lambda: 0.0)
    job = seeds.Job("seed 1", ("train",), made_runs / "a" / "seed-1", 512)
    pool = seeds._Pool([job], 1, bars)
    pool._look(job)
    pool._look(job)
    (line,) = lines_of(bars)
    last = RunDirectory.open(job.path).evals()[-1]["mean"]
    assert f"evaluation {number(last)}" in line


def test_every_stop_is_sent_to_a_child_once() -> None:
    sent: list[int] = []
    child = object.__new__(seeds._Child)
    child.stops_sent = 0
    child.send = sent.append  # type: ignore[method-assign]
    for stops in (0, 1, 1, 2, 3, 3):
        child.forward_stops(stops)
    assert sent == [signal.SIGINT, signal.SIGINT, signal.SIGKILL]
