"""How busy a policy is: rates over the last seconds, for an operator who looks at it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5


class Rates:
    """How fast some counters grow. One thread samples, any may ask.

    Example:
        >>> rates = Rates()
        >>> for second in range(4):
        ...     rates.sample(float(second), (100.0 * second, second))
        >>> rates.per_second()
        (100.0, 1.0)
    """

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()

    def sample(self, now: float, counts: Sequence[float]) -> None:
        """Note where the counters are; a sample right after another one is passed over."""
        samples = self._samples
        if samples and now - samples[-1][0] < _SAMPLE_SECONDS:
            return
        samples.append((now, tuple(counts)))
        # The one before the window stays, or the rate would be that of a shorter time.
        while len(samples) > 2 and now - samples[1][0] >= self._window:
            samples.popleft()

    def per_second(self) -> tuple[float, ...]:
        """Return the rate of each counter; nothing before the second sample."""
        samples = list(self._samples)
        if len(samples) < 2:
            return ()
        (began, first), (ended, last) = samples[0], samples[-1]
        return tuple((b - a) / (ended - began) for a, b in zip(first, last, strict=True))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the others does not exceed; 0 where there is none.

    Example:
        >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([], 0.5)
        (2.0, 0.0)
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
