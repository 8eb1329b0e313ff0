"""What `import assay` offers, for editors and type checkers.

Written by `python -m assay.managed.stub` from the registry; do not edit.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from assay.data.dataset import Dataset
from assay.envs.make import EnvLike
from assay.api import Agent as Agent
from assay.api import Run as Run
from assay.api import load as load
from assay.api import open_run as open_run
from assay.api import resume as resume
from assay.api import train as train
from assay.core.errors import AssayError as AssayError
from assay.evaluation.compare import compare as compare
from assay.evaluation.evaluate import evaluate as evaluate
from assay.experts.rewards import learned_reward as learned_reward
from assay.loops.events import STOP as STOP
from assay.managed.classes import Managed as Managed
from assay.managed.classes import algorithm_class as algorithm_class
from assay.networks.custom import register_network as register_network
from assay.networks.discriminator import Discriminator as Discriminator
from assay.offline_evaluation import evaluate_offline as evaluate_offline
from assay.recording import record as record
from assay.server.client.adapter import connect_env as connect_env
from assay.server.client.connect import connect as connect
from assay import data as data
from assay.loops import events as events

__version__: str
_HOME: dict[str, str]
_MODULES: tuple[str, ...]

class A2C(Managed):
    """Advantage actor-critic, one update per short rollout. The simplest baseline that learns."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0007,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 5, value_coef: float = 0.5,
        entropy_coef: float | str = 0.0, normalize_advantage: bool = False,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, gae_lambda: float = 1.0, importance_clip: float | None = None,
        optimizer: Literal['rmsprop', 'adam'] = 'rmsprop', env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class AIRL(Managed):
    """Learn the reward behind episodes, and imitate them. For a reward that is used elsewhere."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 128,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, disc_lr: float | str = 0.0003, disc_updates: int = 16,
        disc_batch_size: int = 256, disc_hidden: Sequence[int] = (100, 100),
        disc_entropy: float = 0.001, gradient_penalty: float = 1.0, disc_normalize: bool = True,
        state_only: bool = True, disc_history: int = 0,
        expert: str | Path | Dataset | Callable[[Any], Any], expert_episodes: int = 10,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class AlphaZero(Managed):
    """Tree search with a learned prior and value, by self-play. For board games of known rules."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.002,
        gamma: float = 1.0, max_grad_norm: float | None = 10.0, batch_size: int = 256,
        buffer_size: int = 50000, learning_starts: int = 1000, train_every: int = 128,
        updates: int = 4, n_step: int = 1, simulations: int = 32,
        training_simulations: int | None = None, c_puct: float = 1.5, noise_alpha: float = 1.0,
        noise_share: float = 0.25, sampled_moves: int = 8, temperature: float = 1.0,
        random_moves: int = 0, value_coef: float = 1.0, value_mix: float = 0.0,
        weight_decay: float = 0.0001, symmetries: bool = True, hidden: Sequence[int] = (128, 128),
        blocks: int = 0, channels: int = 32, lines: bool = False, env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class BC(Managed):
    """Do what the data did. The baseline of offline learning; first choice for expert data."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 256,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, exploration_noise: float | str = 0.1, contrast: float = 0.0,
        contrast_bias: float = 0.5, clone_first: float = 0.4, updates: int = 100000,
        data: str | Path, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        env_steps: int = 0, updates_per_step: int = 1, data_share: float = 0.5,
    ) -> None: ...

class C51(Managed):
    """DQN that learns a categorical distribution of returns. For a known range of returns."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.00025,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = False, dueling: bool = False,
        adam_eps: float = 0.0003125, atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class CFR(Managed):
    """Solve a small game: both sides learn from regret until neither can be exploited."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, plus: bool = False,
        alternating: bool = True, updates: int = 1000, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class CQL(Managed):
    """Critics that distrust what the data does not show. For mixed data; slower than IQL."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, normalize_obs: bool = False,
        normalize_reward: bool = False, tau: float = 0.005, alpha_lr: float | str | None = None,
        alpha: float | Literal['auto'] = 'auto', alpha_init: float = 1.0,
        target_entropy: float | Literal['auto'] = 'auto', epsilon: float | str = 0.05,
        actor_lr: float | str | None = 0.0001, cql_alpha: float = 5.0,
        target_gap: float | None = None, samples: int = 10, least_gap: float | None = None,
        updates: int = 100000, data: str | Path, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        env_steps: int = 0, updates_per_step: int = 1, data_share: float = 0.5,
    ) -> None: ...

class CrossQ(Managed):
    """SAC with batch norm and no target networks. Needs few steps, at one update per step."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.001,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 5000, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, normalize_reward: bool = False,
        her: Literal['future', 'final', 'episode'] | None = None, her_ratio: float = 0.8,
        alpha_lr: float | str | None = None, alpha: float | Literal['auto'] = 'auto',
        alpha_init: float = 1.0, target_entropy: float | Literal['auto'] = 'auto',
        critic_hidden: Sequence[int] = (512, 512), policy_delay: int = 3, n_critics: int = 2,
        beta1: float = 0.5, norm_momentum: float = 0.99, renorm_warmup: int = 100000,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class DAgger(Managed):
    """Learn from an expert that answers on the learner's own states. Needs fewer labels than BC."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, batch_size: int = 256, train_every: int = 500,
        updates: int = 250, beta: float | str = 'linear:1.0:0.0:0.5',
        expert: str | Path | Dataset | Callable[[Any], Any], env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class DDPG(Managed):
    """Deterministic actor-critic with one critic. A baseline; TD3 is the better choice."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 1000, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.005, normalize_obs: bool = False,
        normalize_reward: bool = False, her: Literal['future', 'final', 'episode'] | None = None,
        her_ratio: float = 0.8, exploration_noise: float | str = 0.1, env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class DQN(Managed):
    """Q-learning from a replay. The baseline for discrete actions; extensions are options."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0001,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = False, dueling: bool = False,
        her: Literal['future', 'final', 'episode'] | None = None, her_ratio: float = 0.8,
        loss: Literal['huber', 'mse'] = 'huber', huber_delta: float = 1.0, rnd: float = 0.0,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class DT(Managed):
    """Imitation given a return: ask for a high one. For data of mixed quality with long returns."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0001,
        gamma: float = 0.99, max_grad_norm: float | None = 0.25, batch_size: int = 64,
        normalize_obs: bool = True, context: int = 20, width: int = 128, layers: int = 3,
        heads: int = 1, max_timestep: int = 1000, weight_decay: float = 0.0001, warmup: int = 10000,
        target_return: float | None = None, updates: int = 100000, data: str | Path, seed: int = 1,
        device: str = 'auto', compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class DreamerV3(Managed):
    """Learn a world model and behave by imagining. For few steps, images and partial views."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True,
        size: Literal['nano', 'XS', 'S', 'M', 'L'] = 'XS', deter: int | None = None,
        hidden: int | None = None, classes: int | None = None, depth: int | None = None,
        units: int | None = None, stoch: int = 32, blocks: int = 8, layers: int = 3,
        lr: float | str = 4e-05, warmup: int = 1000, agc: float = 0.3,
        precision: Literal['auto', 'bfloat16', 'float32'] = 'auto', batch_size: int = 16,
        sequence: int = 64, buffer_size: int = 1000000, learning_starts: int = 1024,
        train_ratio: int = 32, imagination: int = 15, horizon: float = 333.0, lam: float = 0.95,
        entropy_coef: float = 0.0003, dynamics_coef: float = 1.0, representation_coef: float = 0.1,
        free_nats: float = 1.0, unimix: float = 0.01, replay_value_coef: float = 0.3,
        return_decay: float = 0.99, tau: float = 0.02, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class FQF(Managed):
    """IQN with learned quantile levels. For long-tailed returns; more expensive than IQN."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 5e-05,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 1000, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = False, dueling: bool = False,
        head_hidden: Sequence[int] = (), adam_eps: float = 0.0003,
        fraction_lr: float | str = 2.5e-09, entropy: float = 0.001, fractions: int = 32,
        cosines: int = 64, kappa: float = 1.0, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class GAIL(Managed):
    """Imitate episodes by fooling a discriminator. For few demonstrations and cheap steps."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 128,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, disc_lr: float | str = 0.0003, disc_updates: int = 16,
        disc_batch_size: int = 256, disc_hidden: Sequence[int] = (100, 100),
        disc_entropy: float = 0.001, gradient_penalty: float = 1.0, disc_normalize: bool = True,
        reward: Literal['softplus', 'logit', 'log_d'] = 'softplus',
        expert: str | Path | Dataset | Callable[[Any], Any], expert_episodes: int = 10,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class HIRO(Managed):
    """A level that sets subgoals over one that reaches them, for long ways to rare rewards."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 1000, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, target_noise: float = 0.2,
        target_noise_clip: float = 0.5, policy_delay: int = 2, low_gamma: float = 0.95,
        tau: float = 0.005, interval: int = 10, goal_dims: Sequence[int] | None = None,
        goal_scale: float | Sequence[float] | None = None, correction: bool = True,
        candidates: int = 8, high_every: int = 10, high_reward_scale: float = 0.1,
        exploration_noise: float | str = 0.1, goal_noise: float | str = 0.2,
        goal_epsilon: float | str = 0.1, goal_penalty: float = 0.0, env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class IMPALA(Managed):
    """Actor-critic with V-trace. For actors whose policy lags behind the learner's."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0006,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 20, value_coef: float = 0.5,
        entropy_coef: float | str = 0.01, normalize_advantage: bool = False,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, optimizer: Literal['rmsprop', 'adam'] = 'rmsprop',
        actor_lag: int = 0, correction: Literal['vtrace', 'none'] = 'vtrace', rho_bar: float = 1.0,
        c_bar: float = 1.0, trace_lambda: float = 1.0, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class IPPO(Managed):
    """PPO for each of several agents. First choice for several agents, also against each other."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 256,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, sharing: Literal['all', 'type', 'none'] = 'type',
        agent_id: bool = True, reward: Literal['own', 'team'] = 'own', normalize_value: bool = True,
        head_hidden: Sequence[int] = (),
        memory: Literal['lstm', 'gru', 'transformer'] | None = None, memory_size: int = 64,
        memory_layers: int = 1, heads: int = 4, context: int = 32, chunk: int = 8,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class IQL(Managed):
    """Values within the data, then weighted imitation. First choice for data of mixed quality."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, normalize_obs: bool = False,
        normalize_reward: bool = False, tau: float = 0.005, actor_lr: float | str | None = None,
        expectile: float = 0.7, beta: float = 3.0, max_weight: float = 100.0, updates: int = 100000,
        data: str | Path, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        env_steps: int = 0, updates_per_step: int = 1, data_share: float = 0.5,
    ) -> None: ...

class IQN(Managed):
    """DQN that learns sampled quantiles of the return. For risk-sensitive choices (CVaR)."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 5e-05,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 1000, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = False, dueling: bool = False,
        head_hidden: Sequence[int] = (), adam_eps: float = 0.0003, quantiles: int = 64,
        target_quantiles: int = 64, acting_quantiles: int = 32, cosines: int = 64,
        kappa: float = 1.0, cvar: float = 1.0, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class MADDPG(Managed):
    """DDPG whose critics see all agents. For Box actions, rivals, and few samples."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0005,
        gamma: float = 0.95, max_grad_norm: float | None = 0.5, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.01,
        sharing: Literal['all', 'type', 'none'] = 'none', agent_id: bool = True,
        action_noise: float = 0.1, temperature: float = 1.0, logit_penalty: float = 0.001,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class MAPPO(Managed):
    """PPO with a critic that sees the whole. For teams, where acting takes little information."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 256,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, sharing: Literal['all', 'type', 'none'] = 'type',
        agent_id: bool = True, reward: Literal['own', 'team'] = 'team',
        normalize_value: bool = True, head_hidden: Sequence[int] = (),
        memory: Literal['lstm', 'gru', 'transformer'] | None = None, memory_size: int = 64,
        memory_layers: int = 1, heads: int = 4, context: int = 32, chunk: int = 8,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class MBPO(Managed):
    """SAC on imagined transitions. Needs few real steps, and much computing for each."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 1,
        updates: int = 20, n_step: Literal[1] = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.005, normalize_obs: bool = False,
        normalize_reward: bool = False, alpha_lr: float | str | None = None,
        alpha: float | Literal['auto'] = 'auto', alpha_init: float = 1.0,
        target_entropy: float | Literal['auto'] = 'auto', members: int = 7, elites: int = 5,
        model_hidden: Sequence[int] = (200, 200, 200, 200), model_lr: float | str = 0.001,
        model_beta: float = 0.5, model_batch_size: int = 256, model_holdout: float = 0.2,
        model_patience: int = 5, model_epochs: int = 100,
        termination: Literal['auto', 'known', 'learned'] = 'auto', rollouts: int = 20000,
        rollout_length: float | str = 1.0, real_ratio: float = 0.05, model_every: int = 250,
        model_retain: int = 4, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class MOPO(Managed):
    """SAC in a model of the data that is punished where the model is unsure. Can leave the data."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, normalize_obs: bool = False,
        normalize_reward: bool = False, tau: float = 0.005, alpha_lr: float | str | None = None,
        alpha: float | Literal['auto'] = 'auto', alpha_init: float = 1.0,
        target_entropy: float | Literal['auto'] = 'auto', members: int = 7, elites: int = 5,
        model_hidden: Sequence[int] = (200, 200, 200, 200), model_lr: float | str = 0.001,
        model_beta: float = 0.5, model_batch_size: int = 256, model_holdout: float = 0.2,
        model_patience: int = 5, model_epochs: int = 200,
        termination: Literal['auto', 'known', 'learned'] = 'auto', rollouts: int = 10000,
        rollout_length: float | str = 5.0, real_ratio: float = 0.05, penalty: float = 1.0,
        rollout_every: int = 1000, model_retain: int = 5, updates: int = 100000, data: str | Path,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class NFSP(Managed):
    """Best responses and their average, in self-play. For games of hidden information."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 256,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, sharing: Literal['all', 'type', 'none'] = 'type',
        agent_id: bool = True, reward: Literal['own', 'team'] = 'own', normalize_value: bool = True,
        eta: float = 0.2, reservoir_size: int = 200000, average_lr: float | str = 0.001,
        average_batch: int = 256, average_updates: int = 16, env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class OptionCritic(Managed):
    """Options that are learned end to end, with proximal updates. May help where goals move."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 128,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, n_options: int = 4, deliberation_cost: float = 0.0,
        termination_reg: float = 0.01, termination_coef: float = 1.0,
        option_entropy_coef: float = 0.01, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class PAIRED(Managed):
    """PPO in mazes that a generator draws for it. No gain over random ones is shown yet."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 256,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 128,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None,
        adversary: Literal['paired', 'minimax', 'random'] = 'paired', size: int = 9,
        blocks: int = 25, generator_lr: float | str = 0.0003, generator_entropy: float = 0.01,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class PPO(Managed):
    """Clipped policy gradient on fresh rollouts. First choice where steps are cheap."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 128,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, rnd: float = 0.0, rnd_gamma: float = 0.99,
        rnd_share: float = 1.0, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        reward_model: str | None = None,
    ) -> None: ...

class QMIX(Managed):
    """Values of a team that rise with those of each agent. For teams with one goal."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0005,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = True, dueling: bool = False,
        head_hidden: Sequence[int] = (),
        memory: Literal['lstm', 'gru', 'transformer'] | None = None, memory_size: int = 64,
        memory_layers: int = 1, heads: int = 4, context: int = 32,
        sharing: Literal['all', 'type', 'none'] = 'type', agent_id: bool = True,
        loss: Literal['huber', 'mse'] = 'mse', sequence: int = 24, burn_in: int = 8,
        mixer_embed: int = 32, mixer_hidden: int = 64, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class QRDQN(Managed):
    """DQN that learns quantiles of the return. First choice for discrete actions with replay."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 5e-05,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = False, dueling: bool = False,
        adam_eps: float = 0.0003125, quantiles: int = 200, kappa: float = 1.0,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class R2D2(Managed):
    """Recurrent Q-learning from replayed sequences. For partially observable tasks."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0001,
        gamma: float = 0.997, max_grad_norm: float | None = 40.0, batch_size: int = 64,
        buffer_size: int = 1000000, learning_starts: int = 5000, train_every: int = 64,
        updates: int = 1, n_step: int = 5, hidden: Sequence[int] = (64,),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, head_hidden: Sequence[int] = (),
        memory: Literal['lstm', 'gru', 'transformer'] = 'lstm', memory_size: int = 128,
        memory_layers: int = 1, heads: int = 4, context: int = 32, prioritized: bool = True,
        priority_alpha: float = 0.9, priority_beta: float | str = 0.6, normalize_obs: bool = False,
        normalize_reward: bool = False, dueling: bool = True, adam_eps: float = 0.001,
        sequence: int = 80, burn_in: int = 40, overlap: int = 40, rescale: bool = True,
        rescale_eps: float = 0.001, epsilon: float | str = 'linear:1.0:0.05:0.1',
        epsilon_alpha: float = 0.0, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class REDQ(Managed):
    """SAC with ten critics and many updates per step. For expensive environment steps."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 5000, train_every: int = 1,
        updates: int = 20, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.005, normalize_obs: bool = False,
        normalize_reward: bool = False, her: Literal['future', 'final', 'episode'] | None = None,
        her_ratio: float = 0.8, alpha_lr: float | str | None = None,
        alpha: float | Literal['auto'] = 'auto', alpha_init: float = 1.0,
        target_entropy: float | Literal['auto'] = 'auto', layer_norm: bool = False,
        policy_delay: int | Literal['auto'] = 'auto', n_critics: int = 10,
        n_target_critics: int = 2, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        reward_model: str | None = None, data: str | Path | None = None, data_share: float = 0.5,
    ) -> None: ...

class Rainbow(Managed):
    """C51 with all extensions of DQN. For images and long runs."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 6.25e-05,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 1600, train_every: int = 4,
        updates: int = 1, n_step: int = 3, hidden: Sequence[int] = (128,),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2000,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        streams: Sequence[int] = (128,), adam_eps: float = 0.00015, atoms: int = 51,
        v_min: float = -10.0, v_max: float = 10.0, priority_alpha: float = 0.5,
        priority_beta: float | str = 'linear:0.4:1.0', env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class ReBRAC(Managed):
    """TD3+BC with a penalty in the critics too. Strong offline, with two weights to tune."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.001,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 1024,
        hidden: Sequence[int] = (256, 256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, normalize_obs: bool = False,
        normalize_reward: bool = False, tau: float = 0.005, target_noise: float = 0.2,
        target_noise_clip: float = 0.5, policy_delay: int = 2, exploration_noise: float | str = 0.1,
        layer_norm: bool = True, actor_beta: float | str = 0.05, critic_beta: float | str = 0.01,
        updates: int = 100000, data: str | Path, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        env_steps: int = 0, updates_per_step: int = 1, data_share: float = 0.5,
    ) -> None: ...

class RecurrentPPO(Managed):
    """PPO with an LSTM, GRU or transformer. For partially observable tasks."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float = 0.5, horizon: int = 128,
        value_coef: float = 0.5, entropy_coef: float | str = 0.0, normalize_advantage: bool = True,
        hidden: Sequence[int] = (64,),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'tanh',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        normalize_obs: bool = False, normalize_reward: bool = False, log_std_init: float = 0.0,
        scale_actions: bool = True, epochs: int = 4, minibatch_size: int = 128,
        gae_lambda: float = 0.95, clip: float | str = 0.2, value_clip: float | None = None,
        target_kl: float | None = None, head_hidden: Sequence[int] = (64,),
        memory: Literal['lstm', 'gru', 'transformer'] = 'lstm', memory_size: int = 64,
        memory_layers: int = 1, heads: int = 4, context: int = 32, chunk: int = 16,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class SAC(Managed):
    """Maximum-entropy actor-critic. First choice for continuous actions; little to tune."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.005, normalize_obs: bool = False,
        normalize_reward: bool = False, her: Literal['future', 'final', 'episode'] | None = None,
        her_ratio: float = 0.8, alpha_lr: float | str | None = None,
        alpha: float | Literal['auto'] = 'auto', alpha_init: float = 1.0,
        target_entropy: float | Literal['auto'] = 'auto', layer_norm: bool = False,
        target_entropy_share: float = 0.5, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        reward_model: str | None = None, data: str | Path | None = None, data_share: float = 0.5,
    ) -> None: ...

class TD3(Managed):
    """Deterministic actor-critic: clipped double-Q targets, delayed updates. Cheaper than SAC."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 1000, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.005, normalize_obs: bool = False,
        normalize_reward: bool = False, her: Literal['future', 'final', 'episode'] | None = None,
        her_ratio: float = 0.8, target_noise: float = 0.2, target_noise_clip: float = 0.5,
        policy_delay: int = 2, exploration_noise: float | str = 0.1, env_steps: int = 100000,
        num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class TD3BC(Managed):
    """TD3 that stays near recorded actions. Simple and fast; for data of decent quality."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, normalize_obs: bool = True,
        normalize_reward: bool = False, tau: float = 0.005, target_noise: float = 0.2,
        target_noise_clip: float = 0.5, policy_delay: int = 2, exploration_noise: float | str = 0.1,
        alpha: float = 2.5, updates: int = 100000, data: str | Path, seed: int = 1,
        device: str = 'auto', compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
        env_steps: int = 0, updates_per_step: int = 1, data_share: float = 0.5,
    ) -> None: ...

class TDMPC2(Managed):
    """Planning in a learned latent model. For continuous control with few steps; costs compute."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = 20.0, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 1000, train_every: int = 1,
        updates: int = 1, n_step: int = 1, normalize_obs: bool = False, pretrain: bool = True,
        tau: float = 0.01, horizon: int = 3, rho: float = 0.5, consistency_coef: float = 20.0,
        reward_coef: float = 0.1, value_coef: float = 0.1, termination_coef: float = 1.0,
        episodic: bool = True, entropy_coef: float = 0.0001, encoder_lr_share: float = 0.3,
        latent: int = 512, width: int = 512, encoder_width: int = 256, simplex: int = 8,
        critics: int = 5, dropout: float = 0.01, bins: int = 101, bin_limit: float = 10.0,
        samples: int = 512, policy_samples: int = 24, elites: int = 64, iterations: int = 6,
        plan_temperature: float = 0.5, min_std: float = 0.05, max_std: float = 2.0,
        cnn: Literal['nature', 'impala'] = 'nature', env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class TQC(Managed):
    """SAC with truncated quantile critics. Often better than SAC, at a higher cost per update."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0003,
        gamma: float = 0.99, max_grad_norm: float | None = None, batch_size: int = 256,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 1,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (256, 256),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp',
        critic_lr: float | str | None = None, tau: float = 0.005, normalize_obs: bool = False,
        normalize_reward: bool = False, her: Literal['future', 'final', 'episode'] | None = None,
        her_ratio: float = 0.8, alpha_lr: float | str | None = None,
        alpha: float | Literal['auto'] = 'auto', alpha_init: float = 1.0,
        target_entropy: float | Literal['auto'] = 'auto', n_critics: int = 5, n_quantiles: int = 25,
        top_quantiles_to_drop_per_net: int = 2, env_steps: int = 100000, num_envs: int = 1,
        randomize: dict[str, Any] = ..., curriculum: str | dict[str, Any] | None = None,
        seed: int = 1, device: str = 'auto', compile: Literal['auto'] | bool = 'auto',
        threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...

class VDN(Managed):
    """Values of a team that are the sum of those of each agent. The baseline of QMIX."""
    def __init__(
        self, env: EnvLike | None = None, *, name: str | None = None,
        root: Path | str | None = None, preset: bool = True, lr: float | str = 0.0005,
        gamma: float = 0.99, max_grad_norm: float | None = 10.0, batch_size: int = 32,
        buffer_size: int = 1000000, learning_starts: int = 100, train_every: int = 4,
        updates: int = 1, n_step: int = 1, hidden: Sequence[int] = (64, 64),
        activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu'] = 'relu',
        cnn: Literal['nature', 'impala'] = 'nature', network: str = 'mlp', target_every: int = 2500,
        tau: float = 1.0, normalize_obs: bool = False, normalize_reward: bool = False,
        epsilon: float | str = 'linear:1.0:0.05:0.1', noisy: bool = False,
        prioritized: bool = False, priority_alpha: float = 0.6,
        priority_beta: float | str = 'linear:0.4:1.0', double: bool = True, dueling: bool = False,
        head_hidden: Sequence[int] = (),
        memory: Literal['lstm', 'gru', 'transformer'] | None = None, memory_size: int = 64,
        memory_layers: int = 1, heads: int = 4, context: int = 32,
        sharing: Literal['all', 'type', 'none'] = 'type', agent_id: bool = True,
        loss: Literal['huber', 'mse'] = 'mse', sequence: int = 24, burn_in: int = 8,
        env_steps: int = 100000, num_envs: int = 1, randomize: dict[str, Any] = ...,
        curriculum: str | dict[str, Any] | None = None, seed: int = 1, device: str = 'auto',
        compile: Literal['auto'] | bool = 'auto', threads: int = 0,
        backend: Literal['auto', 'native', 'vector', 'sync', 'processes'] = 'auto',
        env_kwargs: dict[str, Any] = ..., reset_options: dict[str, Any] = ...,
        max_episode_steps: int | None = None, embed_text: int = 0,
        wrappers: Sequence[str | dict[str, Any]] = (), eval_every: int | None = None,
        eval_episodes: int = 20, checkpoint_every: int | None = None, keep_checkpoints: int = 2,
        log_every: int | None = None,
        sinks: Sequence[Literal['tensorboard', 'csv', 'wandb', 'mlflow', 'trackio']] = ('tensorboard',),
    ) -> None: ...
