"""What goes wrong with skills."""

from __future__ import annotations

from assay.core.errors import AssayError


class SkillsError(AssayError):
    """A skill, host or scope is unknown, or a place cannot be read or written as asked."""
