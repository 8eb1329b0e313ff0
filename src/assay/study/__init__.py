"""Evidence-gated experiments on any RL repository: contract, candidates, ledger, verdict."""
