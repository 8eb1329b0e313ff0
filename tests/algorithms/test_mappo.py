from assay.testing.teams import TeamContract


class TestContract(TeamContract):
    algorithm = "mappo"
    settings = {"hidden": (16,), "horizon": 4, "minibatch_size": 4, "epochs": 2}
