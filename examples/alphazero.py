"""AlphaZero on tic-tac-toe: it searches, plays itself, and meets a player that makes no mistake."""

import assay
from assay.league import evaluate_against

if __name__ == "__main__":
    # A short run; the preset of tictactoe takes 40,000 moves.
    run = assay.train(
        "alphazero", "tictactoe", env_steps=6_000, num_envs=64, simulations=24, train_every=64,
        batch_size=128, learning_starts=256, buffer_size=5_000, seed=1, eval_every=0,
        checkpoint_every=0, preset=False,
    )  # fmt: skip
    # How much it searches is decided when it acts: after training, too.
    for who in ("random", "perfect"):
        match = evaluate_against(run.path, who, games=20, settings={"simulations": 64})
        print(f"{who}: {match.tally} wins, draws, losses")

# Prints: random: \((1\d|20), \d, \d\) wins.*\nperfect: \(0, (1\d|20), \d\)
