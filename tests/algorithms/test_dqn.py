from assay.testing.algorithms import AlgorithmContract


class TestContract(AlgorithmContract):
    algorithm = "dqn"
    settings = {
        "buffer_size": 300,
        "learning_starts": 12,
        "batch_size": 8,
        "train_every": 2,
        "target_every": 2,
        "hidden": (16,),
    }
