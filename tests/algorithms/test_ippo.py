from assay.testing.teams import TeamContract


class TestContract(TeamContract):
    algorithm = "ippo"
    settings = {"hidden": (16,), "horizon": 4, "minibatch_size": 4, "epochs": 2}
