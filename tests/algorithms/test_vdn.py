from assay.testing.teams import TeamContract


class TestContract(TeamContract):
    algorithm = "vdn"
    settings = {"hidden": (16,), "batch_size": 8, "learning_starts": 8, "train_every": 2, "tau": 0.1}
