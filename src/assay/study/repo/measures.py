"""The names under which a foreign file logs what it measures."""

from __future__ import annotations

import ast
import re

from assay.study.repo.files import words
from assay.study.repo.options import Options
from assay.study.repo.syntax import target_name
from assay.study.repo.walk import Helper, Hit, Logged, Spoken
from assay.study.repo.words import (
    COMMON_CALLS,
    KEEPS,
    LIBRARY_METRICS,
    METRIC_CALLS,
    NO_PRIMARY,
    NOTES,
    OUTCOME_WORDS,
    SUMS_UP,
)

_WORD = re.compile(r"[A-Za-z_][\w /.:{}()%@-]{1,60}")
# The name of a metric in a group: `Loss / Policy loss`, `rewards/{name}`.
_TAG = re.compile(r"[A-Za-z_][\w {}-]* ?/ ?[\w {}().%/-]+(?<!\.\w\w)(?<!\.\w\w\w)(?<!\.\w{4})")


class Helpers(Options):
    """The rules that look at functions which log what they are given, and at calls of them."""

    def logs_argument(self, tag: ast.AST, text: str) -> bool:
        """Note that this function logs under a name that it is given; return whether it does."""
        names = [part.id for part in ast.walk(tag) if isinstance(part, ast.Name)]
        given = [name for name in names if name in self.arguments and name not in ("self", "cls")]
        if not given:
            return False
        # Of `f"{prefix}/{name}"` the last is the name.
        template = text.replace(f"{{{given[-1]}}}", "{}", 1) if text else "{}"
        self._helper(given[-1], template if "{}" in template else "{}", keys=False)
        return True

    def logs_keys(self, source: ast.AST, template: str) -> bool:
        """Note that this function logs the keys of a dictionary that it is given."""
        name = source.id if isinstance(source, ast.Name) else ""
        if name not in self.arguments or name in self.dicts or name in self.made:
            return False
        self._helper(name, template, keys=True)
        return True

    def _helper(self, argument: str, template: str, *, keys: bool) -> None:
        if not self.function or self.function in COMMON_CALLS:
            return
        bound = self.arguments[0] in ("self", "cls")
        arguments = tuple(self.arguments[bound:])
        others = tuple((name, text) for name, text in self.defaults if f"{{{name}}}" in template)
        helper = Helper(argument, arguments, template, keys, others)
        self.facts.helpers.setdefault(self.function, helper)

    def speaks(self, node: ast.Call, tail: str) -> None:
        """Note a call that is given names, in case that it turns out to log them."""
        if tail in COMMON_CALLS or tail in METRIC_CALLS or not tail:
            return
        given: list[tuple[str | int, ast.expr]] = [*enumerate(node.args[:4])]
        given += [(item.arg, item.value) for item in node.keywords if item.arg]
        texts: list[tuple[str | int, str]] = []
        keys: list[tuple[str | int, tuple[str, ...]]] = []
        for argument, value in given:
            text = self.text(value)
            if text and _WORD.fullmatch(text):
                texts.append((argument, text))
            elif isinstance(value, ast.Dict | ast.Name | ast.Call):
                hits = self.dict_keys(value) or self.dicts.get(target_name(value), [])
                names = tuple(dict.fromkeys(hit.name for hit in hits))
                if names:
                    keys.append((argument, names))
        if texts or keys:
            self.facts.spoken.append(Spoken(tail, tuple(texts), tuple(keys), node.lineno))


class Measures(Helpers):
    """The rules that look for metrics."""

    def metric_call(self, node: ast.Call, full: str, receiver: str, tail: str) -> None:
        """Note the names under which a call logs something."""
        root, called = full.partition(".")[0], ".".join(full.split(".")[-2:])
        for name in (n for key in (tail, called) for n in LIBRARY_METRICS.get(f"{root}:{key}", ())):
            # RLlib is often one of several that a repository offers.
            self.metric(name, node.lineno, 0.65 if full.startswith("ray.") else 0.7)
            for keyword in node.keywords:
                shown = isinstance(keyword.value, ast.Constant) and keyword.value.value in (1, 2)
                if keyword.arg == "verbose" and shown:
                    self.sink("stdout", "print", node.lineno, 0.55)
        who = set(words(receiver))
        logger = who & {"logger", "writer", "wandb", "run", "tb", "summary", "log", "tracker"}
        several = len(node.args) + len(node.keywords) > 1
        first = node.args[0] if node.args else None
        if first is None:
            tags = [k.value for k in node.keywords if k.arg in ("tag", "name", "key")]
            first = tags[0] if tags else None
        text = self.text(first)
        named = {k.arg: k.value for k in node.keywords if k.arg}
        if tail == "Value" and {"tag", "simple_value"} <= set(named):  # of TensorFlow 1
            self._tagged(named["tag"], self.text(named["tag"]), node.lineno, 0.85)
        elif tail in METRIC_CALLS or tail in self.metric_calls:
            self._tagged(first, text, node.lineno, 0.95)
            self.logged(node.args[:1], 0.9)
        elif tail == "scalar" and who & {"summary", "writer", "logger", "tb"}:
            self._tagged(first, text, node.lineno, 0.9)
        elif tail == "record" and several and who & {"logger", "log", "writer", "tabular"}:
            self._tagged(first, text, node.lineno, 0.95)
        elif (
            tail == "log"
            and (text or (first is not None and self._key(first)))
            and several
            and " " not in text
            and receiver not in ("math", "logging")
        ):
            # `log("fps", fps)`, where `log` is neither a method nor the logarithm.
            if logger or receiver in ("self", ""):
                self._tagged(first, text, node.lineno, 0.85)
        elif tail in ("log", "log_metrics", "log_dict", "log_scalars", "write_scalars", "track"):
            if receiver not in ("math", "np", "numpy", "torch", "jax.numpy", "numpy.random"):
                sure = bool(logger) or tail != "log"
                self.logged(node.args, 0.95 if "wandb" in who else 0.85 if sure else 0.6)
        elif tail in ("store", "write", "add") and who & {"logger", "metrics"}:
            group = [self.text(k.value) for k in node.keywords if k.arg == "prefix"]
            self.logged(node.args[:1], 0.85, prefix=group[0] if group else "")
            for keyword in node.keywords if tail == "store" else ():
                self.metric(keyword.arg or "", node.lineno, 0.85)
        elif tail == "report" and who & {"tune", "train", "session", "ray"}:
            self.logged(node.args, 0.85)
            for keyword in node.keywords:
                self.metric(keyword.arg or "", node.lineno, 0.8)
        elif tail == "update" and who & {"metrics", "aggregator", "meters"} and not who & {"self"}:
            for keyword in node.keywords:
                self.metric(keyword.arg or "", node.lineno, 0.65)
            if "metrics" in who:
                self.logged([a for a in node.args[:1] if isinstance(a, ast.Dict)], 0.65)
            if several:
                self._tagged(first, text, node.lineno, 0.8)
        elif tail == "get" and "/" in text and who & {"metrics", "row", "logs", "stats"}:
            if OUTCOME_WORDS & set(words(text)):  # `row.get("eval/reward", 0)`
                self.metric(text, node.lineno, 0.65)
        elif tail == "append" and isinstance(node.func, ast.Attribute):
            self._kept(node, node.func.value)
        elif several and _TAG.fullmatch(text) and NOTES & set(words(tail)):
            self._tagged(first, text, node.lineno, 0.75)  # `track_data("Loss / Policy", loss)`
        elif several and logger and OUTCOME_WORDS & set(words(text)) and "%" not in text:
            self._tagged(first, text, node.lineno, 0.75)  # `logger.create_signal("Reward", r)`
        elif {"progress", "log", "report"} & set(words(tail)) and not full.startswith("logging"):
            self.logged(node.args, 0.6, plain=False)

    def _kept(self, node: ast.Call, holder: ast.expr) -> None:
        """Note what is kept to be written later: `history["Reward"].append(total)`, a row."""
        base: ast.expr = holder
        while isinstance(base, ast.Subscript):
            base = base.value
        about = bool(KEEPS & set(words(target_name(base))))
        tag = self.text(holder.slice) if isinstance(holder, ast.Subscript) else ""
        if _TAG.fullmatch(tag) or (about and OUTCOME_WORDS & set(words(tag))):
            self.metric(tag, node.lineno, 0.6)
        for row in node.args[:1] if about and isinstance(holder, ast.Name | ast.Attribute) else ():
            hits = self.dict_keys(row) or self.dicts.get(target_name(row), [])
            if any(OUTCOME_WORDS & set(words(hit.name)) for hit in hits):
                for hit in hits:
                    self.metric(hit.name, hit.line, 0.65)

    def beats(self, node: ast.Compare) -> None:
        """Note what has to beat the best so far: `if score > best_score`."""
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Gt | ast.Lt | ast.GtE | ast.LtE):
            return
        sides = [_said(side) or target_name(side) for side in (node.left, node.comparators[0])]
        best = [bool({"best", "highest"} & set(words(name))) for name in sides]
        if best[0] != best[1]:
            name = sides[best[0]]
            named = set(words(name))
            side = (node.left, node.comparators[0])[best[0]]
            # `metrics["f1"] > best_f1`: the key of a table of measures needs no known word.
            keyed = bool(_said(side)) and bool(KEEPS & set(words(target_name(side))))
            if (OUTCOME_WORDS & named or keyed) and not NO_PRIMARY & named and is_metric(name):
                sure = 0.7 if keyed else 0.6 if len(named) > 1 else 0.5
                self.facts.beats.append(Hit(name, node.lineno, sure))

    def part_of_name(self, name: str, value: ast.IfExp | ast.Constant) -> None:
        """Note the strings that a variable may hold: `suffix = "_std" if wide else ""`."""
        nodes = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if texts and all(re.fullmatch(r"[\w/-]{0,20}", text) for text in texts):
            self.facts.texts.setdefault(name, []).extend(sorted(texts))

    def keeps(self, name: str, line: int) -> None:
        """Note a key such as `mean_reward`, which may be logged under a name made of it."""
        named = set(words(name))
        if OUTCOME_WORDS & named and SUMS_UP & named and not NO_PRIMARY & named:
            if is_metric(name) and " " not in name:
                self.facts.kept.append(Hit(name, line, 0.5))

    def tags(self, node: ast.Dict) -> None:
        """Note the outcomes of a dictionary whose keys are tags: `"returns/mean"`."""
        names = [(self.text(key), key.lineno) for key in node.keys if key is not None]
        tagged = [(name, line) for name, line in names if _TAG.fullmatch(name)]
        for name, line in names:
            self.keeps(name, line)
        for name, line in tagged if len(tagged) > 1 else ():
            if OUTCOME_WORDS & set(words(name)):
                self.metric(name, line, 0.55)

    def _key(self, node: ast.expr) -> ast.expr | None:
        """Return the dictionary whose keys a loop goes through, where a name holds such a key."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self.pairs:
                return self.pairs[part.id]
        return None

    def _tagged(self, tag: ast.expr | None, text: str, line: int, confidence: float) -> None:
        """Note what is logged under a tag, which may be made of the keys of a dictionary."""
        source = self._key(tag) if tag is not None else None
        if source is None:
            if tag is None or not self.logs_argument(tag, text):
                self.metric(text, line, confidence)
            return
        # `losses/{name}` and the bare `name` are both a place for a key.
        keyed = [n.id for n in ast.walk(tag) if isinstance(n, ast.Name) and n.id in self.pairs]  # type: ignore[arg-type]
        template = text.replace(f"{{{keyed[0]}}}", "{}", 1) if text else "{}"
        template = template if "{}" in template else "{}"
        if self.logs_keys(source, template):
            return
        hits = self.dicts.get(target_name(source), [])
        made = self._maker(source)
        for hit in hits:
            self.metric(template.replace("{}", hit.name), hit.line, confidence - 0.1)
        if made:
            self.facts.logged.append(Logged(made, template, confidence - 0.1, line, text))
        elif not hits:
            self.metric(text, line, confidence)

    def _renames(self, node: ast.DictComp, confidence: float) -> None:
        """Note what is logged under other names: `{f"eval/{k}": v for k, v in stats.items()}`."""
        loop = node.generators[0]
        called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        if not isinstance(called, ast.Attribute) or called.attr != "items":
            return
        key = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        outer, self.pairs = self.pairs, {**self.pairs, target_name(key): called.value}
        self._tagged(node.key, self.text(node.key), node.lineno, confidence)
        self.pairs = outer

    def _maker(self, node: ast.AST) -> str:
        """Return the function that made a dictionary, where that can be seen."""
        if isinstance(node, ast.Call):
            return ".".join(self.dotted(node.func).split(".")[-2:])
        return self.made.get(target_name(node), "") if isinstance(node, ast.Name) else ""

    def logged(
        self, nodes: list[ast.expr], confidence: float, *, plain: bool = True, prefix: str = ""
    ) -> None:
        """Note the keys of dictionaries that are logged, also through a variable."""
        template = f"{prefix}/{{}}" if prefix else "{}"
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in self.renamed:
                node = self.renamed[node.id]
            if isinstance(node, ast.DictComp):
                self._renames(node, confidence)
                continue
            if self.logs_keys(node, template):
                continue
            if isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and plain):
                hits = self.dict_keys(node)
            elif isinstance(node, ast.Name | ast.Attribute):
                hits = self.dicts.get(target_name(node), [])
            else:
                continue
            for hit in hits:
                self.metric(template.replace("{}", hit.name), hit.line, confidence)
            joined = [v for k, v in zip(node.keys, node.values, strict=True) if k is None] if (
                isinstance(node, ast.Dict)
            ) else [node]  # fmt: skip
            for part in joined:
                if self._maker(part) and plain:
                    self.facts.logged.append(Logged(self._maker(part), template, confidence - 0.1))
                if part is not node:
                    for hit in self.dicts.get(target_name(part), []):
                        self.metric(template.replace("{}", hit.name), hit.line, confidence)

    def metric(self, name: str, line: int, confidence: float) -> None:
        """Note the name of a metric, if it looks like one."""
        name = name.strip()
        if is_metric(name):
            unsure = 0.2 if "{" in name else 0.0
            if "success" in name.lower() and any("success" in text for text in self.asked):
                unsure = 0.3  # only some tasks have it
            under = tuple(self.conditions)
            self.facts.metrics.append(Hit(name, line, max(confidence - unsure, 0.5), under))


def _said(node: ast.AST) -> str:
    """Return the key of `metrics["mean_reward"]`."""
    key = node.slice if isinstance(node, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def is_metric(name: str) -> bool:
    """Return whether a string can be the name of a metric."""
    return bool(
        re.fullmatch(r"[\w./ %()@\-\[\]{}+:&#|]{2,80}", name) and re.sub(r"\{\w*\}|\W", "", name)
    )
