"""Who is asking, and what they may do.

A client's id comes from its credential, never from a message: from its token, or from its
certificate. Only where a server listens on loopback and asks for neither does it believe what the
metadata say, for whoever is on this machine could as well read the data directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from assay.server.errors import Reason, RejectionError
from assay.server.gateway.config import ServerConfig
from assay.server.store.registry import EVERY, Verb
from assay.server.store.sql import Registry
from assay.server.store.tokens import ALLOWED, PRINCIPAL, authenticate

TOKEN_KEY = "authorization"
CLIENT_KEY = "assay-client"
NOBODY = "local"

_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever bears a credential."""

    name: str  # the id of a client
    kind: Literal["token", "certificate", "loopback"]  # what it was known by
    # Verbs by policy; None where everything is allowed.
    grants: Mapping[str, frozenset[Verb]] | None

    def may(self, policy: str, verb: Verb) -> bool:
        """Return whether it may do something with a policy."""
        if self.grants is None:
            return True
        return any(verb in self.grants.get(name, ()) for name in (policy, EVERY))

    def allow(self, policy: str, verb: Verb) -> None:
        """Refuse what was not granted.

        Raises:
            RejectionError: PERMISSION_DENIED.
        """
        if not self.may(policy, verb):
            raise RejectionError(
                Reason.PERMISSION_DENIED,
                f"'{self.name}' may not {verb} the policy '{policy[:64]}'.",
                "Ask for a token that grants it."
                if self.kind == "token"
                else "Ask for a grant in the server's config, or for a token.",
            )


@dataclass(frozen=True, slots=True)
class Presented:
    """What comes with a call."""

    token: Any  # the metadata `authorization`, if there are any
    word: Any  # who the caller says it is
    common_name: str  # of a certificate that was verified; "" for none

    @classmethod
    def of(cls, context: Any) -> Presented:
        """Read it off the context of a call."""
        metadata = {key.lower(): value for key, value in context.invocation_metadata() or ()}
        names = context.auth_context().get("x509_common_name") or ()
        name = names[0].decode(errors="replace") if names else ""
        return cls(metadata.get(TOKEN_KEY), metadata.get(CLIENT_KEY), name)


class Access:
    """Tells principals by what comes with a call.

    Args:
        registry: Has the tokens.
        config: Says which credentials count.
        clock: Seconds since the epoch, for tokens that expire.
    """

    def __init__(
        self, registry: Registry, config: ServerConfig, clock: Callable[[], float]
    ) -> None:
        self._registry, self._clock = registry, clock
        self._tokens, self._grants = config.tokens, config.grants
        self._certificates = config.tls is not None and config.tls.client_ca is not None

    def principal(self, given: Presented) -> Principal:
        """Return who makes a call. Asks the registry, so it is not for the event loop.

        Raises:
            RejectionError: UNAUTHENTICATED.
        """
        # A token that was given counts even where none is needed: a wrong one is a mistake.
        if self._tokens or given.token is not None:
            return self._by_token(given.token)
        if self._certificates:
            return self._by_certificate(given.common_name)
        return self._by_word(given.word)

    def _by_token(self, text: Any) -> Principal:
        if not isinstance(text, str) or not text.lower().startswith(_BEARER):
            raise RejectionError(
                Reason.UNAUTHENTICATED,
                "The call has no token, and this server requires one.",
                "Send it as metadata `authorization: Bearer TOKEN`.",
            )
        token = authenticate(self._registry, text[len(_BEARER) :].strip(), now=self._clock())
        return Principal(token.principal, "token", token.grants)

    def _by_certificate(self, name: str) -> Principal:
        if not PRINCIPAL.fullmatch(name):
            raise RejectionError(
                Reason.UNAUTHENTICATED,
                f"The certificate has the common name {name[:64]!r}, which names no client.",
                ALLOWED,
            )
        granted: dict[str, set[Verb]] = {}
        for known in (name, EVERY):
            for policy, verbs in self._grants.get(known, {}).items():
                granted.setdefault(policy, set()).update(verbs)
        # What tokens grant to a principal, its certificate does as well.
        now = self._clock()
        for token in self._registry.tokens():
            if token.principal == name and (token.expires is None or token.expires > now):
                for policy, some in token.grants.items():
                    granted.setdefault(policy, set()).update(some)
        grants = {policy: frozenset(verbs) for policy, verbs in granted.items()}
        return Principal(name, "certificate", grants)

    def _by_word(self, name: Any) -> Principal:
        name = NOBODY if name is None else name
        if not isinstance(name, str) or not PRINCIPAL.fullmatch(name):
            raise RejectionError(
                Reason.UNAUTHENTICATED, f"{str(name)[:64]!r} cannot be the id of a client.", ALLOWED
            )
        return Principal(name, "loopback", None)
