"""Settings that clients may give a policy, and what they may not choose."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")

from assay.core.errors import ConfigError
from assay.server.client.spaces import make_spec
from assay.server.learner.building import configure, read_settings
from assay.testing.envs import Identity


def test_a_client_does_not_choose_the_code_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('touched').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = Identity()
    spec = make_spec("p", env.observation_space, env.action_space, "ppo", {"network": "evil:x"})
    with pytest.raises(ConfigError, match="one of Assay's own networks"):
        configure(spec, read_settings(""))
    with pytest.raises(ConfigError, match="algorithm='evil:x': string should match"):
        make_spec("p", env.observation_space, env.action_space, "evil:x", {})
    assert not (tmp_path / "touched").exists()
