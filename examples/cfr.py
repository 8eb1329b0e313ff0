"""CFR: Kuhn poker is solved, and the first player loses 1/18 of a chip each game."""

import numpy as np

import assay
from assay.envs.games.registry import make_tree
from assay.functional.games.best_response import exploitation

if __name__ == "__main__":
    tree = make_tree("kuhn_poker")
    run = assay.train("cfr", "kuhn_poker", updates=500, plus=True, eval_every=100)
    before = exploitation(tree, tree.uniform()).exploitability
    after = run.evaluate().figures["exploitability"]
    print(f"exploitability {before:.4f} of uniform play, {after:.4f} of what was learned")

    agent = assay.load(run.path)
    obs = {"information": tree.vectors, "action_mask": tree.legal.astype(np.int8)}
    strategy = agent.policy.probabilities(obs)
    print(f"value of the first player {tree.expected_returns(strategy)[0]:.3f}; -1/18 is -0.056")
    bluff = strategy[tree.infoset_index["J"], 1]
    print(f"it bluffs with a jack {bluff:.0%} of the time")

# Prints: (?s)exploitability 0\.4583 of uniform play, 0\.000.*-0\.05[56].*bluffs with a jack
