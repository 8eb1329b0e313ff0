"""A cue is shown once and asked for eleven steps later: DQN must guess, R2D2 remembers."""

import gymnasium as gym

import assay

if __name__ == "__main__":
    for name in ("dqn", "r2d2"):
        # R2D2's tuned settings for this task are found by its name; DQN has none and needs few.
        settings = {"epsilon": "linear:1:0.05:0.5"}
        if name == "dqn":
            settings |= {"num_envs": 16, "lr": 1e-3, "train_every": 16, "target_every": 100}
        run = assay.train(name, "assay/Recall-v0", env_steps=16_000, seed=1, **settings)
        right = run.evaluate(episodes=200).mean
        print(f"{name}: {right:.0%} of the answers are right")

    # An agent remembers from call to call, until it is told that a new episode begins.
    env, agent = gym.make("assay/Recall-v0"), run.agent()
    obs, _ = env.reset(seed=3)
    agent.reset()
    cue, over = obs.argmax(), False
    while not over:
        action = agent.act(obs)
        obs, reward, over, _, _ = env.step(action)
    print(f"shown {cue}, answered {action}, paid {reward:.0f}")

# Prints: (?s)dqn: [1-4]\d% of the answers.*r2d2: (9[5-9]|100)% of .*shown (\d), answered \2, paid 1
