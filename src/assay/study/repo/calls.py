"""What the calls of a foreign file say about its config, logging, metrics and purpose."""

from __future__ import annotations

import ast
import re

from assay.study.repo.files import words
from assay.study.repo.measures import Measures
from assay.study.repo.syntax import draws, target_name
from assay.study.repo.walk import Hit
from assay.study.repo.words import (
    CONFIGS,
    LOADS,
    METRIC_WORDS,
    OTHER_CONFIGS,
    OTHER_LOGGERS,
    OUTCOME_WORDS,
    REWARD_NAMES,
    SLOTS,
    TERM,
    TRAINERS,
)

# Loggers that write to the screen.
_SCREEN = re.compile(
    r"(Terminal|Stdout|StdOut|Std|Console|Screen|Human|Print)(Logger|Output\w*|Writer)$"
)

_LOADS_YAML = (
    "yaml.safe_load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "OmegaConf.load",
    "YAML.load",
)  # fmt: skip

# Words in the names of what is written to, but is not a file of results.
_SHOWS = {"stdout", "stderr", "wfile", "socket", "tqdm", "console"}

# Words in the keys of a record that is one sample, and no measure of many.
_SAMPLE = {"prompt", "response", "completion", "question", "answer"}

# Verbs by which an agent is taught a step, if it is given the reward.
_TAUGHT = {"observe", "update", "learn", "optimize", "feedback", "experience"}

# What is printed under a name: `Mean reward: {}`, `reward %.2f`.
_SHOWN = re.compile(r"([A-Za-z][\w/ ]{1,30}?)\s*([:=]?)\s*(?:\{\w*\}|%[-+\d.]*[dfgrs])")

# A file that a writer of results is made with.
_RESULTS = re.compile(r"(?:.*/)?\w*(?:metrics|scores|progress|results|log|stats)\w*\.(jsonl|csv)")


class Calls(Measures):
    """The rules that look at calls."""

    def call(self, node: ast.Call) -> None:
        """Ask a call everything."""
        full = self.dotted(node.func)
        label = self.label
        if full:
            receiver, _, tail = full.rpartition(".")
            if self.scope and not receiver:
                self.facts.calls.setdefault(self.scope, set()).add(tail)
            match = TERM.match(tail) if "Term" in tail else None
            slot = self.extra_terms.get(tail) or (match.lastgroup if match else None)
            if slot == "randomization" and tail.startswith("Event") and not draws(node):
                slot = None
            if slot in SLOTS:
                self.term(slot, label, self._term_function(node), node.lineno)
            if tail == "command" and node.args and self.text(node.args[0]):
                self.facts.subcommands.setdefault(self.text(node.args[0]), node.lineno)
            if tail in ("add_typer", "add_command"):  # `tool dataset split` does not train
                for verb in (self.text(k.value) for k in node.keywords if k.arg == "name"):
                    self.facts.subcommands.setdefault(verb, node.lineno)
            root = full.partition(".")[0]
            self._config_call(node, full, root, tail)
            self.option_call(node, full, root, tail)
            self._logging_call(node, full, root, tail)
            self._signal_call(node, full, root, receiver, tail)
            self.metric_call(node, full, receiver, tail)
            self.speaks(node, tail)
            if tail in ("add_", "sub_", "mul_") and isinstance(node.func, ast.Attribute):
                self._shaped(node.func.value, node.lineno)
            self._ends_call(node, tail)
        self.label = ""
        self.children(node)
        self.label = label

    def _shaped(self, node: ast.expr, line: int) -> None:
        """Note a reward that is changed where it lies: `batch["reward"].add_(bonus)`."""
        names = {self.text(part) or target_name(part) for part in ast.walk(node)}
        if names & {"reward", "rewards"} and self.classes:
            self.found("reward", f"{self.classes[-1].name}.{self.function}", line, 0.7)

    def _ends_call(self, node: ast.Call, tail: str) -> None:
        """Note a call that ends an episode: `state.set_terminal(True)`."""
        true = all(isinstance(a, ast.Constant) and a.value is True for a in node.args)
        if true and tail in ("set_terminal", "set_done", "set_terminated") and self.function:
            owner = f"{self.classes[-1].name}." if self.classes else ""
            self.found("termination", f"{owner}{self.function}", node.lineno, 0.75)

    def _term_function(self, node: ast.Call) -> str:
        values = [k.value for k in node.keywords if k.arg == "func"] or node.args[:1]
        if not values:
            return ""
        return re.split(r"[.:]", self.text(values[0]) or self.dotted(values[0]))[-1]

    def _config_call(self, node: ast.Call, full: str, root: str, tail: str) -> None:
        config, line = self.facts.config, node.lineno
        if "ArgumentParser" in tail or full == "isaacgym.gymutil.parse_arguments":
            other = "custom" if root in OTHER_CONFIGS else "argparse"
            config.setdefault(other, Hit(full, line, 0.9))
        elif tail == "add_parser" and node.args and self.text(node.args[0]):
            self.facts.subcommands.setdefault(self.text(node.args[0]), line)
        elif full in (
            "tyro.cli",
            "tyro.extras.overridable_config_cli",
            "tyro.extras.subcommand_cli",
        ):
            config["tyro"] = config.get("tyro") or Hit(full, line, 0.95)
        elif root == "hydra":
            config.setdefault("hydra", Hit(full, line, 0.9))
        elif tail.startswith("DEFINE_"):
            config.setdefault("absl", Hit(full, line, 0.95))
            if tail == "DEFINE_config_file":
                config.setdefault("custom", Hit("ml_collections", line, 0.8))
        elif root == "gin":
            config.setdefault("gin", Hit(full, line, 0.95))
        elif full.endswith(_LOADS_YAML):
            around = set(words(f"{self.facts.path} {self.function} {self.label}"))
            about = around & (CONFIGS | {"conf", "params", "hyperparams", "main", "train", "run"})
            config.setdefault("yaml", Hit(full, line, 0.8 if about or not self.function else 0.66))
        elif root == "configparser" or tail in ("Flags", "parse_flags"):
            config.setdefault("custom", Hit(full, line, 0.75))
        elif root in OTHER_CONFIGS and tail in ("Fire", "CLI", "auto_cli", "parse", "run"):
            config["custom"] = Hit(root, line, 0.9)
        elif full.startswith("ml_collections.") or full.endswith("config_dict.create"):
            config.setdefault("custom", Hit("ml_collections", line, 0.8))

    def _logging_call(self, node: ast.Call, full: str, root: str, tail: str) -> None:
        line = node.lineno
        if full == "logging.basicConfig":
            self.log_file = any(item.arg == "filename" for item in node.keywords)
        elif root == "wandb" and tail in ("init", "log"):
            self.sink("wandb", full, line, 0.95)
        elif tail.startswith("Wandb") and tail.endswith(
            ("Logger", "Callback", "OutputFormat", "Writer")
        ):
            self.sink("wandb", full, line, 0.85)
        elif tail in ("SummaryWriter", "create_file_writer", "FileWriter") or (
            tail.lower().startswith("tensorboard") and tail[0].isupper()
        ):
            self.sink("tensorboard", full, line, 0.95)
        elif root in OTHER_LOGGERS:
            self.sink("custom", root, line, 0.8)
        elif tail not in ("init", "log", "finish") and self._mentions(tail, line):
            pass
        elif full in ("csv.writer", "csv.DictWriter") or (
            tail[:3].lower() == "csv"
            and tail.endswith(("Logger", "Output", "OutputFormat", "Writer"))
        ):
            sure = "csv" in tail.lower() or self._about_metrics(node)
            self.sink("csv", full, line, 0.9 if sure else 0.6)
            for keyword in node.keywords:
                if keyword.arg == "fieldnames":
                    self._header(keyword.value)
            for argument in node.args[1:2]:
                self._header(argument)
        elif tail == "to_csv" and (self._about_metrics(node) or self._filed(node)):
            self.sink("csv", full, line, 0.6)
        elif tail in ("Monitor", "VecMonitor") and root in ("stable_baselines3", "sb3_contrib"):
            if node.args[1:] or node.keywords:
                self.sink("csv", full, line, 0.7)
        elif tail == "writerow" and node.args:
            self._header(node.args[0])
        elif full == "json.dump" and self._about_metrics(node):
            self.sink("json", full, line, 0.75)
            self.logged(node.args[:1], 0.6)
        elif tail in ("write", "writelines", "write_text") and node.args:
            self._json_line(node, lines=tail != "write_text")
            self._joined_line(node)
            columns = self.text(node.args[0]).strip().split(",")
            if len(columns) > 1 and all(re.fullmatch(r"\s*[A-Za-z_][\w/]*\s*", c) for c in columns):
                self.facts.metrics.extend(Hit(c.strip(), line, 0.7) for c in columns)
        elif full in ("open", "io.open") or (tail == "open" and len(node.args) < 2):
            self._by_hand(node)
        elif full.endswith(".savetxt") and node.args:
            if any(self.text(part).endswith(".csv") for part in ast.walk(node.args[0])):
                self.sink("csv", full, line, 0.65)
        elif self._helped(node, tail):
            pass
        elif full == "jsonlines.open":
            self.sink("jsonl", full, line, 0.8)
        elif tail[:4] in ("JSON", "Json") and tail.endswith(("Logger", "Output", "OutputFormat")):
            self.sink("jsonl" if "l" in tail[4:5].lower() else "json", full, line, 0.85)
        elif tail == "configure" and root == "stable_baselines3":
            for item in ast.walk(node):
                if isinstance(item, ast.Constant) and item.value in ("csv", "json", "tensorboard"):
                    self.sink(str(item.value), full, line, 0.9)
        elif root in ("rsl_rl", "rl_games", "skrl") and tail.endswith(("Runner", "Trainer")):
            # These write TensorBoard files unless they are told otherwise.
            self.sink("tensorboard", full, line, 0.6)
        elif tail[:1].isupper() and any(_RESULTS.fullmatch(self.text(a)) for a in node.args):
            for name in map(self.text, node.args):
                if _RESULTS.fullmatch(name):
                    self.sink(name.rpartition(".")[2], full, line, 0.75)
        elif _SCREEN.match(tail):
            self.sink("stdout", full, line, 0.6)
        elif tail[:3] in ("MLF", "Nep", "Com") and tail.endswith(("Logger", "Output", "Writer")):
            self.sink("custom", full, line, 0.75)
        elif node.args and (
            full == "print" or tail == "info" or full.endswith((".debug.print", "log.debug"))
        ):
            named = set(words(self.function))
            named |= {word for owner in self.classes for word in words(owner.name)}
            told = {
                "eval", "evaluate", "callback", "log", "progress", "report", "episode", "epoch",
                "listener", "logger", "monitor", "main", "train", "run",
            } & named  # fmt: skip
            told |= {"print", "stats"} & named if full != "print" else set()
            if self.loops or told:
                self._printed(node)

    def _mentions(self, tail: str, line: int) -> bool:
        """Note a call that is named after a sink, such as `setup_wandb(...)`: it may turn it on."""
        for sink in ("wandb", "tensorboard"):
            if sink in tail.lower():
                self.sink_used(sink, line)
                return True
        return False

    def _by_hand(self, node: ast.Call) -> None:
        """Note a file of results that is opened to be written, without a library."""
        mode = [self.text(a) for a in node.args[1:2]]
        mode += [self.text(k.value) for k in node.keywords if k.arg == "mode"]
        parts = [self.text(part) for part in ast.walk(node.args[0])] if node.args else []
        if mode and mode[0][:1] in ("w", "a", "x"):
            held = self.files.get(target_name(node.args[0])) if node.args else None
            if held:
                self.sink(held, "open", node.lineno, 0.65)
            for part in parts:
                match = re.fullmatch(r".*\.(csv|jsonl)", part)
                if match:
                    self.sink(match[1], "open", node.lineno, 0.65)

    def _about_metrics(self, node: ast.Call) -> bool:
        """Return whether the names around a call speak of results rather than of settings."""
        around = [self.function, self.label, *(self.dotted(argument) for argument in node.args)]
        around += [c.name for c in self.classes]
        around += [self.text(item) for item in node.args]
        text = set(words(" ".join(around)))
        if {"logger", "monitor"} & {word for c in self.classes for word in words(c.name)}:
            text |= {"log"}
        kept = {
            word for a in node.args[:1] for hit in self.dict_keys(a) for word in words(hit.name)
        }
        if kept & {"metrics", "history", "results"}:
            return True  # `{"config": ..., "history": rows}`
        settings = text & {"config", "cfg", "args", "settings", "hyperparameters", "vocab"}
        return bool(text & METRIC_WORDS) and not settings

    def _header(self, node: ast.AST) -> None:
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            names = [self.text(item) for item in node.elts]
            if all(names):
                self.facts.metrics.extend(Hit(name, node.lineno, 0.75) for name in names)

    def _filed(self, node: ast.Call) -> bool:
        """Return whether a table is written to a file that is called after results."""
        texts = [self.text(part) for part in ast.walk(node) if isinstance(part, ast.Constant)]
        return bool(METRIC_WORDS & {word for text in texts for word in words(text)})

    def _helped(self, node: ast.Call, tail: str) -> bool:
        """Note a call of a helper that writes results: `save_json(metrics, path)`."""
        named = set(words(tail))
        kinds = [kind for kind in ("csv", "jsonl", "json") if kind in named]
        if not kinds or not named & {"write", "save", "dump", "append", "log"}:
            return False
        if self._about_metrics(node):
            self.sink(kinds[0], tail, node.lineno, 0.6)
        return True

    def _joined_line(self, node: ast.Call) -> None:
        """Note a table that is written by hand: `file.write(",".join(row))`."""
        if _SHOWS & set(words(self.dotted(node.func))):
            return
        row = re.fullmatch(r"\{\w*\}(\s*[,;\t]\s*\{\w*\})+\s*", self.text(node.args[0]))
        if row and METRIC_WORDS & set(words(self.dotted(node.func))):
            self.sink("csv", "write", node.lineno, 0.65)
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                between = part.func.value
                if part.func.attr == "join" and isinstance(between, ast.Constant):
                    about = METRIC_WORDS & set(words(ast.unparse(node)))
                    if between.value in ("\t", ",", ", ", ";") and (
                        about or self._about_metrics(node)
                    ):
                        self.sink("csv", "join", node.lineno, 0.65)

    def _json_line(self, node: ast.Call, *, lines: bool) -> None:
        if _SHOWS & set(words(self.dotted(node.func))):
            return
        for item in ast.walk(node):
            if isinstance(item, ast.Call) and self.dotted(item.func) == "json.dumps" and item.args:
                newline = any(
                    isinstance(part, ast.Constant) and str(part.value).endswith("\n")
                    for part in ast.walk(node)
                )
                what = item.args[0]
                hits = self.dict_keys(what) or self.dicts.get(target_name(what), [])
                spread = [part.id for part in ast.walk(what) if isinstance(part, ast.Name)]
                keys = [hit.name for hit in hits]
                if _SAMPLE & set(words(" ".join(keys))):
                    continue  # a sample of a language model with its score
                about = set(words(" ".join([*keys, *spread, self.facts.path])))
                if newline and lines and (METRIC_WORDS & about or self._about_metrics(item)):
                    self.sink("jsonl", "json.dumps", node.lineno, 0.85)
                    self.logged(item.args[:1], 0.8)
                elif self._about_metrics(item):
                    self.sink("json", "json.dumps", node.lineno, 0.6)
                    self.logged(item.args[:1], 0.6)

    def _printed(self, node: ast.Call) -> None:
        text = " ".join(self.text(argument) or "{}" for argument in node.args)
        filled = any(
            isinstance(part, ast.FormattedValue | ast.Name | ast.Subscript | ast.Call)
            for argument in node.args
            for part in ast.walk(argument)
        )
        if filled and OUTCOME_WORDS & set(words(re.sub(r"\{\w*\}", "", text))):
            if self.log_file and self.dotted(node.func).endswith(".info"):
                self.sink("custom", "logging", node.lineno, 0.65)
            else:
                self.sink("stdout", "print", node.lineno, 0.55)
            for name, mark in _SHOWN.findall(text):
                # Without a colon the last words are the name: `after 10 games reward rate {}`.
                name = name.strip() if mark else " ".join(name.split()[-3:])
                ends = OUTCOME_WORDS | {"rate", "mean", "avg", "average"}
                named = set(words(name))
                if named & {"the", "in", "of", "function", "file", "path"}:
                    continue  # part of a sentence
                if OUTCOME_WORDS & named and (mark or set(words(name)[-1:]) & ends):
                    self.facts.metrics.append(Hit("stdout:" + name, node.lineno, 0.5))

    def _signal_call(self, node: ast.Call, full: str, root: str, receiver: str, tail: str) -> None:
        line = node.lineno
        who = set(words(receiver))
        given = bool(node.args or node.keywords)
        name = words(tail)
        gradients = ("backward", "apply_gradients", "apply_updates", "value_and_grad", "minimize")
        if tail in gradients or full == "jax.grad":
            self.signal("gradient", line)
        elif tail == "step" and who & {"env", "envs", "environment", "vec"}:
            self.signal("env_step", line)
        elif tail == "learn" and receiver:
            self.signal("learn", line)
            if any(item.arg == "total_timesteps" for item in node.keywords):
                self.signal("learn_steps", line)
        elif not receiver and {"trainer", "learner"} & set(words(self.made.get(tail, ""))):
            self.signal("learn", line)  # `trainer = Trainer(env)`, `trainer(steps)`
        elif (tail == "tell" and given) or (
            tail in ("step", "run") and who & {"searcher", "solver"}
        ):
            self.signal("learn", line)  # evolution is asked for candidates and told how they did
        elif tail in ("vmap", "jit", "pmap"):
            for argument in node.args[:1]:  # `jax.vmap(env.step)(...)`
                stepped = self.dotted(argument)
                if stepped.endswith(".step") and {"env", "envs"} & set(words(stepped)):
                    self.signal("env_step", line)
        elif receiver and tail in (
            "train", "fit", "run", "train_loop", "run_training", "run_experiment",
        ):  # fmt: skip
            told = bool(who & TRAINERS) and (
                tail != "train" or given or bool(who & TRAINERS - {"model", "policy"})
            )
            told = told or (tail == "train" and given and root not in ("nn", "torch"))
            # One iteration of an algorithm of RLlib.
            iterates = self.loops and "ray.rllib" in " ".join(self.facts.modules)
            if (told and not _off(node)) or (tail == "train" and iterates):
                self.signal("learn", line)
        elif name[:1] == ("train",) and root in ("chainerrl", "pfrl"):
            self.signal("learn", line)
        elif (
            name[:1] in (("train",), ("learn",))
            or name[-1:] in (("training",), ("train",))
            or (name[:1] in (("run",), ("start",), ("launch",)) and "training" in name)
        ):
            if not receiver or who & {"train", "training", "trainer"} or "." in full:
                self.signal("train_call", line)
        if set(name) & _TAUGHT and who & (TRAINERS | {"agents", "brain"}) and self.loops:
            if any(target_name(part) in REWARD_NAMES for part in node.args):
                self.signal("learn", line)  # `agent.observe(state, reward, done)`
        if name[:1] in (("run",), ("play",), ("simulate",)) and len(name) > 1:
            handed = {w for a in node.args for n in ast.walk(a) for w in words(target_name(n))}
            if {"agent", "agents"} & handed and {"env", "mdp", "environment", "task"} & handed:
                self.signal("agent_run", line)
        made = name[:1] in (("make",), ("create",), ("build",), ("get",), ("configure",))
        if full.startswith(("torch.optim.", "optax.")) or (
            made and name[-1] in ("optimizer", "optimizers") and "trajectory" not in name
        ):
            self.signal("optimizer", line)
        if (tail in ("Tuner", "run_experiments") and root == "ray") or full == "ray.tune.run":
            self.signal("learn", line)
        if (
            (name[:1] in (("evaluate",), ("eval",), ("enjoy",)) and tail != "eval")
            or (tail == "test" and who & TRAINERS)
            or (name in (("rollout",), ("run", "episode"), ("run", "episodes")) and given)
        ):
            self.signal("evaluate_call", line)
        loads = tail in LOADS or _loads(name) or full in (
            "torch.load", "pickle.load", "cloudpickle.load", "jax.numpy.load", "joblib.load",
        )  # fmt: skip
        last = receiver.rpartition(".")[2]
        if loads or (tail == "load" and (last[:1].isupper() or who & TRAINERS)):
            self.signal("load", line)
        if tail in ("make", "make_vec", "make_env", "make_envs") or tail.endswith(
            ("Env", "VecEnv")
        ):
            self.signal("make_env", line)
        if root == "ray" and tail in ("init", "remote", "Tuner", "run"):
            self.facts.launchers.setdefault("ray", Hit(full, line, 0.8))
        if tail == "init_process_group":
            self.facts.launchers.setdefault("torchrun", Hit(full, line, 0.6))
        if full in ("subprocess.Popen", "subprocess.run", "subprocess.call", "os.system"):
            strings = [self.text(part) for part in ast.walk(node) if not isinstance(part, ast.Name)]
            if any(re.search(r"\btrain\w*\.py\b|^python3?\s+\S+\.py", text) for text in strings):
                self.facts.launchers.setdefault("custom", Hit(full, line, 0.5))


def _loads(name: tuple[str, ...]) -> bool:
    """Return whether a function loads what was trained: `policy_from_checkpoint`."""
    what = {"checkpoint", "ckpt", "pretrained", "model", "agent", "policy", "weights", "actor"}
    simulated = {"mjcf", "urdf", "xml", "usd", "mujoco"} & set(name)  # a robot's body
    return bool(what & set(name) and {"load", "restore", "from"} & set(name[:2])) and not simulated


def _off(node: ast.Call) -> bool:
    """Return whether a call is `model.train(False)`, which stops training."""
    given = [*node.args, *(item.value for item in node.keywords)]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is False
