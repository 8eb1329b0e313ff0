"""Bearer tokens: made once, kept as a hash, compared in constant time.

A token is `assay_<id>_<secret>`. The id finds it; the secret has 256 random bits, so that a plain
SHA-256 of it cannot be turned around.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

from assay.core.errors import ConfigError
from assay.server.errors import Reason, RejectionError
from assay.server.store.registry import EVERY, Token, Verb
from assay.server.store.sql import Registry

_TOKEN = re.compile(r"assay_([0-9a-f]{16})_([0-9a-f]{64})")
_NOBODY = "0" * 64
# The id of a client.
PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
ALLOWED = "Use up to 128 letters, digits and . _ @ : - and begin with a letter or digit."


def make_token(
    principal: str, grants: Mapping[str, frozenset[Verb]], *, expires: float | None = None
) -> tuple[str, Token]:
    """Return a new token as its bearer keeps it, and as the registry does.

    `expires` is in seconds since the epoch.

    Raises:
        ConfigError: The principal's name is not allowed, or nothing is granted.
    """
    if not PRINCIPAL.fullmatch(principal):
        raise ConfigError(f"'{principal}' cannot be the name of a client.", ALLOWED)
    if not any(grants.values()):
        raise ConfigError(
            f"The token of '{principal}' grants nothing.",
            f"Grant one or more of {', '.join(Verb)} for a policy, or for '{EVERY}'.",
        )
    identifier, secret = secrets.token_hex(8), secrets.token_hex(32)
    token = Token(identifier, _digest(secret), principal, dict(grants), expires)
    return f"assay_{identifier}_{secret}", token


def authenticate(registry: Registry, text: str, *, now: float) -> Token:
    """Return the token that a text stands for.

    Raises:
        RejectionError: UNAUTHENTICATED, without saying what was wrong with it.
    """
    parts = _TOKEN.fullmatch(text)
    identifier, secret = parts.groups() if parts else (_NOBODY[:16], _NOBODY)
    token = registry.token(identifier)
    # The same work is done for a token that does not exist.
    known = token.digest if token is not None else _NOBODY
    right = hmac.compare_digest(known, _digest(secret))
    if token is None or not right or (token.expires is not None and token.expires <= now):
        raise RejectionError(
            Reason.UNAUTHENTICATED,
            "The token is unknown, revoked or expired.",
            "Ask for a new one: assay server token",
        )
    return token


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
