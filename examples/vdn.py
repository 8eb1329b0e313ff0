"""VDN in the two-step game: a sum of values cannot tell that 8 can be had."""

import assay

if __name__ == "__main__":
    run = assay.train("vdn", "assay/TwoStep-v0", eval_every=0, checkpoint_every=0, seed=1)
    print(f"return {run.evaluate(episodes=4).mean:.0f}")

# Prints: return 7
