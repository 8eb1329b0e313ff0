"""Follow a run through typed events, and stop it early when it is good enough."""

import assay
from assay import events


def watch(event):
    """Print evaluations; stop at a mean return of 450."""
    if isinstance(event, events.Evaluated):
        print(f"{event.clock.env_steps:>7,} steps: return {event.result.mean:.0f}")
        if event.result.mean >= 450:
            return assay.STOP
    if isinstance(event, events.RunEnded):
        print(f"{event.status} after {event.clock.updates:,} updates")
    return None


if __name__ == "__main__":
    run = assay.train("ppo", "CartPole-v1", seed=1, callbacks=[watch])
    print(f"Stopped early; go on with: assay resume {run.path}")

# Prints: (?s)interrupted after .*assay resume
