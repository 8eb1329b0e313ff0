"""Terms."""

from isaaclab.envs.mdp import *  # noqa: F403

from .curriculums import *  # noqa: F403
from .rewards import *  # noqa: F403
