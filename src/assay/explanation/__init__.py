"""Why a run acts as it does: what it looks at, what it remembers, what it expects."""
