"""One training run: build the parts, iterate the loop, log, evaluate, checkpoint, resume.

The order at every due moment is fixed: log, evaluate, checkpoint. So a checkpoint holds all that
came before it, and a resumed run goes on exactly where the killed one was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.shared.mistakes import refuse_mistakes
from assay.core import registry
from assay.core.config import Model, UnusedSettingError, parse
from assay.core.errors import AssayError, ConfigError, RunError
from assay.core.images import has_large_images
from assay.core.presets import preset
from assay.core.types import Clock, State, tree_leaves
from assay.envs.space_codec import space_to_state
from assay.envs.start_check import check_ends
from assay.envs.teams import team_to_state
from assay.loops.background_compile import BackgroundCompile
from assay.loops.config import RunConfig
from assay.loops.divergence import divergence_fix
from assay.loops.events import (
    STOP,
    Activity,
    Callback,
    CheckpointSaved,
    Evaluated,
    Evaluation,
    Event,
    Logged,
    RunEnded,
    RunStarted,
    StepsCompiled,
    StoppedError,
)
from assay.loops.learned_rewards import RewardFunction
from assay.loops.recorded import run_vector
from assay.loops.run_settings import OnlineSettings
from assay.loops.table import make_loop
from assay.optim.threads import use_threads
from assay.policies.model_file import to_state
from assay.policies.parts import ModelError
from assay.policies.policy import Policy
from assay.runs import checkpoint
from assay.runs.checkpoint import Section
from assay.runs.directory import RunDirectory, Status
from assay.runs.metrics import Record
from assay.runs.sinks import make_sinks

Evaluator = Callable[[Algorithm, Clock], Evaluation]
_LOOKS = 100  # times in a run that it looks for compiled steps


class Due:
    """The next count at which something is to happen."""

    def __init__(self, interval: int | None, done: int) -> None:
        self.interval = interval or 0
        self.next = (done // self.interval + 1) * self.interval if self.interval else 1 << 62

    def __call__(self, count: int) -> bool:
        """Return whether the moment has come, and if so move on to the next."""
        if count < self.next:
            return False
        self.next = (count // self.interval + 1) * self.interval
        return True


def build_algorithm(
    config: RunConfig, spaces: Any, clock: Clock, *, learns: bool = True
) -> Algorithm:
    """Make the algorithm of a configuration for given spaces."""
    cls = registry.get(config.algorithm)
    hp = parse(cls.Hyperparameters, config.hyperparameters, what=config.algorithm)
    run = config.run
    device = choose_device(run.device)
    context = Context(clock, run.seed, run.num_envs, device, run.compile, learns)
    try:
        while True:
            try:
                with torch.random.fork_rng(devices=[]):  # leave the caller's generator as it was
                    algorithm: Algorithm = cls(spaces, hp, context)
                refuse_mistakes(algorithm)
                return algorithm
            except UnusedSettingError as error:
                hp = _without_preset(hp, config, error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise ConfigError(
            f"{config.algorithm} with these settings does not fit into the memory.",
            "Use smaller networks, or less of what it keeps (actor_lag, memory_size, context).",
        ) from None


def _without_preset(hp: Model, config: RunConfig, error: UnusedSettingError) -> Model:
    """Return settings without the one that has no effect, if the preset alone asked for it."""
    name = error.setting
    shipped = preset(config.algorithm, config.env)
    if name not in shipped:
        raise error
    from_preset = getattr(parse(type(hp), {name: shipped[name]}, what=config.algorithm), name)
    if from_preset != getattr(hp, name):
        raise error
    default = type(hp).model_fields[name].get_default(call_default_factory=True)
    return hp.model_copy(update={name: default})


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is a GPU if there is one.

    Raises:
        ConfigError: The device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device='{name}' is not a device.", "Use auto, cpu or cuda.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device='{name}' is not supported.", "Use auto, cpu or cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device='{name}', but torch sees {torch.cuda.device_count()} CUDA GPUs here.",
            "Use device=cpu or device=auto.",
        )
    return device


class Training:
    """A run in progress.

    Args:
        config: The fully resolved configuration.
        run: The run directory, created or opened, and locked by this process.
        env: An environment object or factory to use in place of the id in `config`.
        expert: Whom an algorithm imitates that says so: a `Dataset`, or a `Teacher`.
        reward: What is learned from in place of the environment's reward, if anything.
        evaluator: Measures the algorithm at a moment of the clock, and stores what it finds. It
            raises `StoppedError` if the clock says meanwhile that the run is stopping.
        callbacks: Called with every event.
        now: The wall clock, for speed figures only.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        *,
        env: Any = None,
        expert: Any = None,
        reward: RewardFunction | None = None,
        evaluator: Evaluator | None = None,
        callbacks: Sequence[Callback] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = config.run
        self.config, self.run_directory = config, run
        self.evaluator, self.callbacks, self.now = evaluator, list(callbacks), now
        self.clock = settings.clock()
        count = settings.num_envs if isinstance(settings, OnlineSettings) else None
        self.env = run_vector(config, env, count)
        threads = settings.threads or _threads(self.env.spaces.observation)
        self._restore_threads = use_threads(threads)
        try:
            check_ends(self.env)
            self.algorithm = build_algorithm(config, self.env.spaces, self.clock)
            self.compiling = BackgroundCompile(self.algorithm, config, self._spaces())
            self.loop = make_loop(self.algorithm, self.env, settings, expert, reward)
            self.sinks = make_sinks(settings.sinks, run, config.to_dict())
        except BaseException:
            self._restore_threads()
            if env is None:  # else it is the caller's, who may try again with it
                self.env.close()
            raise
        self.activity = Activity()
        self._stop = False  # a callback said so
        self._owes_evaluation = False  # one was due, and then stopped
        # Of this session, for the speed and for where the time goes.
        self._started, self._count_before, self._evaluation_seconds = 0.0, 0, 0.0
        self._last_checkpoint: Path | None = None
        self._describable = True  # whether the policy can be written as data, as far as is known
        self._written_down: dict[str, int] = {}  # when steps were compiled, as events.jsonl has it

    def run(self, resume_from: Path | None = None) -> Status:
        """Train to the end of the budget and return the status: "done" or "interrupted"."""
        try:
            self._recall_compiled()
            if resume_from is None:
                self._forget_lines()
                self.loop.start()
            else:
                self._restore(resume_from)
            path, resumed = self.run_directory.path, resume_from is not None
            self._emit(RunStarted(path, self.clock, resumed, self.activity))
            # It may have been killed after its last checkpoint, before it could say so.
            over = self.clock.is_over and not self._owes_evaluation
            status = "done" if over else self._iterate()
            self.run_directory.set_status(status)
        except BaseException as error:
            self._fail(error)
            try:
                self._close()
            except Exception as second:
                error.add_note(f"Closing the run failed as well: {second!r}")
            raise
        self._close()
        self._emit(RunEnded(self.run_directory.path, self.clock, status))
        return status

    def _iterate(self) -> Status:
        clock, settings = self.clock, self.config.run
        log = Due(settings.log_every, clock.count)
        evaluate = Due(settings.eval_every, clock.count)
        save = Due(settings.checkpoint_every, clock.count)
        look = Due(None if self.compiling.is_over else -(-clock.total // _LOOKS), clock.count)
        self._started, self._count_before = self.now(), clock.count
        iterate, total, was_over = self.loop.iterate, clock.total, clock.is_over
        with _interrupts(clock):
            if self._owes_evaluation:
                self._evaluate()
            while clock.count < total and not clock.stopping and not self._stop:
                iterate()
                count = clock.count
                if (
                    count < log.next
                    and count < evaluate.next
                    and count < save.next
                    and count < look.next
                ):
                    continue
                last = count >= total
                if look(count):
                    self._change_to_compiled()
                if log(count) and not last:
                    self._log()
                if evaluate(count) and not last:
                    self._evaluate()
                if save(count) and not last:
                    self._checkpoint()
            # An interrupted run logs when it would have, after it is resumed.
            if clock.is_over and not was_over:
                self._log()
                self._evaluate()
            self._checkpoint()
        return "done" if clock.is_over and not self._owes_evaluation else "interrupted"

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        self.activity.doing, before = what, self.activity.doing
        try:
            yield
        finally:
            self.activity.doing = before

    # ------------------------------------------------------------------ what happens when due

    def _log(self) -> None:
        clock = self.clock
        elapsed = max(self.now() - self._started, 1e-9)
        metrics = self.algorithm.drain_metrics() | self.loop.metrics()
        bad = [name for name, value in metrics.items() if not np.isfinite(value)]
        if bad:
            raise AssayError(
                f"Training diverged: {', '.join(bad)} is not finite at env_steps="
                f"{clock.env_steps} (updates={clock.updates}).",
                f"{divergence_fix(self.algorithm)} The last checkpoint is intact.",
            )
        speed = (clock.count - self._count_before) / elapsed
        metrics |= {f"time/{clock.unit}_per_second": speed, "time/elapsed": elapsed}
        metrics |= {
            "time/update_share": min(self.loop.update_seconds / elapsed, 1.0),
            "time/evaluation_share": min(self._evaluation_seconds / elapsed, 1.0),
        }
        self._record(metrics)
        self.run_directory.heartbeat(clock.count, clock.unit)
        self._emit(Logged(clock, metrics))

    def _evaluate(self) -> None:
        if self.evaluator is None:
            return
        began = self.now()
        try:
            with self._doing("evaluating"):
                result = self.evaluator(self.algorithm, self.clock)
        except StoppedError:
            self._owes_evaluation = True
            return
        self._owes_evaluation = False
        self._evaluation_seconds += self.now() - began
        metrics = {
            "eval/return_mean": result.mean,
            "eval/return_iqm": result.iqm,
            "eval/length_mean": float(result.lengths.mean()),
        }
        if result.success_rate is not None:
            metrics["eval/success_rate"] = result.success_rate
        metrics |= {f"eval/{name}": value for name, value in result.figures.items()}
        self._record(metrics)
        self._emit(Evaluated(self.clock, result))

    def _record(self, metrics: dict[str, float]) -> None:
        clock = self.clock
        counts = (clock.env_steps, clock.updates, clock.episodes)
        self.sinks.log(Record(*counts, time.time(), metrics, clock.unit))

    def _checkpoint(self) -> None:
        clock = self.clock
        if not clock.is_over:
            self.loop.barrier()
        sections = {k: Section(*part) for k, part in self.algorithm.sections().items()}
        for array in tree_leaves(sections["weights"].state):
            if not np.isfinite(array).all():
                raise AssayError(
                    f"A network's weights are not finite at {clock.unit}={clock.count}.",
                    f"{divergence_fix(self.algorithm)} The last checkpoint is intact.",
                )
        self.sinks.flush()
        counts = {
            "env_steps": clock.env_steps, "updates": clock.updates, "episodes": clock.episodes,
            "is_over": clock.is_over,
        } | ({"owes_evaluation": True} if self._owes_evaluation else {})  # fmt: skip
        sections["run"] = Section(counts | {"sinks": self.sinks.state()} | self._spaces())
        sections |= self._policy()
        directory = self.run_directory.checkpoints_path
        with self._doing("saving"):
            path = checkpoint.write_checkpoint(
                directory,
                clock.count,
                sections | self.loop.sections(),
                self._last_checkpoint,
                unit=clock.unit,
            )
        self._last_checkpoint = path
        checkpoint.prune(directory, self.config.run.keep_checkpoints)
        self._emit(CheckpointSaved(clock, path))

    def _spaces(self) -> State:
        """Return the environment's own spaces and its masks, from which an agent's are made."""
        return {
            "observation": space_to_state(self.env.observations.source),
            "mask_size": self.env.observations.mask_size,
            "action": space_to_state(self.env.actions.source),
        } | ({} if self.env.spaces.team is None else {"team": team_to_state(self.env.spaces.team)})

    def _policy(self) -> dict[str, Section]:
        """Return the policy as data, by which it acts without torch, if it is all of what acts."""
        policy = getattr(self.algorithm, "policy", None)  # an algorithm may act by itself
        # One of another class, which plans or imagines, does more than its network.
        if type(policy) is not Policy or not self._describable:
            return {}
        try:
            model = policy.snapshot(self.algorithm.spec.name, version=self.clock.count)
        except ModelError:
            self._describable = False
            return {}
        return {checkpoint.POLICY: Section(to_state(model))}

    def _change_to_compiled(self) -> None:
        """Let steps be compiled from here on for which that is possible by now.

        Compiled numbers differ from eager ones in the last bits. So the moment is written down
        first: a run that is resumed from before it changes at the same update.
        """
        steps = self.algorithm.steps
        begun = {n: s.compiled_from for n, s in steps.items() if s.compiled_from is not None}
        now = {name: steps[name].updates for name in self.compiling.ready()}
        new = {n: at for n, at in (begun | now).items() if n not in self._written_down}
        if not new:
            return
        event = StepsCompiled(self.clock, new)
        try:
            self._write_down(event)
        except RunError:  # the disk is full, which whatever matters more will report
            return
        for name, at in new.items():
            steps[name].compiled_from = at
        self._written_down |= new
        self._tell(event)

    def _recall_compiled(self) -> None:
        """Change where this run did, if it was ended before the checkpoint that would know."""
        for event in self.run_directory.events():
            if event.get("kind") == StepsCompiled.__name__:
                self._written_down |= event["steps"]
        steps = self.algorithm.steps
        for name, at in self._written_down.items():
            if name in steps and steps[name].auto:
                steps[name].compiled_from = at

    def _forget_lines(self) -> None:
        """Drop what a run logged that was killed before its first checkpoint."""
        path = self.run_directory.metrics_path
        if path.exists() and path.stat().st_size:
            self.sinks.load_state({"position": 0})

    def _restore(self, path: Path) -> None:
        sections = checkpoint.read_checkpoint(path)
        saved = sections["run"]
        clock = self.clock
        clock.env_steps, clock.updates = int(saved["env_steps"]), int(saved["updates"])
        clock.episodes = int(saved["episodes"])
        self.algorithm.load_state(sections)
        self.loop.load_sections(sections)
        self.sinks.load_state(saved["sinks"])
        self._last_checkpoint = path
        self._owes_evaluation = bool(saved.get("owes_evaluation"))
        if saved.get("is_over") and not clock.is_over:  # it got a larger budget
            self.loop.barrier()

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:  # each of them, whatever the others raise
            stack.callback(self._restore_threads)
            stack.callback(self.compiling.close, finished=self.clock.is_over)
            stack.callback(self.run_directory.unlock)
            stack.callback(self.env.close)
            stack.callback(self.sinks.close)

    def _fail(self, error: BaseException) -> None:
        """Write down and tell that the run failed; what fails meanwhile must not hide `error`."""
        interrupted = isinstance(error, KeyboardInterrupt)
        status: Status = "interrupted" if interrupted else "failed"
        # The disk that broke the run may not take its status either.
        with contextlib.suppress(AssayError):
            self.run_directory.set_status(status, error=str(error) or type(error).__name__)
        event = RunEnded(self.run_directory.path, self.clock, status)
        self._note(event)
        for callback in self.callbacks:
            try:
                callback(event)
            except Exception as second:
                error.add_note(f"A callback failed at the end as well: {second!r}")

    def _emit(self, event: Event) -> None:
        if not isinstance(event, (Logged, Evaluated)):  # those are in metrics.jsonl and eval/
            self._note(event)
        self._tell(event)

    def _tell(self, event: Event) -> None:
        for callback in self.callbacks:
            if callback(event) is STOP:
                self._stop = True

    def _note(self, event: Event) -> None:
        with contextlib.suppress(RunError):  # a full disk has been reported by what mattered
            self._write_down(event)

    def _write_down(self, event: Event) -> None:
        clock = event.clock
        fields: dict[str, Any] = {clock.unit: clock.count, "pid": os.getpid()}
        if isinstance(event, StepsCompiled):
            fields |= {"updates": clock.updates, "steps": dict(event.steps)}
        self.run_directory.log_event(type(event).__name__, **fields)


def _threads(space: Any) -> int:
    """Small networks run fastest on one thread; encoders of large images use what there is."""
    return len(os.sched_getaffinity(0)) if has_large_images(space) else 1


@contextlib.contextmanager
def _interrupts(clock: Clock) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM save the run after this step; the second ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(signum: int, frame: Any) -> None:
        if clock.stopping:
            raise KeyboardInterrupt
        clock.stopping = True

    previous = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)
