"""Settings that would do nothing are refused."""

from __future__ import annotations

import pytest
from pydantic import Field

from assay.core.config import Model, refuse_inert
from assay.core.errors import ConfigError


class Settings(Model):
    prioritized: bool = Field(False)
    alpha: float = Field(0.6)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [({}, False), ({"alpha": 0.6}, False), ({"alpha": 0.7}, True),
     ({"alpha": 0.7, "prioritized": True}, False)],
)  # fmt: skip
def test_a_changed_setting_that_nothing_reads_is_refused(settings, refused) -> None:
    parsed = Settings(**settings)

    def check() -> None:
        refuse_inert(parsed, "alpha", active=parsed.prioritized, why="prioritized=false")

    if refused:
        with pytest.raises(ConfigError, match=r"alpha=0\.7 has no effect with prioritized=false"):
            check()
    else:
        check()
