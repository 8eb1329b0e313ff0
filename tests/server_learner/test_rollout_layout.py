"""Steps of many clients are moved about in a rollout of one column, with all that is theirs."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.buffers.rollout import Rollout
from assay.core.types import Spaces
from assay.server.learner.rollout_feed import reorder
from assay.server.learner.sequence_feed import pad_runs_to_multiple

SPACES = Spaces(Box(-1e6, 1e6, (2,), np.float32), Discrete(4))


def test_runs_are_padded_to_multiples() -> None:
    data = Rollout(SPACES, 7, 1)
    for t in range(7):
        cut = np.array([t in (1, 4)])
        over = np.array([t == 6])
        extras = {"log_prob": np.array([-float(t)], np.float32)}
        data.write(t, np.full((1, 2), t), np.array([t % 3]), [10.0 * t], over, cut, True, extras)
        if cut[0]:
            data.add_final(t, 0, np.full(2, 100 + t))
    data.last_obs = np.full((1, 2), 9)
    data.policy_weight[3] = 0.0
    wide = pad_runs_to_multiple(data, [0, 2, 5], multiple=4)
    rows = [0, 1, 4, 5, 6, 8, 9]
    assert (wide.length, wide.num_envs) == (12, 1)
    assert np.flatnonzero(wide.valid[:, 0]).tolist() == rows
    assert wide.obs[rows, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert wide.action[rows, 0].tolist() == [t % 3 for t in range(7)]
    assert wide.reward[rows, 0].tolist() == [10 * t for t in range(7)]
    assert wide.extras["log_prob"][rows, 0].tolist() == [-t for t in range(7)]
    assert np.flatnonzero(wide.truncated).tolist() == [1, 6]
    assert np.flatnonzero(wide.terminated).tolist() == [9]
    assert wide.policy_weight[rows, 0].tolist() == [1, 1, 1, 0, 1, 1, 1]
    assert wide.runs.step.tolist() == [0, 4, 8] and wide.runs.length.tolist() == [2, 3, 2]
    assert wide.in_runs()[:, 0].tolist() == wide.valid[:, 0].tolist()
    finals = wide.finals
    assert finals is not None
    assert (finals.step.tolist(), finals.env.tolist()) == ([1, 6], [0, 0])
    assert finals.obs[:, 0].tolist() == [101, 104]
    assert wide.last_obs.tolist() == [[9, 9]]
    wide.obs[0] = wide.last_obs[0] = -1
    assert data.obs[0, 0, 0] == 0 and data.last_obs[0, 0] == 9  # nothing is shared


def test_steps_are_put_into_another_order() -> None:
    data = Rollout(SPACES, 4, 1)
    for t in range(4):
        cut = np.array([t in (0, 1, 3)])
        extras = {"log_prob": np.array([-float(t)], np.float32)}
        data.write(t, np.full((1, 2), t), np.array([t]), [10.0 * t], False, cut, True, extras)
        if cut[0]:
            data.add_final(t, 0, np.full(2, 100 + t))
    data.policy_weight[:, 0] = [1, 0, 1, 1]
    # Rows 0 and 2 are one client's, and 2 follows 0; 1 and 3 are another's with a gap between.
    reorder(data, np.array([0, 2, 1, 3]), uncut=np.array([0]))
    assert data.obs[:, 0, 0].tolist() == [0, 2, 1, 3]
    assert data.reward[:, 0].tolist() == [0, 20, 10, 30]
    assert data.extras["log_prob"][:, 0].tolist() == [0, -2, -1, -3]
    assert data.policy_weight[:, 0].tolist() == [1, 1, 0, 1]
    assert np.flatnonzero(data.truncated).tolist() == [2, 3]
    finals = data.finals
    assert finals is not None
    assert finals.step.tolist() == [2, 3] and finals.obs[:, 0].tolist() == [101, 103]
