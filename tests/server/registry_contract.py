"""What every registry does, whatever database it is in.

A back end's test subclasses `RegistryContract` and says how one is opened; `reopen` opens the same
data again, as after a restart.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest
from server_samples import SPECS

from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.gateway.auth import Principal
from assay.server.store.log import Place
from assay.server.store.registry import (
    CANARY,
    EVERY,
    STABLE,
    Channel,
    IndexedBatch,
    Learner,
    NewModel,
    Quota,
    Totals,
    Verb,
)
from assay.server.store.sql import Registry
from assay.server.store.tokens import authenticate, make_token

SPEC = SPECS["vector"]
P = SPEC.name
MODEL = NewModel("a" * 64, 100, '{"layers": []}', metrics={"return": 1.5})


def batch(seq: int, position: int, *, client: str = "ada", epoch: int = 1) -> IndexedBatch:
    return IndexedBatch(P, client, epoch, seq, 10, Place(position, 1, 100 * position, 100))


class RegistryContract:
    """The tests; `opener` is the back end's own fixture."""

    @pytest.fixture
    def opener(self) -> Callable[[], Registry]:
        """Return what opens the registry of this test, again and again."""
        raise NotImplementedError

    @pytest.fixture
    def registry(self, opener: Callable[[], Registry]) -> Iterator[Registry]:
        registry = opener()
        registry.add_policy(SPEC)
        yield registry
        registry.close()

    @pytest.fixture
    def reopen(
        self, registry: Registry, opener: Callable[[], Registry]
    ) -> Iterator[Callable[[], Registry]]:
        opened: list[Registry] = []

        def again() -> Registry:
            (opened[-1] if opened else registry).close()
            opened.append(opener())
            return opened[-1]

        yield again
        for one in opened:
            one.close()

    def refused(self, call: Callable[[], object]) -> Reason:
        with pytest.raises(RejectionError) as refused:
            call()
        return refused.value.reason

    def test_a_registry_belongs_to_one_store(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        registry.claim("mine")
        again = reopen()
        again.claim("mine")
        with pytest.raises(StoreError, match="another store"):
            again.claim("yours")

    # Policies

    def test_registration_is_idempotent_by_hash(self, registry: Registry) -> None:
        assert registry.add_policy(SPECS["nested"])
        assert not registry.add_policy(SPECS["nested"])
        assert [one.name for one in registry.policies()] == ["nested", "vector"]
        assert registry.policy("nested").spec == SPECS["nested"]
        assert registry.policy("nested").hash == SPECS["nested"].hash()

    def test_another_spec_under_the_same_name_is_refused(self, registry: Registry) -> None:
        other = SPEC.model_copy(update={"algorithm": "dqn"})
        with pytest.raises(RejectionError, match='algorithm is "ppo" as registered, "dqn"') as no:
            registry.add_policy(other)
        assert no.value.reason == Reason.SPEC_CONFLICT
        assert registry.policy(P).spec == SPEC

    def test_states(self, registry: Registry, reopen: Callable[[], Registry]) -> None:
        assert registry.state(P) == "active"
        registry.set_state(P, "paused")
        again = reopen()
        assert again.state(P) == again.policy(P).state == "paused"
        again.set_state(P, "deleted")
        assert self.refused(lambda: again.set_state(P, "active")) == Reason.POLICY_DELETED
        assert self.refused(lambda: again.add_policy(SPEC)) == Reason.POLICY_DELETED
        assert self.refused(lambda: again.open_session(P, "ada")) == Reason.POLICY_DELETED
        assert self.refused(lambda: again.open_learner(P)) == Reason.POLICY_DELETED
        assert self.refused(lambda: again.state("nobody")) == Reason.UNKNOWN_POLICY
        assert self.refused(lambda: again.policy("nobody")) == Reason.UNKNOWN_POLICY

    # Sessions

    def test_epochs_rise_and_are_never_given_twice(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        assert registry.epoch(P, "ada") == 0
        assert [registry.open_session(P, "ada") for _ in range(3)] == [1, 2, 3]
        assert registry.open_session(P, "bob") == 1
        again = reopen()
        assert again.epoch(P, "ada") == 3
        assert again.open_session(P, "ada") == 4
        assert self.refused(lambda: again.open_session("nobody", "ada")) == Reason.UNKNOWN_POLICY

    def test_threads_get_different_epochs(self, registry: Registry) -> None:
        given: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: given.extend(registry.open_session(P, "ada") for _ in range(5))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(given) == list(range(1, 21))

    # Batches

    def test_batches_are_indexed_in_order(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        rows = [batch(1, 1), batch(1, 2, client="bob"), batch(2, 3), batch(1, 4, epoch=2)]
        registry.add_batches(rows)
        again = reopen()
        assert again.batches(P, 0, 10) == rows
        assert again.batches(P, 2, 1) == rows[2:3]
        assert again.committed(P, "ada", 1) == 2
        assert again.committed(P, "ada", 2) == 1
        assert again.committed(P, "ada", 3) == 0
        assert again.last_position(P) == 4
        assert again.totals(P) == Totals(4, 40, 400)
        assert again.totals("nested") == Totals()

    @pytest.mark.parametrize("double", [batch(2, 9), batch(9, 2)])
    def test_a_key_or_position_is_there_once(
        self, registry: Registry, double: IndexedBatch
    ) -> None:
        registry.add_batches([batch(1, 1), batch(2, 2)])
        with pytest.raises(RejectionError):
            registry.add_batches([batch(3, 3), double])
        assert registry.batches(P, 0, 10) == [batch(1, 1), batch(2, 2)]
        assert registry.committed(P, "ada", 1) == 2

    def test_lost_batches_are_forgotten(self, registry: Registry) -> None:
        registry.add_batches([batch(n, n) for n in range(1, 6)])
        assert registry.forget_batches_after(P, 3) == [batch(4, 4), batch(5, 5)]
        assert registry.committed(P, "ada", 1) == 3
        assert registry.last_position(P) == 3
        assert registry.totals(P) == Totals(3, 30, 300)
        registry.add_batches([batch(4, 6)])

    def test_trimmed_batches_stay_committed(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        registry.add_batches([batch(1, 1), batch(1, 2, client="bob"), batch(2, 3), batch(3, 4)])
        assert registry.trim(P, 4) == 3
        assert registry.trim(P, 4) == 0
        one = registry
        for again in (False, True):
            one = reopen() if again else one
            assert one.batches(P, 0, 10) == [batch(3, 4)]
            assert one.committed(P, "ada", 1) == 3
            assert one.committed(P, "bob", 1) == 1
            assert one.totals(P) == Totals(4, 40, 400)
            assert one.last_position(P) == 4
        one.add_batches([batch(4, 5)])
        assert one.trim(P, 6) == 2
        assert one.committed(P, "ada", 1) == 4
        assert one.last_position(P) == 5
        assert one.forget_batches_after(P, 5) == []
        assert one.totals(P) == Totals(5, 50, 500)

    # The learner

    def test_cursor_and_version_move_together(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        assert registry.learner(P) == Learner()
        epoch = registry.open_learner(P).epoch
        assert registry.advance(P, epoch, 5) == 0
        assert registry.advance(P, epoch, 8, checkpoint="c" * 64, model=MODEL) == 1
        again = reopen()
        assert again.learner(P) == Learner(1, 8, 1, "c" * 64)
        assert again.open_learner(P) == Learner(2, 8, 1, "c" * 64)
        assert again.advance(P, 2, 8, model=dataclasses.replace(MODEL, parent=1)) == 2
        assert again.learner(P).checkpoint == "c" * 64
        found = again.model(P, 2)
        assert (found.version, found.epoch, found.parent) == (2, 2, 1)
        assert (found.sha256, found.size, found.architecture) == ("a" * 64, 100, '{"layers": []}')
        assert found.metrics == {"return": 1.5}
        assert [one.version for one in again.models(P)] == [2, 1]
        assert [one.version for one in again.models(P, newest=1)] == [2]

    def test_the_checkpoint_before_the_newest_can_be_gone_back_to(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        first, second, third = ("1" * 64, "2" * 64, "3" * 64)
        epoch = registry.open_learner(P).epoch
        registry.advance(P, epoch, 2, checkpoint=first, model=MODEL)
        assert registry.learner(P).earlier is None
        registry.advance(P, epoch, 5, checkpoint=second, model=MODEL)
        registry.advance(P, epoch, 5, model=MODEL)  # a version without a checkpoint
        registry.advance(P, epoch, 9, checkpoint=third, model=MODEL)
        again = reopen()
        assert again.learner(P) == Learner(1, 9, 4, third, second)
        call = lambda: again.drop_checkpoint(P, epoch - 1, both=False)  # noqa: E731
        assert self.refused(call) == Reason.FENCED
        assert again.drop_checkpoint(P, epoch, both=False) == Learner(1, 5, 4, second)
        again = reopen()
        assert again.drop_checkpoint(P, epoch, both=False) == Learner(1, 5, 4)
        assert again.advance(P, epoch, 6, checkpoint=third, model=MODEL) == 5
        assert again.advance(P, epoch, 8, checkpoint=first, model=MODEL) == 6
        assert again.drop_checkpoint(P, epoch, both=True) == Learner(1, 8, 6)  # it stays there

    def test_a_model_is_found_by_its_digest(self, registry: Registry) -> None:
        epoch = registry.open_learner(P).epoch
        for digest in ("a", "b", "a"):
            registry.advance(P, epoch, 0, model=dataclasses.replace(MODEL, sha256=digest * 64))
        registry.add_policy(SPECS["nested"])
        found = registry.find_model(P, "a" * 64)
        assert found == registry.model(P, 3)
        assert registry.find_model(P, "b" * 64) == registry.model(P, 2)
        assert registry.find_model(P, "c" * 64) is None
        assert registry.find_model("nested", "a" * 64) is None

    def test_an_old_trainer_publishes_nothing(self, registry: Registry) -> None:
        old = registry.open_learner(P).epoch
        new = registry.open_learner(P).epoch
        call = lambda: registry.advance(P, old, 9, model=MODEL)  # noqa: E731
        assert self.refused(call) == Reason.FENCED
        assert registry.learner(P) == Learner(new)
        assert registry.models(P) == []

    def test_a_cursor_does_not_move_back(self, registry: Registry) -> None:
        epoch = registry.open_learner(P).epoch
        registry.advance(P, epoch, 9)
        assert self.refused(lambda: registry.advance(P, epoch, 8)) == Reason.BAD_VERSION

    def test_a_parent_must_exist(self, registry: Registry) -> None:
        epoch = registry.open_learner(P).epoch
        orphan = dataclasses.replace(MODEL, parent=1)
        call = lambda: registry.advance(P, epoch, 1, model=orphan)  # noqa: E731
        assert self.refused(call) == Reason.BAD_VERSION
        assert registry.learner(P) == Learner(epoch)

    def test_unknown_versions(self, registry: Registry) -> None:
        for version in (0, 1, 2**63, 2**64 - 1):
            reason = self.refused(lambda version=version: registry.model(P, version))
            assert reason in (Reason.UNKNOWN_VERSION, Reason.MALFORMED)

    # Channels

    def published(self, registry: Registry, count: int, channel: str | None = STABLE) -> None:
        epoch = registry.open_learner(P).epoch
        for _ in range(count):
            model = dataclasses.replace(MODEL, channel=channel)
            registry.advance(P, epoch, 0, model=model)

    def test_publishing_moves_its_channel(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        assert registry.channel(P, STABLE) == Channel(0)
        self.published(registry, 2)
        self.published(registry, 1, CANARY)
        self.published(registry, 1, None)
        again = reopen()
        assert again.channel(P, STABLE) == Channel(2)
        assert again.channel(P, CANARY) == Channel(3)
        assert again.learner(P).version == 4

    def test_a_pinned_channel_stays(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        self.published(registry, 3)
        assert registry.pin(P, STABLE, 2) == Channel(2, pinned=True)
        self.published(registry, 1)
        self.published(registry, 1, CANARY)
        again = reopen()
        assert again.channel(P, STABLE) == Channel(2, pinned=True)
        assert self.refused(lambda: again.promote(P, CANARY, STABLE)) == Reason.CHANNEL_PINNED
        assert self.refused(lambda: again.move(P, STABLE, 3)) == Reason.CHANNEL_PINNED
        assert again.unpin(P, STABLE) == Channel(5)
        assert again.pin(P, STABLE, 5) == Channel(5, pinned=True)

    def test_a_channel_that_is_let_go_does_not_stay_behind(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        assert registry.unpin(P, STABLE) == Channel(0)
        self.published(registry, 3)
        self.published(registry, 3, None)
        registry.pin(P, STABLE, 1)
        assert registry.unpin(P, STABLE, failed=[6, 5]) == Channel(4)
        registry.pin(P, STABLE, 1)
        again = reopen()
        assert again.unpin(P, STABLE) == Channel(6)
        assert again.unpin(P, STABLE, failed=range(1, 7)) == Channel(6)  # there is no other

    def test_a_channel_can_be_let_go_to_what_it_had_alone(self, registry: Registry) -> None:
        self.published(registry, 3)
        self.published(registry, 2, None)  # they have to pass a trial first
        registry.pin(P, STABLE, 1)
        assert registry.unpin(P, STABLE, known=True) == Channel(3)
        registry.pin(P, STABLE, 1)
        assert registry.unpin(P, STABLE, failed=[3], known=True) == Channel(2)

    def test_a_channel_can_be_moved(self, registry: Registry) -> None:
        self.published(registry, 3, None)
        assert registry.move(P, CANARY, 3) == Channel(3)
        assert registry.move(P, CANARY, 2) == Channel(2)
        assert self.refused(lambda: registry.move(P, CANARY, 9)) == Reason.UNKNOWN_VERSION

    def test_rolling_back_goes_the_way_that_was_come(self, registry: Registry) -> None:
        self.published(registry, 3)
        registry.move(P, STABLE, 1)
        assert registry.rollback(P, STABLE).version == 3
        assert registry.rollback(P, STABLE).version == 2
        assert registry.rollback(P, STABLE).version == 1
        assert self.refused(lambda: registry.rollback(P, STABLE)) == Reason.NO_EARLIER_VERSION
        registry.unpin(P, STABLE)
        self.published(registry, 1)
        assert registry.channel(P, STABLE) == Channel(4)  # numbers go on
        assert registry.rollback(P, STABLE).version == 3

    def test_what_was_rolled_back_stays_so(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        self.published(registry, 3)
        assert registry.rollback(P, STABLE) == Channel(2, pinned=True)
        self.published(registry, 1)
        again = reopen()
        assert again.channel(P, STABLE) == Channel(2, pinned=True)
        assert again.rollback(P, STABLE) == Channel(1, pinned=True)  # one further
        assert again.unpin(P, STABLE) == Channel(4)

    def test_pruning_keeps_the_newest_and_what_channels_need(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        self.published(registry, 3, None)
        self.published(registry, 1, CANARY)
        self.published(registry, 6, None)
        registry.pin(P, STABLE, 2)
        assert registry.prune_models(P, 3) == 5
        again = reopen()
        assert [one.version for one in again.models(P)] == [10, 9, 8, 4, 2]
        self.published(again, 1)
        assert again.learner(P).version == 11
        assert again.prune_models(P, 100) == 0
        assert again.prune_models(P, 0) == 4

    def test_pruning_keeps_a_version_of_each_minute_and_hour(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        now = 100_000 * 3600.0 + 30.0
        clock = [0.0]
        # A version every 20 seconds, for three hours; the last is of this moment.
        registry._clock = lambda: clock[0]  # type: ignore[attr-defined]
        count = 3 * 180
        epoch = registry.open_learner(P).epoch
        for number in range(count):
            clock[0] = now - 20.0 * (count - 1 - number)
            registry.advance(P, epoch, 0, model=dataclasses.replace(MODEL, channel=None))
        registry.prune_models(P, 4, minutes=5, hours=2)
        ages = [round(now - one.created) for one in reopen().models(P, newest=1000)]
        # The four newest; of the others the last of each minute and hour, which ended 30 s ago.
        assert ages == [0, 20, 40, 60, 80, 100, 160, 220, 280, 3640]

    def test_a_version_that_is_gone_is_refused_with_the_nearest(self, registry: Registry) -> None:
        self.published(registry, 9, None)
        registry.pin(P, STABLE, 2)
        registry.prune_models(P, 2)
        with pytest.raises(RejectionError, match="no version 5") as refused:
            registry.pin(P, STABLE, 5)
        assert refused.value.fix == "The nearest that it has: 2 and 8."

    def test_channels_refuse_what_is_not_there(self, registry: Registry) -> None:
        assert self.refused(lambda: registry.channel(P, "beta")) == Reason.UNKNOWN_CHANNEL
        assert self.refused(lambda: registry.pin(P, STABLE, 7)) == Reason.UNKNOWN_VERSION
        assert self.refused(lambda: registry.promote(P, CANARY, STABLE)) == Reason.UNKNOWN_VERSION
        assert self.refused(lambda: registry.rollback(P, STABLE)) == Reason.NO_EARLIER_VERSION
        assert self.refused(lambda: registry.rollback("x", STABLE)) == Reason.UNKNOWN_POLICY

    # Quotas and tokens

    def test_quotas(self, registry: Registry, reopen: Callable[[], Registry]) -> None:
        assert registry.quota(P, "ada") is None
        registry.set_quota(P, EVERY, Quota(steps=10))
        registry.set_quota(P, "ada", Quota(bytes=5, seconds=60.0))
        again = reopen()
        assert again.quota(P, "ada") == Quota(bytes=5, seconds=60.0)
        assert again.quota(P, "bob") == Quota(steps=10)
        again.set_quota(P, "ada", None)
        assert again.quota(P, "ada") == Quota(steps=10)

    def test_tokens(self, registry: Registry, reopen: Callable[[], Registry]) -> None:
        grants = {P: frozenset({Verb.WRITE, Verb.READ}), "nested": frozenset({Verb.READ})}
        text, token = make_token("ada", grants, expires=1000.0)
        registry.add_token(token)
        admin, other = make_token("root", {EVERY: frozenset({Verb.ADMIN})})
        registry.add_token(other)
        again = reopen()
        assert again.tokens() == [token, other]
        found = authenticate(again, text, now=999.0)
        assert found == token
        ada = Principal("ada", "token", found.grants)
        ada.allow(P, Verb.WRITE)
        root = authenticate(again, admin, now=0.0)
        Principal("root", "token", root.grants).allow("anything", Verb.ADMIN)
        for policy, verb in ((P, Verb.ADMIN), ("nested", Verb.WRITE), ("x", Verb.READ)):
            reason = self.refused(lambda p=policy, v=verb: ada.allow(p, v))
            assert reason == Reason.PERMISSION_DENIED
        assert self.refused(lambda: authenticate(again, text, now=1000.0)) == Reason.UNAUTHENTICATED
        forged = text[:-1] + ("0" if text[-1] != "0" else "1")
        for bad in (forged, "", "assay__", text[:30], "assay_" + "0" * 16 + "_" + "0" * 64):
            reason = self.refused(lambda bad=bad: authenticate(again, bad, now=0.0))
            assert reason == Reason.UNAUTHENTICATED
        assert again.revoke_token(token.id)
        assert not again.revoke_token(token.id)
        assert self.refused(lambda: authenticate(again, text, now=0.0)) == Reason.UNAUTHENTICATED

    def test_the_secret_is_kept_nowhere(self, registry: Registry) -> None:
        text, token = make_token("ada", {P: frozenset({Verb.READ})})
        registry.add_token(token)
        secret = text.rpartition("_")[2]
        assert secret not in repr(registry.token(token.id))
