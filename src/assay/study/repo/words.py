"""The names by which the audit of a repository recognises what it reads."""

from __future__ import annotations

import re

RL_LIBRARIES = {
    "ale_py", "acme", "brax", "cleanrl", "craftax", "d3rlpy", "dm_control", "dm_env", "dopamine",
    "envpool", "evojax", "gym", "gym3", "gymnasium", "gymnax", "highway_env", "humanoid_bench",
    "imitation", "isaacgym", "isaacgymenvs", "isaaclab", "isaaclab_rl", "isaaclab_tasks", "jumanji",
    "legged_gym", "mani_skill", "metaworld", "minigrid", "mjlab", "mujoco_playground", "ocatari",
    "omnisafe", "pettingzoo", "procgen", "pufferlib", "purejaxrl", "rl_games", "rlax", "rlpyt",
    "robosuite", "rsl_rl", "safety_gymnasium", "sample_factory", "sb3_contrib", "sbx", "skrl",
    "stable_baselines", "stable_baselines3", "tf_agents", "tianshou", "torchrl", "vizdoom",
}  # fmt: skip
# Logging libraries that are none of the named sinks.
OTHER_LOGGERS = {"mlflow", "neptune", "comet_ml", "aim", "clearml", "trackio", "swanlab", "visdom"}
OTHER_CONFIGS = {
    "click", "typer", "fire", "draccus", "simple_parsing", "jsonargparse", "chz", "sacred",
}  # fmt: skip
METRIC_WORDS = {
    "metric", "metrics", "result", "results", "log", "logs", "stat", "stats", "score", "scores",
    "return", "returns", "reward", "rewards", "history", "eval", "evaluation", "episode",
    "episodes", "progress", "summary", "summaries", "performance", "success", "loss", "record",
    "scalar", "scalars",
}  # fmt: skip
METRIC_CALLS = {
    "add_scalar", "log_scalar", "log_metric", "scalar_summary", "logkv", "logkv_mean",
    "record_mean", "record_tabular", "log_tabular", "add_scalars", "add_metric", "register_key",
    "track_data",
}  # fmt: skip
# Words in the names of functions that give metrics back.
HANDS_ON = {
    "update", "train", "learn", "step", "evaluate", "eval", "evaluation", "loss", "losses",
    "optimize", "fit", "run", "episode", "rollout", "metrics", "metric", "stats", "statistics",
    "log", "logs", "info", "report", "test", "summary", "result", "results", "performance",
}  # fmt: skip
# Verbs of calls that note `group/name` with a value.
NOTES = {"log", "track", "record", "add", "store", "scalar", "metric", "put", "note", "emit"}
OUTCOME_WORDS = {
    "reward", "rewards", "return", "returns", "score", "scores", "success", "loss", "rew",
}  # fmt: skip
# Names of a run's axis and of its bookkeeping, which are logged beside metrics and are none.
AXES = {
    "step", "steps", "global_step", "globalstep", "epoch", "iteration", "iter", "timestep",
    "timesteps", "total_timesteps", "time", "episode", "update", "env_step", "env_steps", "seed",
    "frame", "frames", "total_steps", "num_timesteps", "walltime", "timestamp", "date",
    "update_step",
}  # fmt: skip
LAUNCHERS = {
    "submitit": "slurm",
    "libtmux": "tmux",
    "torchrunx": "torchrun",
    "kubernetes": "kubernetes",
}
SLOTS = ("reward", "termination", "curriculum", "randomization")

TERM = re.compile(
    r"^(?:(?P<reward>Rew|Reward)|(?P<termination>Termination|Done|Term)"
    r"|(?P<curriculum>Curr|Curriculum)|(?P<randomization>Event|Randomization|Rand))"
    r"(?:Term)?(?:Cfg|Config)?$"
)
NESTED = {
    "reward": {"reward", "rewards", "reward_scales", "reward_weights", "reward_config"},
    "termination": {"termination", "terminations", "termination_conditions"},
    "curriculum": {"curriculum", "curricula"},
    "randomization": {
        "domain_rand", "domain_randomization", "domain_randomisation", "randomization",
        "randomisation", "randomize", "dr", "events",
    },
}  # fmt: skip
NO_REWARD = {
    "normalize", "normalise", "normalized", "denormalize", "unnormalize", "clip", "clipped",
    "discount", "discounted", "plot", "log", "print", "sample", "sampled", "store", "record",
    "buffer", "add", "mean", "average", "avg", "total", "cumulative", "sum", "episode", "episodic",
    "load", "save", "test", "check", "parse", "predict", "set", "update", "reset", "register",
    "render", "read", "write", "format", "return", "returns", "rescale", "sort", "collect",
    "aggregate", "broadcast", "max", "min", "last", "best", "prepare", "history", "wrapper",
    "stats", "normalization", "norm", "scale", "scaling", "names", "keys", "threshold", "range",
    "space", "spec", "to", "go", "weights", "loss", "learn", "train", "label", "relabel", "create",
    "make", "build", "percentile", "transform", "preprocess", "visualize", "extract", "stack",
    "shape", "spaces", "info", "type", "running", "manager", "expected", "original",
    "dataset", "undiscounted", "process", "default", "from", "obs", "actions", "observations",
}  # fmt: skip
# A call that only repacks what it is given computes no reward.
REPACKS = {
    "normalize", "clip", "stack", "array", "asarray", "concat", "concatenate", "float", "tensor",
    "numpy", "to", "astype", "squeeze", "unsqueeze", "item", "sum", "mean", "cat", "copy", "clone",
    "zeros", "ones", "empty", "full", "as", "dict", "list", "tuple", "reshape", "view", "append",
    "like", "detach", "cpu", "int", "bool", "denormalize", "zip", "map", "transform", "get", "pop",
    "items", "values", "tree", "vmap", "scan", "unreplicate", "step", "float32", "float64", "int32",
    "clamp", "repeat", "tile", "expand",
}  # fmt: skip
RANDOMIZES = {
    "randomize", "randomise", "randomization", "randomisation", "randomizations", "randomisations",
}  # fmt: skip
REWARD_NAMES = {"reward", "rewards", "rew", "rew_buf", "reward_buf", "total_reward", "_reward"}
DONE_NAMES = {
    "done", "dones", "terminated", "terminations", "truncated", "terminal", "terminate", "is_done",
    "reset_buf", "time_out_buf", "truncations", "_done", "done_buf", "termination", "absorbing",
}  # fmt: skip
STEPS = {"step", "_step", "step_env", "step_wait", "post_physics_step", "after_step", "step_agent"}
# Methods by which an environment says how it is going.
DESCRIBES = {"evaluate", "get_info", "_get_info", "compute_info", "_info", "get_metrics"}
# What a table of weights is made with.
TABLES = {
    "dict", "create", "ConfigDict", "FrozenDict", "SimpleNamespace", "EasyDict", "Munch",
    "AttrDict", "OrderedDict",
}  # fmt: skip
TASK_ARGUMENTS = {
    "env", "state", "states", "obs", "observation", "observations", "action", "actions", "physics",
    "next_state", "next_obs", "data", "info", "achieved_goal", "desired_goal", "mjx_data",
    "root_states", "pipeline_state", "world", "agent",
}  # fmt: skip
PLACES = {
    "env",
    "envs",
    "environment",
    "environments",
    "reward",
    "rewards",
    "task",
    "tasks",
    "mdp",
}
# Files of functions that are terms, or become them.
FILE_NAMES = {
    "reward": {"reward", "rewards"},
    "termination": {"termination", "terminations"},
    "curriculum": {"curriculum", "curriculums", "curricula"},
}
CONFIGS = {"cfg", "config", "configuration", "args", "arguments", "settings", "hyperparameters"}
LOADS = {
    "load_state_dict", "load_checkpoint", "restore", "restore_checkpoint", "load_policy",
    "load_params", "from_pretrained", "get_checkpoint_path", "load_model", "load_agent",
    "load_from_checkpoint", "from_checkpoint",
}  # fmt: skip
