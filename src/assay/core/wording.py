"""Words of messages that depend on a number."""

from __future__ import annotations


def counted(count: int, word: str, several: str | None = None) -> str:
    """Return a number with its word, in the plural where that is right.

    `several` is the plural, where it is not the word with an s.

    Example:
        >>> counted(1, "candidate"), counted(2_000, "candidate"), counted(0, "axis", "axes")
        ('1 candidate', '2,000 candidates', '0 axes')
    """
    return f"{count:,} {word if count == 1 else several or word + 's'}"
