"""Experience as episodes, and as a dataset in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_support import SPEC, Client, batch, refused, running
from typer.testing import CliRunner

from assay import data
from assay.cli.app import app
from assay.server.errors import Reason
from assay.server.gateway.export import Episode, episodes
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import Box, Dict, Discrete
from assay.server.store.store import Incoming, Store
from assay.server.tensors import Layout, decode


def write(store: Store, *batches: pb.Batch, client: str = "ada") -> None:
    epoch = store.registry.epoch("queue", client) or store.open_session("queue", client).epoch
    for one in batches:
        one.epoch = epoch
        payload = one.SerializeToString()
        (answer,) = store.append(
            [Incoming("queue", client, epoch, one.seq, one.steps, payload, one.dropped)]
        )
        assert hasattr(answer, "duplicate"), answer


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "store") as made:
        made.register(SPEC)
        yield made


def found(store: Store) -> list[Episode]:
    return [episode for episode, _ in episodes(store, SPEC)]


def test_batches_of_two_clients_become_their_episodes(store: Store) -> None:
    write(store, batch(1, 1, ends=[1], rewards=[1, 2, 3, 4]))
    write(store, batch(1, 1, steps=2, rewards=[100, 200]), client="bob")
    write(store, batch(1, 2, ends=[0, 3], rewards=[5, 6, 7, 8], episode=1, start=2))
    write(store, batch(1, 2, steps=1, ends=[0], rewards=[300], start=2), client="bob")
    results = [(one.client, one.number, one.column("reward").tolist()) for one in found(store)]
    assert results == [
        ("ada", 0, [1, 2]),
        ("ada", 1, [3, 4, 5]),
        ("ada", 2, [6, 7, 8]),
        ("bob", 0, [100, 200, 300]),
    ]
    assert not any(one.truncated for one in found(store))


def test_a_gap_cuts_an_episode_and_the_last_one_goes_on(store: Store) -> None:
    first = batch(1, 1)
    write(store, first, batch(1, 3, dropped=1, start=8))
    one, two = found(store)
    assert (one.start, one.steps, one.truncated) == (0, 4, True)
    assert (two.start, two.steps, two.truncated) == (8, 4, True)
    # Its last observation is the one that was sent to bootstrap from.
    sent = decode(first, Layout(SPEC)).fields["bootstrap"][0]
    assert np.array_equal(one.final["bootstrap"], sent)


def test_truncated_and_terminated_steps_in_one_batch(store: Store) -> None:
    obs = np.arange(12, dtype=np.float32).reshape(4, 3)
    finals = np.array([[90, 91, 92], [80, 81, 82]], np.float32)
    made = batch(
        1, 1, ends=[2], obs=obs, truncated=np.array([True, False, False, False]), bootstrap=finals
    )
    write(store, made)
    one, two, three = found(store)
    assert one.final["bootstrap"].tolist() == [90, 91, 92]
    assert two.final["bootstrap"].tolist() == obs[2].tolist()  # nobody has seen what came after
    assert three.final["bootstrap"].tolist() == [80, 81, 82]
    assert [bool(one.column("terminated")[-1]) for one in (one, two, three)] == [False, True, False]


def test_late_rewards_are_added_to_their_steps(store: Store) -> None:
    write(
        store,
        batch(1, 1, events=[1, 2, 3, 4], rewards=[0, 0, 0, 0], ends=[3]),
        batch(1, 2, events=[5, 6, 7, 8], rewards=[0, 0, 0, 0], episode=1,
              patches={2: 5.0, 7: 1.0, 99: 1.0}),
    )  # fmt: skip
    totals = [one.rewards().tolist() for one in found(store)]
    assert totals == [[0, 5, 0, 0], [0, 0, 1, 0]]


def test_observations_with_names(tmp_path: Path) -> None:
    spec = SPEC.model_copy(
        update={"observation": Dict(spaces={"a": Box(shape=(2,)), "b": Discrete(n=5)})}
    )
    with Store(tmp_path) as made:
        made.register(spec)
        fields = {
            "obs/a": np.zeros((4, 2), np.float32),
            "obs/b": np.arange(4),
            "bootstrap/a": np.ones((1, 2), np.float32),
            "bootstrap/b": np.array([4]),
        }
        plain = batch(1, 1)
        base = dict(decode(plain, Layout(SPEC)).fields)
        del base["obs"], base["bootstrap"]
        from assay.server.tensors import Experience, encode

        write(made, encode(Experience(1, 1, base | fields), Layout(spec)))
        ((one, _),) = episodes(made, spec)
        assert one.column("obs/b").tolist() == [0, 1, 2, 3]
        assert one.final["bootstrap/b"] == 4


# Minari


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    pytest.importorskip("h5py")
    return pytest.importorskip("minari")


def export(client: Client, name: str, **options: Any) -> pb.ExportReply:
    request = pb.ExportRequest(policy="queue", dataset_id=name, **options)
    return client.call(client.admin.Export, request)


def test_a_policy_as_a_minari_dataset(tmp_path: Path, minari: Any) -> None:
    with running(tmp_path / "data") as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        assert refused(export, ada, "queue/none-v0").reason is Reason.MALFORMED
        for seq, options in enumerate(
            ({"ends": [1], "rewards": [1, 2, 3, 4]}, {"episode": 1, "start": 2}), start=1
        ):
            ada.put(batch(epoch, seq, **options))
        reply = export(ada, "queue/served-v0")
        assert (reply.episodes, reply.steps) == (2, 8)
        assert Path(reply.path).exists()
        dataset = minari.load_dataset("queue/served-v0")
        assert (dataset.total_episodes, dataset.total_steps) == (2, 8)
        first, second = dataset.iterate_episodes()
        assert first.rewards.tolist() == [1, 2] and second.rewards.tolist() == [3, 4, 1, 1, 1, 1]
        assert first.terminations.tolist() == [False, True]
        assert second.truncations.tolist() == [False] * 5 + [True]
        assert first.observations.shape == (3, 3) and second.observations.shape == (7, 3)
        assert second.infos["log_prob"].shape == (7,)
        assert dataset.spec.action_space.n == 3
        for name in ("queue/served-v0", "../../etc/x-v0", "/x-v0", "no version", "a/../b-v0", ""):
            assert refused(export, ada, name).reason is Reason.MALFORMED, name
        assert export(ada, "queue/rest-v0", after_position=1).episodes == 1


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_a_damaged_batch_is_left_out_and_named(
    tmp_path: Path, minari: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data") as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        for seq in (1, 2, 3):
            ada.put(batch(epoch, seq, start=4 * (seq - 1)))
        place = server.store.registry.batches("queue", 1, 1)[0].place
        (segment,) = (tmp_path / "data" / "policies").rglob("*.seg")
        with open(segment, "r+b") as file:
            file.seek(place.offset + place.size - 1)
            file.write(b"X")
        address = ["--address", server.address]
        command = ["server", "export", "queue", "queue/rest-v0", *address]
        result = CliRunner().invoke(app, command)
        text = " ".join(result.output.split())
        assert result.exit_code == 0 and "2 episodes with 8 steps" in text
        name = "batch 2 (of 'ada', session 1, 2)"
        assert f"1 damaged batches are not in it: {name}." in text
        assert f"queue: {name} is not exported. Record 2 in" in caplog.text
        dataset = minari.load_dataset("queue/rest-v0")
        assert [len(one.rewards) for one in dataset.iterate_episodes()] == [4, 4]
        again = CliRunner().invoke(app, [*command[:3], "queue/json-v0", "--json", *address])
        assert json.loads(again.stdout)["damaged"] == [name]


@pytest.mark.parametrize("ending", [".npz", ".hdf5", ".parquet"])
def test_a_policy_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    pytest.importorskip({".npz": "numpy", ".hdf5": "h5py", ".parquet": "pyarrow"}[ending])
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "sets"))
    with running(tmp_path / "data") as server:
        ada = server.client()
        ada.register()
        ada.put(batch(ada.open().epoch, 1, ends=[1], rewards=[1, 2, 3, 4]))
        reply = export(ada, f"queue/served{ending}")
        assert Path(reply.path) == tmp_path / "sets" / "queue" / f"served{ending}"
        made = data.load(f"queue/served{ending}")
        assert [one.reward.tolist() for one in made.episodes()] == [[1, 2], [3, 4]]
        assert [bool(one.truncated[-1]) for one in made.episodes()] == [False, True]
        assert sorted(made.schema.extras) == ["extra/flags", "extra/log_prob", "extra/version"]
        assert refused(export, ada, f"queue/served{ending}").reason is Reason.MALFORMED
        for name in (f"../served{ending}", f"/tmp/served{ending}", "served.txt"):
            assert refused(export, ada, name).reason is Reason.MALFORMED, name


def test_without_h5py_the_refusal_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    import grpc

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with running(tmp_path / "data") as server:
        ada = server.client()
        ada.register()
        ada.put(batch(ada.open().epoch, 1))
        with pytest.raises(grpc.RpcError, match=r"assay\[data\]") as error:
            export(ada, "queue/served-v0")
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert not list((tmp_path / "sets").rglob("*"))
